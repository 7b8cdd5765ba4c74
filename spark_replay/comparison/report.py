"""The result of a validation: counts, and examples that name the cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_replay.comparison.causes import CAUSES, DIFFERENCES, NOT_JUDGED
from spark_replay.comparison.held import Held
from spark_replay.comparison.invariants import Finding, finding
from spark_replay.printing import input_offset, row_key, side
from spark_replay.sources.brokers.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import Row

MISMATCHES = ("missing", "extra", "different", "wrong_partition", "without_metadata")
KINDS = ("equal", *MISMATCHES, "superseded", "behind_position")
_FACTS = {
    "overlapping_owners": (
        "the log's write of epoch {log[epoch]} at offset {log[offset]} lies behind epoch {overlap[epoch]}, which began "
        "at offset {overlap[first_offset]}"
    ),
    "aborted_write": "the record at offset {aborted_at} has the held value, and isn't committed",
    "ahead_of_position": "the held value was committed at offset {held_at}, behind the position",
    "stale_owner": (
        "the held value is of epoch {export[epoch]} and {held_input}; epoch {newer[epoch]} had handled {newer_input}"
    ),
    "different_value": "the write with this metadata is at offset {origin_at}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One key that isn't equal on both sides.

    Attributes:
        partition: Where it was found.
        key: As text if it is printable UTF-8, else as base64 after `base64:`. Of windows with their start.
        cause: Why, a name of `spark_replay.comparison.causes.CAUSES`; `superseded` where it is unknown.
        seen: What was seen, in words.
        log: `value`, `source_offset`, `epoch`, `expires_at_ms` and `offset` of the log's write, and `input`, the place
            of the input that `source_offset` is of, if the actor has several; or None. A value longer than 200 bytes
            is cut. In a comparison of two states the first one's.
        export: The same of what is held, without an offset, or None.
    """

    partition: int
    key: str
    cause: str
    seen: str = ""
    log: dict[str, Any] | None
    export: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a validation, in plain values, so that it can be shown in any form.

    Attributes:
        changelog: The topic.
        app: The app, empty if unknown.
        store: The store, empty if unknown.
        counts: Keys by kind, see `spark_replay.comparison.validate`; `without_metadata` counts damaged records, and
            `behind_position` records that aren't compared.
        by_partition: The same for each partition that has keys.
        keys: How many keys the log holds at the positions.
        records: How many of the log's records were read.
        seconds: How long it took.
        positions: The position each partition was compared at.
        ends: Where each partition's log ended.
        against: What the log was compared with, for example `exports in /tmp/exports`; empty if with nothing.
        causes: Keys by cause, see `spark_replay.comparison.causes`; only causes that were found.
        causes_by_partition: The same for each partition that has any.
        findings: The results of the checks that were made, see `spark_replay.comparison.invariants`.
        over: Keys that are held, had expired, and have no tombstone yet: the background removes them. No mismatch.
        stale_copies: What other workers hold of a partition that one of them owns; not compared.
        partitions_without_export: Partitions with keys that the compared state lacks.
        notes: Further facts that the reader needs.
        examples: By kind, up to 10 of each cause.
        unanswered: Partitions whose state couldn't be read, or isn't of the log, each with the reason; not compared.
    """

    changelog: str
    app: str = ""
    store: str = ""
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    by_partition: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    keys: int = 0
    records: int = 0
    seconds: float
    positions: Mapping[int, int] = field(default_factory=dict)
    ends: Sequence[int]
    against: str = ""
    causes: Mapping[str, int] = field(default_factory=dict)
    causes_by_partition: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    over: int = 0
    stale_copies: Sequence[str] = ()
    partitions_without_export: Sequence[int] = ()
    notes: Sequence[str] = ()
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    unanswered: Mapping[int, str] = field(default_factory=dict)

    @property
    def mismatches(self) -> int:
        """The number of keys, or damaged records, that differ."""
        return sum(self.counts[kind] for kind in MISMATCHES)

    @property
    def compared(self) -> int:
        """The number of keys, or damaged records, that could be judged."""
        return self.counts["equal"] + self.mismatches

    @property
    def violations(self) -> int:
        """The number of records that break an invariant of the log."""
        return sum(finding.count for finding in self.findings)

    @property
    def is_clean(self) -> bool:
        """True if there is neither a mismatch nor a violation."""
        return not self.mismatches and not self.violations

    @property
    def totals(self) -> dict[str, Any]:
        """The counts for a machine: those of the fields, of each kind of key, and of each check of the log."""
        return {
            **{kind: self.counts[kind] for kind in KINDS},
            "keys": self.keys,
            "mismatches": self.mismatches,
            "violations": self.violations,
            "records": self.records,
            "seconds": self.seconds,
            "causes": dict(self.causes),
            "checks": {finding.check: finding.count for finding in self.findings},
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts and examples from Spark.

    Attributes:
        kinds: Rows of `partition`, `kind`, `count`, and the sums `records`, `damaged`, `held` (rows), `live`,
            `over`.
        causes: Rows of `partition`, `cause`, `count`.
        examples: Rows as `spark_replay.comparison.causes.name_causes` returns them.
    """

    kinds: Sequence[Row]
    causes: Sequence[Row] = ()
    examples: Sequence[Row] = ()


def report(
    summary: Summary,
    *,
    topic: Topic,
    held: Held,
    seconds: float,
    findings: Sequence[Finding] = (),
    has_windows: bool = False,
    behind: Mapping[int, int] | None = None,
) -> Report:
    """Make a report of what `spark_replay.comparison.validate` gives.

    `behind` is the number of records behind the position of each partition.
    """
    by_partition: dict[int, Counter[str]] = {}
    keys: Counter[int] = Counter()
    for row in summary.kinds:
        keys[row["partition"]] += row["live"] or 0
        counts = by_partition.setdefault(row["partition"], Counter())
        counts["without_metadata"] += row["damaged"]
        if row["kind"] in KINDS and row["kind"] != "without_metadata":
            counts[row["kind"]] += row["count"]
    for number, count in (behind or {}).items():
        by_partition.setdefault(number, Counter())["behind_position"] += count
    positions = held.positions
    return Report(
        changelog=topic.name,
        app=held.app,
        store=held.store,
        **kind_counts(by_partition),
        **cause_counts(summary.causes),
        keys=keys.total(),
        records=sum(row["records"] for row in summary.kinds),
        seconds=round(seconds, 3),
        positions=positions,
        ends=topic.ends,
        against=f"{held.kind} in {held.where}",
        findings=(*findings, *_copies(held)),
        over=sum(row["over"] for row in summary.kinds),
        stale_copies=[str(copy) for copy in held.stale],
        partitions_without_export=sorted(number for number, count in keys.items() if count and number not in positions),
        examples=named_examples(summary.examples, _seen, has_windows=has_windows),
        unanswered=held.unanswered,
    )


def kind_counts(by_partition: Mapping[int, Counter[str]]) -> dict[str, Any]:
    """Return the fields of a report with the counts of kinds."""
    total = sum(by_partition.values(), Counter())
    return {
        "counts": {kind: total[kind] for kind in KINDS},
        "by_partition": {
            number: {kind: counts[kind] for kind in KINDS} for number, counts in sorted(by_partition.items())
        },
    }


def cause_counts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the fields of a report with the counts of causes; rows without one are left out."""
    causes: dict[int, Counter[str]] = {}
    for row in rows:
        if row["cause"] not in (None, NOT_JUDGED):
            causes.setdefault(row["partition"], Counter())[row["cause"]] += row["count"]
    return {
        "causes": _in_order(sum(causes.values(), Counter())),
        "causes_by_partition": {number: _in_order(counts) for number, counts in sorted(causes.items())},
    }


def _in_order(counts: Mapping[str, int]) -> dict[str, int]:
    return {cause: counts[cause] for cause in (*CAUSES, *DIFFERENCES) if counts.get(cause)}


def _copies(held: Held) -> list[Finding]:
    pairs = held.contested()
    if not pairs:
        return []
    counts = Counter(newer.partition for newer, _ in pairs)
    return [finding("copies", counts, (f"{older} continues behind {newer}" for newer, older in pairs))]


def named_examples(rows: Sequence[Row], seen: Callable[[Row], str], *, has_windows: bool) -> dict[str, list[Example]]:
    """Return examples by kind of rows with both sides, `log` and `export`; `seen` says in words what was seen."""
    examples: dict[str, list[Example]] = {}
    for row in rows:
        example = Example(
            partition=row["partition"],
            key=row_key(row["key"], has_windows=has_windows),
            cause=row["cause"],
            seen=seen(row),
            log=side(row["log"], has_windows=has_windows),
            export=side(row["export"], has_windows=has_windows),
        )
        examples.setdefault(row["kind"], []).append(example)
    return {kind: examples[kind] for kind in KINDS if kind in examples}


def _seen(row: Row) -> str:
    """Describe the difference: the kind first, then the fact that decides the cause."""
    kind = row["kind"]
    seen = {
        "missing": "not in the export" if row["cause"] != "partition_not_held" else "no export holds its partition",
        "extra": _extra(row),
        "different": differing(row["differs"]),
        "wrong_partition": _displaced(row),
        "without_metadata": f"the record at offset {row['damaged_offset']} has no key or no known write metadata",
        "superseded": f"the log only has its later write at offset {row['later_offset']}: can't be compared",
    }
    fact = _fact(row)
    return f"{seen[kind]}; {fact}" if fact else seen[kind]


def differing(names: Sequence[str]) -> str:
    """Return in words that fields differ."""
    return f"{', '.join(names)} differ{'s' if len(names) == 1 else ''}"


def _fact(row: Row) -> str:
    if row["cause"] == "overlapping_owners" and row["overlap"] is None:
        return "two copies of the partition claim to be the owner's"
    if row["cause"] in ("deleted_key_back", "committed_write_missing") and row["export"] is not None:
        older = "the held value is older"
        return older if row["held_at"] is None else f"the held value was committed at offset {row['held_at']}"
    facts = row.asDict(recursive=True)
    if row["cause"] == "stale_owner":
        place = row["newer"]["input"] if row["newer"]["has_inputs"] else None
        facts["held_input"] = input_offset(row["export"]["source_offset"], row["export"]["input"])
        facts["newer_input"] = input_offset(row["newer"]["first_source"], place)
    return _FACTS.get(row["cause"], "").format(**facts)


def _extra(row: Row) -> str:
    if row["export_rows"] > 1:
        return f"in the export {row['export_rows']} times"
    if row["log"] is not None:
        return f"deleted in the log at offset {row['log']['offset']}"
    return "not in the log" if row["held_at"] is None else "deleted in the log"


def _displaced(row: Row) -> str:
    partition = row["partition"]
    if row["home"] is not None and row["home"] != partition:
        sides = " and ".join(side for side in ("log", "export") if row[side] is not None)
        return f"belongs in partition {row['home']}, found in {partition} in the {sides}"
    return f"the export's row says partition {row['claimed']}, its file is of {partition}"
