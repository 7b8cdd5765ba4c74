"""Records that aiokafka's parser made, against what aiokafka itself hands out."""

import random

import pytest
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from actors._kafka.records import CHUNK_RECORDS, RAW

READ_COMMITTED = 1
ABORT_MARKER = b"\x00\x00\x00\x00"


def batch(base, offsets, *, producer=None, control=None, compression=0):
    builder = DefaultRecordBatchBuilder(2, compression, producer is not None, producer or -1, 0, 0, 1 << 24)
    for offset in offsets:
        key = ABORT_MARKER if control else b"key-%d" % offset
        builder.append(offset - base, 1_700_000_000_000, key, b"value-%d" % offset, [("h", b"%d" % offset)])
    raw = bytearray(builder.build())
    raw[0:8] = base.to_bytes(8, "big")
    if control:
        raw[21:23] = (int.from_bytes(raw[21:23], "big") | 0x20).to_bytes(2, "big")
    return raw


def fetched(raw, begin, aborted, deserializer, *, crc=False):
    partition = TopicPartition("in", 0)
    return fetcher.PartitionRecords(
        partition, MemoryRecords(bytes(raw)), aborted, begin, deserializer, None, crc, READ_COMMITTED
    )


def drained(records, limit):
    taken, has_more, ends = [], True, []
    while has_more:
        some, has_more = records.take(limit())
        taken += some
        ends.append(records.next_fetch_offset)
    return taken, ends


def plain(one):
    return one.offset, one.key, one.value, tuple(one.headers)


LOG = b"".join(
    (
        batch(0, range(2_500)),
        batch(2_500, range(2_500, 2_510), producer=7),
        batch(2_510, [2_510], producer=7, control=True),
        batch(2_511, (2_513, 2_517), compression=1),
        batch(2_520, range(2_520, 2_530), producer=8),
        batch(2_530, [2_530], producer=8, control=True),
        batch(2_531, [2_531]),
    )
)
ABORTED = [(7, 2_500)]


@pytest.mark.parametrize("begin", [0, 1, 999, 1_000, 2_499, 2_503, 2_515, 2_517, 2_525, 2_531])
def test_they_are_the_same_records_with_the_same_next_offset(begin):
    reference = fetched(LOG, begin, ABORTED, None)
    expected = [plain(record) for record in reference]
    for seed in range(5):
        records = fetched(LOG, begin, ABORTED, RAW)
        taken, ends = drained(records, lambda seed=seed: random.Random(seed).choice((1, 7, 700, 5_000)))
        assert [plain(record) for record in taken] == expected
        assert ends == sorted(ends)
        assert records.next_fetch_offset == reference.next_fetch_offset
    assert expected[-1][0] == 2_531


def test_after_a_part_the_next_offset_is_behind_its_last_record():
    records = fetched(LOG, 0, ABORTED, RAW)
    for limit in (1, CHUNK_RECORDS - 1, CHUNK_RECORDS, 10):
        some, has_more = records.take(limit)
        assert (len(some), has_more) == (limit, True)
        assert records.next_fetch_offset == some[-1].offset + 1


def test_a_damaged_batch_is_an_error():
    damaged = bytearray(LOG)
    damaged[200] ^= 1
    with pytest.raises(CorruptRecordException):
        fetched(damaged, 0, [], RAW, crc=True).take(10)
