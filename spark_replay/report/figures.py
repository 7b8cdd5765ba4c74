"""Which tables of numbers a page has: each with what it says in words, and columns that are drawn as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_replay.comparison.report import Report
    from spark_replay.report.profile import Key, Partition, Profile

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the names of its columns, rows of as many cells, and which columns are drawn as bars."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    bars: tuple[str, ...] = ()

    @property
    def are_numbers(self) -> list[bool]:
        """Return of each column whether it holds numbers only, so that they are set flush right."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.head)
        return [all(cell is None or isinstance(cell, int | float) for cell in column) for column in columns]

    @property
    def largest(self) -> dict[str, float]:
        """The greatest value of each column that is drawn as bars."""
        return {name: max([1, *(row[self.head.index(name)] for row in self.rows)]) for name in self.bars}


@dataclass(frozen=True, slots=True)
class Figure:
    """A table under its title, and what it says in words."""

    title: str
    text: str
    table: Table


def draw_counts(found: Report) -> list[Figure]:
    """Draw where a validation found mismatches."""
    wrong = [kind for kind in found.counts if kind not in ("equal", "superseded", "behind_position")]
    by_partition = {number: sum(counts.get(kind, 0) for kind in wrong) for number, counts in found.by_partition.items()}
    hit = {number: count for number, count in by_partition.items() if count}
    if not hit:
        return []
    most = max(hit, key=lambda number: hit[number])
    total = max(len(found.ends), *(number + 1 for number in by_partition))
    text = f"{_count(len(hit), 'partition')} of {total}; most in partition {most}: {hit[most]:,}."
    table = Table(("partition", "mismatches"), sorted(hit.items()), ("mismatches",))
    return [Figure("Mismatches by partition", text, table)]


def draw_log(found: Profile) -> list[Figure]:
    """Draw a log: what each partition holds, ages, rates, owners, and the keys that stand out."""
    if not any(part.records for part in found.partitions):
        return []
    return [
        _by_partition(found, "keys", {"keys": "keys", "expired, not removed yet": "expired"}),
        _by_partition(found, "live_bytes", {"bytes of live keys": "key_bytes", "bytes of their values": "value_bytes"}),
        _by_partition(found, "records", {name: name for name in ("records", "tombstones", "damaged")}),
        _ages(found),
        *_rates(found),
        *_owners(found),
        _standing_out("Keys written most", "records", found.most_written, found),
        _standing_out("Keys with most bytes in the log", "log_bytes", found.largest, found),
    ]


def _by_partition(found: Profile, skewed: str, columns: dict[str, str]) -> Figure:
    unit = skewed.removeprefix("live_")
    rows = [(part.partition, *(getattr(part, field) for field in columns.values())) for part in found.partitions]
    text = _skewed(found.partitions, skewed, found.skew(skewed), unit)
    return Figure(f"{unit.capitalize()} by partition", text, Table(("partition", *columns), rows, tuple(columns)))


def _skewed(parts: Sequence[Partition], name: str, skew: float | None, unit: str) -> str:
    if skew is None:
        return f"There are no {unit}."
    top = max(parts, key=lambda part: getattr(part, name))
    total = sum(getattr(part, name) for part in parts)
    mean = total / len(parts)
    return (
        f"{total:,} {unit} in all, {short(mean)} a partition; the largest is partition {top.partition} with "
        f"{getattr(top, name):,}, {skew:.2f} times the mean."
    )


def _ages(found: Profile) -> Figure:
    names, since = [], 0
    for age in found.ages:
        names.append(f"{span(since)} or more" if age.below_ms is None else f"under {span(age.below_ms)}")
        since = age.below_ms or since
    undated = sum(part.keys for part in found.partitions) - sum(age.keys for age in found.ages)
    text = "Time since the last write of the keys that are there; each row begins where the one above ends."
    if undated:
        text += f" {_count(undated, 'key')} without a timestamp are left out."
    rows = [(name, age.keys, age.live_bytes) for name, age in zip(names, found.ages, strict=True)]
    return Figure("Age of keys", text, Table(("age", "keys", "bytes"), rows, ("keys", "bytes")))


def _rates(found: Profile) -> list[Figure]:
    if not found.slots:
        return []
    most = max(found.slots, key=lambda slot: slot.records)
    text = (
        f"Records that the log still has, by their timestamps, in slots of {span(found.slot_ms)}. Most: "
        f"{most.records:,} from {moment(most.start_ms)}, {short(most.records * 1000 / found.slot_ms)} a second."
    )
    rows = [(moment(slot.start_ms), slot.records, slot.tombstones, slot.log_bytes) for slot in found.slots]
    bars = ("records", "tombstones", "bytes")
    return [Figure("Writes over time", text, Table(("from", *bars), rows, bars))]


def _owners(found: Profile) -> list[Figure]:
    if not any(epoch.first_ms is not None for epoch in found.epochs):
        return []
    bad = sum(epoch.overlaps for epoch in found.epochs)
    text = f"{_count(found.owners, 'owner')} of {_count(len(found.partitions), 'partition')}, from first record to last"
    text += f"; {bad:,} began while an earlier one still wrote." if bad else "; none overlap."
    if found.owners > len(found.epochs):
        text += f" The last {len(found.epochs):,} are shown."
    rows = [
        (
            epoch.partition,
            epoch.epoch,
            epoch.records,
            epoch.first_offset,
            epoch.last_offset,
            None if epoch.first_ms is None else moment(epoch.first_ms),
            None if epoch.last_ms is None else moment(epoch.last_ms),
            "overlaps" if epoch.overlaps else "",
        )
        for epoch in found.epochs
    ]
    head = ("partition", "epoch", "records", "first offset", "last offset", "from", "to", "overlap")
    return [Figure("Owners over time (epochs)", text, Table(head, rows, ("records",)))]


def _standing_out(title: str, name: str, keys: Sequence[Key], found: Profile) -> Figure:
    counts = [getattr(key, name) for key in keys]
    total = sum(getattr(part, name) for part in found.partitions)
    unit = "bytes" if name == "log_bytes" else "records"
    share = sum(counts) / total if total else 0.0
    text = f"The first {len(keys)} have {share:.1%} of all {unit} in the log."
    rows = [(rank, key.key, key.partition, key.records, key.log_bytes) for rank, key in enumerate(keys, 1)]
    head = ("rank", "key", "partition", "records", "bytes in the log")
    return Figure(title, text, Table(head, rows, head[3:]))


def moment(at_ms: int) -> str:
    """Return Unix milliseconds as UTC, whatever year they are of."""
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{at_ms} ms"


def span(length_ms: int) -> str:
    """Return a length of time in its largest whole unit."""
    for unit_ms, name in _UNITS:
        if length_ms >= unit_ms and length_ms % unit_ms == 0:
            return _count(length_ms // unit_ms, name)
    return f"{length_ms:,} ms"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(value: float) -> str:
    """Return a number with three digits at most, such as `1.2M`."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
