from __future__ import annotations

import random

import pytest
from aiokafka import partitioner as reference
from hypothesis import given
from hypothesis import strategies as st

from actors._core.partitioner import CRC32, MURMUR2, murmur2, partition_for, partitioner_of, partitions_for

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def signed(unsigned: int) -> int:
    return unsigned - 2**32 if unsigned >= 2**31 else unsigned


@pytest.mark.parametrize(("key", "expected"), JAVA_VECTORS.items())
def test_hashes_as_java_does(key: bytes, expected: int) -> None:
    assert signed(murmur2(key)) == expected


@given(st.binary(max_size=64))
def test_hashes_as_aiokafka_does(key: bytes) -> None:
    assert murmur2(key) == reference.murmur2(key)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 255, 256, 257, 258, 259, 260, 261, 4096, 10_001])
def test_hashes_long_keys(length: int) -> None:
    key = (bytes(range(256)) * (length // 256 + 1))[:length]
    assert murmur2(key) == reference.murmur2(key)


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_puts_a_key_where_the_producer_does(key: bytes, partitions: int) -> None:
    choose = reference.DefaultPartitioner()
    numbers = list(range(partitions))
    assert partition_for(key, partitions) == choose(key, numbers, numbers)


@given(st.lists(st.binary(max_size=70), max_size=200), st.integers(1, 1000))
def test_many_keys_at_once_go_where_each_goes_alone(keys: list[bytes], partitions: int) -> None:
    assert partitions_for(keys, partitions) == [partition_for(key, partitions) for key in keys]


@pytest.mark.parametrize("length", range(0, 22))
def test_keys_of_one_length_are_hashed_side_by_side(length: int) -> None:
    keys = [random.Random(number).randbytes(length) for number in range(500)]
    assert partitions_for(keys, 1 << 30) == [partition_for(key, 1 << 30) for key in keys]


def test_crc32_is_librdkafkas():
    # The check value of CRC-32/ISO-HDLC, which is zlib's and librdkafka's.
    assert CRC32.home(b"123456789", 1 << 31) == 0xCBF43926 % (1 << 31)
    assert CRC32.home(b"123456789", 7) == 0xCBF43926 % 7


@given(st.lists(st.binary(max_size=20), max_size=60), st.integers(1, 50))
def test_many_keys_are_placed_as_one_is(keys, partitions):
    for partitioner in (MURMUR2, CRC32, partitioner_of(lambda key, count: len(key) % count)):
        assert partitioner.homes(keys, partitions) == [partitioner.home(key, partitions) for key in keys]


def test_a_partitioner_is_a_name_or_a_function():
    assert partitioner_of("murmur2") is MURMUR2
    assert partitioner_of("crc32") is CRC32
    for wrong in ("random", 7):
        with pytest.raises(ValueError, match="it is one of 'murmur2', 'crc32', or a function"):
            partitioner_of(wrong)
    with pytest.raises(ValueError, match="gave 3 for key b'a' of 3 partitions"):
        partitioner_of(lambda key, partitions: partitions).home(b"a", 3)
