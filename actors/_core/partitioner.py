"""Which partition a key lives in: as the Java client's default partitioner decides, or the one that a topic declares.

Producers in any language and the workers have to agree on this number: it is what puts a key's records in
front of the one task that holds the key's state.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD_MASK = 0xFFFFFFFF
_POSITIVE_MASK = 0x7FFFFFFF
_MAX_PREPARED_WORDS = 64
_LANE_BYTES = 8
_FEW_KEYS = 12
"""Up to here one after the other is faster than side by side."""

_UNPACK_WORDS = tuple(struct.Struct(f"<{words}I").unpack_from for words in range(_MAX_PREPARED_WORDS + 1))


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data` with Kafka's seed, unsigned.

    Source: `org.apache.kafka.common.utils.Utils.murmur2`, which gives the same bits as a signed number.
    """
    length = len(data)
    words = length >> 2
    hashed = _SEED ^ length
    unpack = _UNPACK_WORDS[words] if words <= _MAX_PREPARED_WORDS else struct.Struct(f"<{words}I").unpack_from
    for word in unpack(data):
        # Constants are spelled out, and masks left out where a later one cuts the same bits, for speed.
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        hashed = (hashed * 0x5BD1E995 ^ (word ^ word >> 24) * 0x5BD1E995) & 0xFFFFFFFF
    if length & 3:
        tail = int.from_bytes(data[words << 2 :], "little")
        hashed = (hashed ^ tail) * _MULTIPLIER & _WORD_MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _WORD_MASK
    return hashed ^ hashed >> 15


def partition_for(key: bytes, partitions: int) -> int:
    return (murmur2(key) & _POSITIVE_MASK) % partitions


def partitions_for(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Return the partition of each of `keys`: as `partition_for`, in a fraction of the time when they are many."""
    if len(keys) <= _FEW_KEYS:
        return [partition_for(key, partitions) for key in keys]
    if len(set(map(len, keys))) == 1:
        return _side_by_side(keys, partitions)
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        by_length[len(key)].append(place)
    found = [0] * len(keys)
    for places in by_length.values():
        if len(places) <= _FEW_KEYS:
            for place in places:
                found[place] = partition_for(keys[place], partitions)
            continue
        for place, partition in zip(places, _side_by_side([keys[place] for place in places], partitions), strict=True):
            found[place] = partition
    return found


def _side_by_side(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Return the partitions of keys of one length."""
    count = len(keys)
    lanes = _murmur2_side_by_side(b"".join(keys), len(keys[0]), count) & _in_lanes(_POSITIVE_MASK, count)
    hashes = struct.unpack(f"<{count}Q", lanes.to_bytes(count * _LANE_BYTES, "little"))
    return [hashed % partitions for hashed in hashes]


def _murmur2_side_by_side(joined: bytes, length: int, count: int) -> int:
    """Return `murmur2` of `count` keys of one length, in lanes of one integer; bits above a lane's 32 may be set.

    Arithmetic on one long integer is faster than on many short ones. A lane has 64 bits, so that the product of two
    32-bit numbers fits. A shift moves bits of the next lane into the upper half, which the mask removes.
    """
    mask = _in_lanes(_WORD_MASK, count)
    hashed = _in_lanes(_SEED ^ length, count)
    lanes, tail_at = bytearray(count * _LANE_BYTES), length & ~3
    for word_at in range(0, tail_at, 4):
        for place in range(4):
            lanes[place::_LANE_BYTES] = joined[word_at + place :: length]
        word = int.from_bytes(lanes, "little") * _MULTIPLIER & mask
        hashed = (hashed * _MULTIPLIER ^ ((word ^ word >> 24) & mask) * _MULTIPLIER) & mask
    if length & 3:
        lanes = bytearray(count * _LANE_BYTES)
        for place in range(length & 3):
            lanes[place::_LANE_BYTES] = joined[tail_at + place :: length]
        hashed = (hashed ^ int.from_bytes(lanes, "little")) * _MULTIPLIER & mask
    hashed = ((hashed ^ hashed >> 13) & mask) * _MULTIPLIER & mask
    return hashed ^ hashed >> 15


def _in_lanes(number: int, count: int) -> int:
    """Return an integer of `count` lanes with `number`, of 32 bits, in each."""
    return int.from_bytes(number.to_bytes(_LANE_BYTES, "little") * count, "little")


@dataclass(frozen=True, slots=True, eq=False)
class Partitioner:
    """How the producers of a topic place keys.

    Attributes:
        name: for people, and for clients that know it.
        home: gives the partition of a key in a topic of so many partitions.
        homes: gives those of many keys.
        places_empty: whether the empty key has a partition; else producers put it anywhere.
    """

    name: str
    home: Callable[[bytes, int], int]
    homes: Callable[[Sequence[bytes], int], list[int]]
    places_empty: bool = True

    def __repr__(self) -> str:
        return f"<Partitioner {self.name}>"


def _crc32_home(key: bytes, partitions: int) -> int:
    return crc32(key) % partitions


def _crc32_homes(keys: Sequence[bytes], partitions: int) -> list[int]:
    return [crc32(key) % partitions for key in keys]


MURMUR2 = Partitioner("murmur2", partition_for, partitions_for)
"""The Java client's, and aiokafka's and kafka-python's; librdkafka's `murmur2_random`."""
CRC32 = Partitioner("crc32", _crc32_home, _crc32_homes, places_empty=False)
"""librdkafka's `consistent_random`, its default, which places the empty key at random."""
PARTITIONERS = {one.name: one for one in (MURMUR2, CRC32)}


def partitioner_of(declared: str | Callable[[bytes, int], int]) -> Partitioner:
    """Return the partitioner of a name, or of a function that is called with the key and the number of partitions.

    Raises:
        ValueError: there is no such partitioner.
    """
    known = PARTITIONERS.get(declared) if isinstance(declared, str) else None
    if known is not None:
        return known
    if isinstance(declared, str) or not callable(declared):
        names = ", ".join(repr(name) for name in PARTITIONERS)
        raise ValueError(  # noqa: TRY004  a name that is unknown is no other type
            f"partitioner={declared!r}: it is one of {names}, or a function of (key, partitions)"
        )
    function, name = declared, getattr(declared, "__qualname__", repr(declared))

    def home(key: bytes, partitions: int) -> int:
        found = function(key, partitions)
        if not (isinstance(found, int) and 0 <= found < partitions):
            raise ValueError(f"partitioner {name} gave {found!r} for key {key!r} of {partitions} partitions")
        return found

    return Partitioner(name, home, lambda keys, partitions: [home(key, partitions) for key in keys])
