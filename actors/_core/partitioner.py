"""Which partition a key lives in, as the Java client's default partitioner decides it.

Producers in any language and the workers have to agree on this number: it is what puts a key's records in
front of the one task that holds the key's state.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD_MASK = 0xFFFFFFFF
_POSITIVE_MASK = 0x7FFFFFFF
_MAX_PREPARED_WORDS = 64

_UNPACK_WORDS = tuple(struct.Struct(f"<{words}I").unpack_from for words in range(_MAX_PREPARED_WORDS + 1))


def murmur2(data: bytes) -> int:
    """Give the 32-bit MurmurHash2 of `data` with Kafka's seed, unsigned.

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
    """Give the partition of `key` in a topic of `partitions` partitions."""
    return (murmur2(key) & _POSITIVE_MASK) % partitions
