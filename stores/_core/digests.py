"""A worker's answer to a comparison with its changelog: digests of a partition's rows by bucket, or some rows."""

from __future__ import annotations

import msgspec

from stores._core.record import Position


class StoredRow(msgspec.Struct, frozen=True):
    """A key, and its value with the write metadata."""

    key: bytes
    value: bytes


class Digests(msgspec.Struct, frozen=True):
    """The digests of a partition's buckets, or the rows of some, at a position of the changelog."""

    position: Position
    digests: list[int]
    rows: list[StoredRow]
