"""What a validation found: counts, examples that name the cause, and how both are shown."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_replay.exports import Exports
from spark_replay.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import Row
    from rich.console import Console

MISMATCHES = ("missing", "extra", "different", "wrong_partition", "unstamped")
KINDS = ("equal", *MISMATCHES, "superseded")
_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One key that isn't equal on both sides.

    Attributes:
        partition: Where it was found.
        key: As text if it is printable UTF-8, else as base64 after `base64:`.
        cause: What is wrong, in words.
        log: `value`, `source_offset`, `epoch`, `expires_at_ms` and `offset` of the log's write, or None. A
            value longer than 200 bytes is cut.
        export: The same of the export, without an offset, or None.
    """

    partition: int
    key: str
    cause: str
    log: dict[str, Any] | None
    export: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a validation found.

    Attributes:
        changelog: The topic.
        app: The exports' app.
        store: The exports' store.
        counts: Keys by kind, see `spark_replay.validate`; under `unstamped` the log's damaged records.
        by_partition: The same for each partition that has keys.
        keys: How many keys the log holds at the exports' positions.
        records: How many of the log's records were read.
        seconds: How long it took.
        positions: The position each partition was compared at.
        ends: Where each partition's log ended.
        stale_copies: What other workers hold of a partition that one of them owns; not compared.
        partitions_without_export: Partitions that hold keys and that no worker exported.
        examples: Up to 10 of each kind.
    """

    changelog: str
    app: str
    store: str
    counts: Mapping[str, int]
    by_partition: Mapping[int, Mapping[str, int]]
    keys: int
    records: int
    seconds: float
    positions: Mapping[int, int]
    ends: Sequence[int]
    stale_copies: Sequence[str] = ()
    partitions_without_export: Sequence[int] = ()
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)

    @property
    def mismatches(self) -> int:
        """How many keys, or damaged records, aren't as they should be."""
        return sum(self.counts[kind] for kind in MISMATCHES)

    @property
    def totals(self) -> dict[str, int | float]:
        """The counts for a machine: each kind, `keys`, `mismatches`, `records` and `seconds`."""
        return {
            **{kind: self.counts[kind] for kind in KINDS},
            "keys": self.keys,
            "mismatches": self.mismatches,
            "records": self.records,
            "seconds": self.seconds,
        }


def report(rows: Sequence[Row], *, topic: Topic, exports: Exports, seconds: float) -> Report:
    """Make a report of the rows that `spark_replay.validate.summarise` gives."""
    by_partition: dict[int, Counter[str]] = {}
    examples: dict[str, list[Example]] = {}
    keys: Counter[int] = Counter()
    positions = {copy.partition: copy.changelog_offset for copy in exports.chosen}
    for row in sorted(
        rows,
        key=lambda row: (row["partition"], bytes(row["example"]["key"] or b"") if row["example"] else b""),
    ):
        partition, kind = row["partition"], row["kind"]
        keys[partition] += row["live"] or 0
        counts = by_partition.setdefault(partition, Counter())
        counts["unstamped"] += row["damaged"]
        if kind in KINDS and kind != "unstamped":
            counts[kind] += row["count"]
        if row["example"] is not None and len(examples.setdefault(kind, [])) < _EXAMPLES:
            examples[kind].append(_example(partition, kind, row["example"], held=partition in positions))
    total = sum(by_partition.values(), Counter())
    return Report(
        changelog=topic.name,
        app=exports.app,
        store=exports.store,
        counts={kind: total[kind] for kind in KINDS},
        by_partition={
            number: {kind: counts[kind] for kind in KINDS} for number, counts in sorted(by_partition.items())
        },
        keys=keys.total(),
        records=sum(row["records"] for row in rows),
        seconds=round(seconds, 3),
        positions=positions,
        ends=topic.ends,
        stale_copies=[str(copy) for copy in exports.stale],
        partitions_without_export=sorted(number for number, count in keys.items() if count and number not in positions),
        examples=examples,
    )


def show(found: Report, console: Console) -> None:
    """Print a report as a table a person reads."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=f"{found.changelog} against the exports of store {found.store}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("partition", "position", *KINDS):
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for number in sorted({*found.by_partition, *found.positions}):
        counts = found.by_partition.get(number, {})
        position = str(found.positions.get(number, "no export"))
        table.add_row(str(number), position, *(f"{counts.get(kind, 0):,}" for kind in KINDS))
    table.add_section()
    table.add_row("all", "", *(f"{found.counts[kind]:,}" for kind in KINDS))
    console.print(table)
    for line in _notes(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _notes(found: Report) -> list[str]:
    notes = [f"no export holds partition {number}, which has keys" for number in found.partitions_without_export]
    notes += [f"stale copy, not compared: {copy}" for copy in found.stale_copies]
    for kind, examples in found.examples.items():
        for example in examples:
            notes.append(f"{kind}: partition {example.partition} key {example.key}: {example.cause}")
            notes += [f"    {side}: {_told(held)}" for side, held in (("log", example.log), ("export", example.export))]
    return notes


def _told(held: Mapping[str, Any] | None) -> str:
    return "nothing" if held is None else ", ".join(f"{name} {value}" for name, value in held.items())


def _example(partition: int, kind: str, row: Row, *, held: bool) -> Example:
    return Example(
        partition=partition,
        key=printable(row["key"]),
        cause=_cause(partition, kind, row, held=held),
        log=_side(row["log"]),
        export=_side(row["export"]),
    )


def _cause(partition: int, kind: str, row: Row, *, held: bool) -> str:
    causes = {
        "missing": "not in the export" if held else "no export holds its partition",
        "extra": _why_extra(row),
        "different": f"{', '.join(row['differs'])} differ{'s' if len(row['differs']) == 1 else ''}",
        "wrong_partition": _why_displaced(partition, row),
        "unstamped": f"the record at offset {row['damaged_offset']} has no key or no known stamp",
        "superseded": f"the log only has its later write at offset {row['later_offset']}: can't be compared",
    }
    return causes[kind]


def _why_extra(row: Row) -> str:
    if row["export_rows"] > 1:
        return f"in the export {row['export_rows']} times"
    if row["log"] is not None:
        return f"deleted in the log at offset {row['log']['offset']}"
    return "not in the log"


def _why_displaced(partition: int, row: Row) -> str:
    if row["home"] is not None and row["home"] != partition:
        sides = " and ".join(side for side in ("log", "export") if row[side] is not None)
        return f"belongs in partition {row['home']}, found in {partition} in the {sides}"
    return f"the export's row says partition {row['claimed']}, its file is of {partition}"


def _side(side: Row | None) -> dict[str, Any] | None:
    if side is None:
        return None
    held: dict[str, Any] = side.asDict()
    return held | {"value": printable(held["value"])}


def printable(raw: bytes | bytearray | None) -> str:
    """Give bytes as text if they are printable UTF-8, else as base64 after `base64:`; `null` for None."""
    if raw is None:
        return "null"
    try:
        text = bytes(raw).decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not raw):
        return text
    return f"base64:{base64.b64encode(raw).decode()}"
