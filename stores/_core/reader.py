"""The port for reading a store's committed state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from stores._core.record import Position


class PartitionReader(Protocol):
    """Reads the committed state of a store's partition. A value has 25 bytes of write metadata in front."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key` with its metadata, or None. Expired values too: the overlay decides."""

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value with its metadata) in byte order of the keys, `start` included, `end` not.

        The iterator sees the state as of the call, whatever is written while it runs.
        """

    def position(self) -> Position | None:
        """Return the position that the content belongs to, None for a store that never held anything."""
