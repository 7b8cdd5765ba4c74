"""A store that its task has brought to the end of its changelog."""

from __future__ import annotations

from dataclasses import dataclass

from stores._core.record import Position
from stores.ports import PartitionStore


@dataclass(frozen=True, slots=True)
class Restored:
    """A store at the end of its changelog; `position.source_offset` is what the state itself knows of the input.

    `is_ahead` says that it isn't there: it has records that the changelog lost.
    """

    store: PartitionStore
    position: Position
    is_empty: bool
    is_ahead: bool = False
