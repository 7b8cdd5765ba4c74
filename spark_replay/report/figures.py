"""Which plots a page has: each with what it says in words, and its numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from spark_replay.report import plots
from spark_replay.report.plots import BAD, FIRST, SECOND, short

if TYPE_CHECKING:
    from spark_replay.comparison.report import Report
    from spark_replay.report.profile import Key, Partition, Profile

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the names of its columns, and rows of as many cells."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    @property
    def are_numbers(self) -> list[bool]:
        """Return of each column whether it holds numbers only, so that they are set flush right."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.head)
        return [all(cell is None or isinstance(cell, int | float) for cell in column) for column in columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot.

    Attributes:
        title: Its title.
        text: What it says, for those who don't see it too.
        table: Its numbers.
        image: The drawing as a URI, None where there is nothing to draw.
    """

    title: str
    text: str
    table: Table
    image: str | None = None


def draw_counts(found: Report) -> list[Figure]:
    """Draw where a validation found mismatches."""
    wrong = [kind for kind in found.counts if kind not in ("equal", "superseded")]
    by_partition = {number: sum(counts.get(kind, 0) for kind in wrong) for number, counts in found.by_partition.items()}
    if not sum(by_partition.values()):
        return []
    hit = {number: count for number, count in by_partition.items() if count}
    most = max(hit, key=lambda number: hit[number])
    numbers = range(max(len(found.ends), *(number + 1 for number in by_partition)))
    text = f"{_count(len(hit), 'partition')} of {len(numbers)}; most in partition {most}: {hit[most]:,}."
    image = plots.bars(
        [("mismatches", BAD, [by_partition.get(number, 0) for number in numbers])],
        numbers=numbers,
        x="partition",
        y="mismatches",
    )
    table = Table(("partition", "mismatches"), sorted(hit.items()))
    return [Figure(title="Mismatches by partition", text=text, table=table, image=image)]


def draw_log(found: Profile) -> list[Figure]:
    """Draw a log: what each partition holds, ages, rates, owners, and the keys that stand out."""
    if not any(part.records for part in found.partitions):
        return []
    return [
        _keys(found),
        _bytes(found),
        _records(found),
        _ages(found),
        *_rates(found),
        *_owners(found),
        _standing_out("Keys written most", "records", found.most_written, found),
        _standing_out("Keys with most bytes in the log", "log_bytes", found.largest, found),
    ]


def _keys(found: Profile) -> Figure:
    return _by_partition(
        found,
        title="Keys by partition",
        unit="keys",
        series=[("keys", FIRST, "keys"), ("expired, not removed yet", SECOND, "expired")],
        skew="keys",
    )


def _bytes(found: Profile) -> Figure:
    return _by_partition(
        found,
        title="Bytes of live keys by partition",
        unit="bytes",
        series=[("keys", SECOND, "key_bytes"), ("values", FIRST, "value_bytes")],
        skew="live_bytes",
    )


def _records(found: Profile) -> Figure:
    live = [part.records - part.tombstones - part.damaged for part in found.partitions]
    rest: list[tuple[str, str, str]] = [("tombstones", SECOND, "tombstones")]
    if any(part.damaged for part in found.partitions):
        rest.append(("damaged", BAD, "damaged"))
    return _by_partition(
        found, title="Records and tombstones by partition", unit="records", series=rest, skew="records", under=live
    )


def _by_partition(
    found: Profile,
    *,
    title: str,
    unit: str,
    series: Sequence[tuple[str, str, str]],
    skew: str,
    under: Sequence[int] | None = None,
) -> Figure:
    drawn = [(name, colour, [getattr(part, field) for part in found.partitions]) for name, colour, field in series]
    if under is not None:
        drawn.insert(0, ("values", FIRST, list(under)))
    numbers = [part.partition for part in found.partitions]
    image = plots.bars(drawn, numbers=numbers, x="partition", y=unit, in_bytes=unit == "bytes")
    columns = [values for _, _, values in drawn]
    return Figure(
        title=title,
        text=_skewed(found.partitions, skew, found.skew(skew), unit),
        table=Table(("partition", *(name for name, _, _ in drawn)), list(zip(numbers, *columns, strict=True))),
        image=image,
    )


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
    keys = [age.keys for age in found.ages]
    undated = sum(part.keys for part in found.partitions) - sum(keys)
    text = "Time since the last write of the keys that are there; each bar begins where the one above ends."
    if undated:
        text += f" {_count(undated, 'key')} without a timestamp are left out."
    rows = [(name, age.keys, age.live_bytes) for name, age in zip(names, found.ages, strict=True)]
    return Figure(
        title="Age of keys",
        text=text,
        table=Table(("age", "keys", "bytes"), rows),
        image=plots.ranges(names, keys, x="keys"),
    )


def _rates(found: Profile) -> list[Figure]:
    if not found.slots:
        return []
    most = max(found.slots, key=lambda slot: slot.records)
    text = (
        f"Records that the log still has, by their timestamps, in slots of {span(found.slot_ms)}. Most: "
        f"{most.records:,} from {moment(most.start_ms)}, {short(most.records * 1000 / found.slot_ms)} a second."
    )
    rows = [(moment(slot.start_ms), slot.records, slot.tombstones, slot.log_bytes) for slot in found.slots]
    return [
        Figure(
            title="Writes over time",
            text=text,
            table=Table(("from", "records", "tombstones", "bytes"), rows),
            image=plots.over_time(found.slots, found.slot_ms),
        )
    ]


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
    image = plots.owners(found.epochs, len(found.partitions))
    return [Figure(title="Owners over time (epochs)", text=text, table=Table(head, rows), image=image)]


def _standing_out(title: str, name: str, keys: Sequence[Key], found: Profile) -> Figure:
    counts = [getattr(key, name) for key in keys]
    total = sum(getattr(part, name) for part in found.partitions)
    unit = "bytes" if name == "log_bytes" else "records"
    share = sum(counts) / total if total else 0.0
    text = f"The first {len(keys)} have {share:.1%} of all {unit} in the log."
    rows = [(rank, key.key, key.partition, key.records, key.log_bytes) for rank, key in enumerate(keys, 1)]
    image = plots.bars(
        [(unit, FIRST, counts)], numbers=range(1, len(keys) + 1), x="rank", y=unit, in_bytes=unit == "bytes"
    )
    table = Table(("rank", "key", "partition", "records", "bytes in the log"), rows)
    return Figure(title=title, text=text, table=table, image=image if keys else None)


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
