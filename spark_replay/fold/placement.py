"""The partition that a row belongs in by its message's key: murmur2 as in Kafka's Java client, built in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from stores._core.layouts import KEYS

if TYPE_CHECKING:
    from pyspark.sql import Column

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995
LENGTH_BYTES = 4
TO_THE_END = 2**31 - 1


def home_partition(key: Column, partition_count: int) -> Column:
    """Return the partition (int) of a binary key in a topic of `partition_count` partitions."""
    return (murmur2(key).bitwiseAND(F.lit(0x7FFFFFFF)) % partition_count).cast("int")


def message_key(row: Column, layout: str) -> Column:
    """Return the key of the message that a row of a store is of, by `stores._core.layouts`; null if it is of none."""
    key = F.lit(None).cast("binary")
    for letter, (at, is_sized) in KEYS[layout].items():
        part = F.substring(row, at + 1, F.lit(TO_THE_END))
        if is_sized:
            size = F.conv(F.hex(F.substring(row, at + 1, F.lit(LENGTH_BYTES))), 16, 10).cast("bigint")
            part = F.substring(row, at + 1 + LENGTH_BYTES, F.least(size, F.lit(TO_THE_END)).cast("int"))
        key = F.when(F.substring(row, 1, len(letter)) == F.lit(letter), part).otherwise(key)
    return key


def murmur2(key: Column) -> Column:
    """Return a binary key's murmur2 as a bigint from 0 to 2^32 - 1.

    The algorithm is `org.apache.kafka.common.utils.Utils.murmur2`. It runs on bigints below 2^32, whose
    product with the constant below 2^31 never overflows, so that Spark's ANSI mode has nothing to object to.
    """
    length = F.octet_length(key).cast("bigint")
    count = F.shiftright(length, 2).cast("int")
    # sequence(0, -1) counts down, it isn't empty
    indices = F.when(count > 0, F.sequence(F.lit(0), count - 1)).otherwise(F.array().cast("array<int>"))
    words = F.transform(F.transform(indices, lambda i: _big_endian(key, i)), _swapped)
    mixed = F.transform(F.transform(words, _times_m), lambda k: _times_m(_xor_shift(k, 24)))
    seeded = F.lit(_SEED).cast("bigint").bitwiseXOR(length)
    body = F.aggregate(mixed, seeded, lambda h, k: _times_m(h).bitwiseXOR(k))
    rest = _let(_big_endian(F.concat(key, F.lit(bytes(3))), count), _swapped)
    tailed = _let(body, lambda h: F.when(length % 4 == 0, h).otherwise(_times_m(h.bitwiseXOR(rest))))
    return _let(_let(tailed, lambda h: _times_m(_xor_shift(h, 13))), lambda h: _xor_shift(h, 15))


def _let(value: Column, then: Callable[[Column], Column]) -> Column:
    # Spark evaluates an expression again wherever it is written; a lambda's variable is evaluated once
    return F.get(F.transform(F.array(value), then), F.lit(0))


def _times_m(number: Column) -> Column:
    return (number * F.lit(_M).cast("bigint")).bitwiseAND(F.lit(_MASK))


def _xor_shift(number: Column, bits: int) -> Column:
    return number.bitwiseXOR(F.shiftrightunsigned(number, bits))


def _big_endian(raw: Column, index: Column) -> Column:
    """The 32-bit word number `index` of a binary, read from the wrong end."""
    return F.conv(F.hex(F.substring(raw, index * 4 + 1, F.lit(4))), 16, 10).cast("bigint")


def _swapped(word: Column) -> Column:
    low = F.shiftleft(word.bitwiseAND(F.lit(0xFF)), 24).bitwiseOR(F.shiftleft(word.bitwiseAND(F.lit(0xFF00)), 8))
    high = F.shiftright(word, 8).bitwiseAND(F.lit(0xFF00)).bitwiseOR(F.shiftright(word, 24))
    return low.bitwiseOR(high)
