"""The state that is compared with a changelog, and the position that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS = (
    "partition int, claimed int, key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, "
    "input int"
)
"""The columns of `Held.read`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One partition of a held state.

    Attributes:
        partition: The partition.
        changelog_offset: It stands for the records below this offset.
        as_of_ms: Unix milliseconds at which its keys count as expired.
        epoch: The owner's, None if it has no owner.
        topic_id: The changelog's id, empty if unknown.
        where: The file or folder, for errors.
        owner: The holder.
        rows: How many rows its file has, None if unknown.
        transaction: The number of the owner's commit that it took last, 0 if that is unknown.
    """

    partition: int
    changelog_offset: int
    as_of_ms: int
    epoch: int | None
    topic_id: str
    where: str
    owner: str
    rows: int | None = None
    transaction: int = 0

    def __str__(self) -> str:
        """Return partition, owner, epoch and position."""
        return f"partition {self.partition} of {self.owner} (epoch {self.epoch}, position {self.changelog_offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The state of one store that workers, a folder or a rebuild hold.

    Attributes:
        kind: `exports`, `data folders`, `rebuild`, or `live workers`.
        where: The folder, or the addresses.
        app: The app, empty if unknown.
        store: The store, empty if unknown.
        placement: `key` if each key lives in the partition that murmur2 gives it, else `task`.
        partition_count: How many partitions the store has.
        parts: At most one copy a partition, by partition.
        stale: The copies that another one goes before.
        read: Returns `ROWS`: `claimed` is the row's own partition, and `input` null where it is unknown, or the actor
            has one.
        unanswered: Partitions whose state couldn't be read, with the reason; they aren't compared.
        only: Of `partition` and `key`: which rows are compared, of both sides; None: all.
    """

    kind: str
    where: str
    app: str = ""
    store: str = ""
    placement: str
    partition_count: int
    parts: tuple[Part, ...]
    stale: tuple[Part, ...] = ()
    read: Callable[[SparkSession], DataFrame]
    unanswered: Mapping[int, str] = field(default_factory=dict)
    only: Column | None = None

    @property
    def positions(self) -> dict[int, int]:
        """The position of each partition that is held."""
        return {part.partition: part.changelog_offset for part in self.parts}

    def without(self, unanswered: Mapping[int, str]) -> Held:
        """Return the same without the partitions of `unanswered`, each with the reason."""
        parts = tuple(part for part in self.parts if part.partition not in unanswered)
        return replace(self, parts=parts, unanswered={**self.unanswered, **unanswered})

    def contested(self) -> list[tuple[Part, Part]]:
        """Return the pairs of copies whose owners overlapped: the newer one's, and the older one's that is further.

        An owner begins where the log ends, behind all that the former one wrote. So a copy of an older epoch that
        lies further was written to after it had been replaced.
        """
        copies = sorted((*self.parts, *self.stale), key=lambda part: part.partition)
        return [
            (newer, older)
            for newer, older in permutations(copies, 2)
            if newer.partition == older.partition
            and newer.epoch is not None
            and older.epoch is not None
            and older.epoch < newer.epoch
            and older.changelog_offset > newer.changelog_offset
        ]
