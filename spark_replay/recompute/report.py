"""The result of a recompute: counts, examples, and how both are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_replay.errors import RecomputeError
from spark_replay.printing import new_table, row_key, say, side, side_line
from spark_replay.recompute.plan import Recompute
from stores._core.printable import counted
from stores._core.printable import printable as escaped

if TYPE_CHECKING:
    from pyspark.sql import Row
    from rich.console import Console

DIFFERENCES = ("different", "only_recomputed", "only_changelog")
KINDS = ("equal", *DIFFERENCES, "unknown", "superseded")
FINE = ("equal",)
_REASONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key that isn't equal on both sides.

    Attributes:
        store, partition: Where it is.
        key: As text if it is printable UTF-8, else as base64 after `base64:`. Of windows with their start.
        kind: See `spark_replay.recompute.recompute`.
        log: `value`, `source_offset`, `expires_at_ms`, `epoch` and `offset` of the changelog's write, and `input`, the
            place of the input that `source_offset` is of, if the actor has several; or None. A value longer than 200
            bytes is cut.
        recomputed: `value`, `source_offset`, `expires_at_ms` and, likewise, `input` of the handlers' write, or None.
        unknown: What the input doesn't tell of it, or None.
    """

    store: str
    partition: int
    key: str
    kind: str
    log: dict[str, Any] | None
    recomputed: dict[str, Any] | None
    unknown: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The result of a recompute.

    Attributes:
        app, actor, input: What was replayed; several inputs are separated by commas.
        counts: Keys by kind.
        by_store: The same for each store.
        by_partition: The same for each partition that has keys.
        records: How many records of the input were replayed.
        unknown_events: How often something happened that the input doesn't tell, by reason, the 10 most frequent.
        seconds: How long it took.
        partitions: What was read of each partition: `topic`, `partition`, `start`, `end`, `end_by`.
        differences: Up to 10 of each store and kind that isn't equal.
    """

    app: str
    actor: str
    input: str
    counts: Mapping[str, int]
    by_store: Mapping[str, Mapping[str, int]]
    by_partition: Mapping[int, Mapping[str, int]]
    records: int
    unknown_events: Mapping[str, int]
    seconds: float
    partitions: Sequence[Mapping[str, Any]]
    differences: Sequence[Difference]

    @property
    def mismatches(self) -> int:
        """The number of keys that differ, without those that differ for a harmless reason."""
        return sum(self.counts[kind] for kind in DIFFERENCES)

    @property
    def totals(self) -> dict[str, int | float]:
        """The counts for a machine: each kind, `differences`, `records`, `unknown_events` and `seconds`."""
        return {
            **self.counts,
            "differences": self.mismatches,
            "records": self.records,
            "unknown_events": sum(self.unknown_events.values()),
            "seconds": self.seconds,
        }


def recomputed(
    plan: Recompute,
    *,
    told: Sequence[Row],
    groups: Sequence[Row],
    examples: Sequence[Row],
    seconds: float,
    windowed: Collection[str] = (),
) -> Recomputed:
    """Make a report of the counts in `groups` by store, partition and kind; `windowed` are the window stores.

    Raises:
        RecomputeError: A partition was replayed in parts.
    """
    done = [row for row in told if row["reason"] is None]
    if any(row["count"] > 1 for row in done):
        raise RecomputeError(f"Spark split a partition of {plan.input}: leave out settings that make it do so")
    reasons: Counter[str] = Counter()
    for row in told:
        if row["reason"] is not None:
            reasons[row["reason"]] += row["count"]
    by_store: dict[str, Counter[str]] = {store: Counter() for store in plan.changelogs}
    by_partition: dict[int, Counter[str]] = {}
    for row in groups:
        by_store[row["store"]][row["kind"]] += row["count"]
        by_partition.setdefault(row["partition"], Counter())[row["kind"]] += row["count"]
    return Recomputed(
        app=plan.module,
        actor=plan.actor,
        input=plan.input,
        counts=_all(sum(by_store.values(), Counter())),
        by_store={store: _all(counts) for store, counts in by_store.items()},
        by_partition={number: _all(counts) for number, counts in sorted(by_partition.items())},
        records=sum(row["records"] for row in done),
        unknown_events=dict(reasons.most_common(_REASONS)),
        seconds=round(seconds, 3),
        partitions=plan.summary["partitions"],
        differences=[_difference(row, has_windows=row["store"] in windowed) for row in examples],
    )


def show(found: Recomputed, console: Console) -> None:
    """Print a report as a table a person reads."""
    from rich.text import Text

    table = new_table(
        f"{found.input} through actor {found.actor} of {found.app}, against its changelogs", "store", *KINDS
    )
    table.columns[0].justify = "left"
    for store, counts in found.by_store.items():
        table.add_row(Text(escaped(store)), *(f"{counts[kind]:,}" for kind in KINDS))
    console.print(table)
    for line in _notes(found):
        say(console, line)


def _notes(found: Recomputed) -> list[str]:
    parts = [part for part in found.partitions if part["end_by"] == "changelog"]
    by_changelog = [f"{part['topic']}[{part['partition']}]" for part in parts]
    notes = [f"{counted(found.records, 'record')} replayed"]
    if by_changelog:
        numbers = ", ".join(by_changelog)
        notes.append(f"no committed offset of {numbers}: replayed up to the last input that the changelogs name")
    notes += [f"not in the input, {counted(count, 'time')}: {reason}" for reason, count in found.unknown_events.items()]
    for difference in found.differences:
        why = "" if difference.unknown is None else f" ({difference.unknown})"
        notes.append(
            f"{difference.kind}: store {difference.store} partition {difference.partition} key {difference.key}{why}"
        )
        notes += [f"    log: {side_line(difference.log)}", f"    recomputed: {side_line(difference.recomputed)}"]
    return notes


def _difference(row: Row, *, has_windows: bool) -> Difference:
    unknown = row["unknown"]
    return Difference(
        store=row["store"],
        partition=row["partition"],
        key=row_key(row["key"], has_windows=has_windows),
        kind=row["kind"],
        log=side(row["log"], has_windows=has_windows),
        recomputed=side(row["recomputed"], has_windows=has_windows),
        unknown=None if unknown is None else f"input offset {unknown['source_offset']}: {unknown['reason']}",
    )


def _all(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: counts.get(kind, 0) for kind in KINDS}
