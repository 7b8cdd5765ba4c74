"""Which cause which facts give, case by case: a partition for each, no broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from spark_replay.comparison.causes import name_causes
from spark_replay.comparison.held import Held, Part
from spark_replay.comparison.judging import FINE, held_point, judge, logged
from spark_replay.comparison.report import _fact
from spark_replay.fold.fold import last_writes
from spark_replay.sources.brokers.topic import Topic
from stores._core.record import encode_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "partition int, offset bigint, key binary, value binary, metadata binary"
HELD = (
    "partition int, claimed int, key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, "
    "input int"
)
NOW_MS = 1_000
END = 100


@dataclass(frozen=True)
class Write:
    """A write by an owner for an input; of the key in question unless another is named."""

    epoch: int
    source_offset: int
    value: str | None
    expires_at_ms: int = 0
    key: str = "key"
    input: int | None = None

    def row(self, partition: int, offset: int) -> tuple[Any, ...]:
        metadata = encode_metadata(self.epoch, self.source_offset, self.expires_at_ms, input=self.input)
        value = None if self.value is None else self.value.encode()
        return (partition, offset, self.key.encode(), value, metadata)


@dataclass(frozen=True)
class Case:
    """A log by offset, what is held of the key, and the causes if the log is complete and if it was compacted."""

    name: str
    log: dict[int, Write]
    held: Write | None
    complete: str
    compacted: str
    others: tuple[tuple[int, Write], ...] = ()
    contested: bool = False


def other(epoch: int, source_offset: int, *, key: str = "other", input: int | None = None) -> Write:
    return Write(epoch, source_offset, "x", key=key, input=input)


OLD = Write(3, 50, "old")
SECOND = Write(3, 50, "old", input=1)
CASES = [
    Case(
        "the newer owner's offsets are of another input",
        {1: Write(5, 3, "x", key="other", input=1), 2: Write(5, 2, "new", input=1)},
        OLD,
        "never_committed",
        "committed_write_missing",
    ),
    Case(
        "the newer owner had come less far in another input",
        {1: other(5, 3, input=0), 2: Write(5, 4, "new", input=0)},
        SECOND,
        "never_committed",
        "committed_write_missing",
    ),
    Case(
        "the newer owner has the first input only",
        {1: other(5, 3), 2: other(5, 4, key="third"), 3: Write(5, 4, "new")},
        SECOND,
        "never_committed",
        "committed_write_missing",
    ),
    Case(
        "the newer owner had the same one of two inputs",
        {1: other(5, 90, input=0), 2: other(5, 49, key="third", input=1), 3: Write(5, 51, "new", input=1)},
        SECOND,
        "stale_owner",
        "stale_owner",
    ),
    Case(
        "the same offset of another input",
        {1: Write(3, 50, "log", input=0)},
        SECOND,
        "never_committed",
        "committed_write_missing",
    ),
    Case(
        "a higher offset of another input says nothing",
        {1: Write(3, 49, "log", input=0)},
        SECOND,
        "never_committed",
        "committed_write_missing",
    ),
    Case(
        "newer than all of the same one of two inputs",
        {1: Write(3, 49, "log", input=1)},
        SECOND,
        "never_committed",
        "never_committed",
    ),
    Case(
        "the newer owner had the same input",
        {1: other(5, 50), 2: Write(5, 50, "new")},
        OLD,
        "stale_owner",
        # its timer may carry the input before its first one, and the older owner's write of that may be gone
        "committed_write_missing",
    ),
    Case(
        "the newer owner had an earlier input",
        {1: other(5, 49), 2: Write(5, 51, "new")},
        OLD,
        "stale_owner",
        "stale_owner",
    ),
    Case(
        "the newer owner came later",
        {1: other(5, 51), 2: Write(5, 51, "new")},
        OLD,
        "never_committed",
        "committed_write_missing",
    ),
    Case(
        "the older write was committed before the owner changed",
        {0: OLD, 1: other(5, 51), 2: Write(5, 51, "new")},
        OLD,
        "committed_write_missing",
        "committed_write_missing",
        others=((0, OLD),),
    ),
    Case("deleted since", {2: Write(3, 51, None)}, OLD, "never_committed", "deleted_key_back"),
    Case("deleted since, and seen", {1: OLD, 2: Write(3, 51, None)}, OLD, "deleted_key_back", "deleted_key_back"),
    Case(
        "expired and removed",
        {1: Write(3, 50, "old", 900), 2: Write(3, 51, None)},
        Write(3, 50, "old", 900),
        "expired_key_held",
        "expired_key_held",
    ),
    Case("expired, and nothing is left", {}, Write(3, 50, "old", 900), "never_committed", "expired_key_held"),
    Case("nothing is left", {}, OLD, "never_committed", "unknown"),
    Case("two copies go on", {}, OLD, "overlapping_owners", "overlapping_owners", contested=True),
    Case("newer than all", {1: Write(3, 49, "log")}, OLD, "never_committed", "never_committed"),
    Case(
        "newer than all below the position",
        {1: Write(3, 49, "log"), END: Write(3, 60, "later")},
        OLD,
        "never_committed",
        "unknown",
    ),
    Case(
        "aborted",
        {1: Write(3, 49, "log")},
        OLD,
        "aborted_write",
        "aborted_write",
        others=((2, OLD),),
    ),
    Case("aborted, another value", {}, OLD, "never_committed", "unknown", others=((2, Write(3, 50, "?")),)),
    Case("committed behind the position", {END: OLD, 1: Write(3, 49, "log")}, OLD, *["ahead_of_position"] * 2),
    Case("same metadata", {1: Write(3, 50, "log")}, OLD, "different_value", "different_value"),
    Case("same metadata, other expiry", {1: Write(3, 50, "old", 2_000)}, OLD, "different_value", "different_value"),
    Case("not held", {1: OLD}, None, "committed_write_missing", "committed_write_missing"),
    Case(
        "the last write is of an older owner",
        {1: other(5, 49), 2: OLD},
        Write(5, 49, "new"),
        "overlapping_owners",
        "overlapping_owners",
    ),
    Case("not held, and before the newer owner", {1: OLD, 2: other(5, 51)}, None, *["committed_write_missing"] * 2),
    Case(
        "committed before a timer of the newer owner",
        {0: OLD, 1: other(5, 50), 2: Write(5, 51, "new")},
        OLD,
        "committed_write_missing",
        "committed_write_missing",
    ),
    Case("not held, and of an older owner", {1: other(5, 49), 2: OLD}, None, *["overlapping_owners"] * 2),
]


def judged(spark: SparkSession, rows: DataFrame) -> DataFrame:
    kept = [
        (number, number, b"key", held.value, held.source_offset, held.epoch, held.expires_at_ms, held.input)
        for number, held in enumerate(case.held for case in CASES)
        if held is not None
    ]
    # the other keys are held as they should be
    fine = [
        (number, number, write.key.encode(), write.value, write.source_offset, write.epoch, 0, write.input)
        for number, case in enumerate(CASES)
        for write in case.log.values()
        if write.key != "key"
    ]
    encoded = [(*row[:3], str(row[3]).encode(), *row[4:]) for row in kept + fine]
    held = Held(
        kind="exports",
        where="",
        app="",
        store="",
        placement="task",
        partition_count=len(CASES),
        parts=tuple(part(number) for number in range(len(CASES))),
        stale=(),
        read=lambda session: session.createDataFrame(encoded, HELD),
    )
    ends = (2**62,) * len(CASES)
    point = held_point(Topic("log", (0,) * len(CASES), ends, ends), held)
    return judge(logged(last_writes(rows, point.before)), point, held, held.read(spark))


def part(number: int) -> Part:
    return Part(partition=number, changelog_offset=END, as_of_ms=NOW_MS, epoch=9, topic_id="", where="", owner="worker")


def frame(spark: SparkSession, records: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(records), ROWS)


@pytest.mark.parametrize(
    "is_complete",
    [pytest.param(True, id="complete"), pytest.param(False, id="compacted", marks=pytest.mark.nightly)],
)
def test_causes(spark: SparkSession, is_complete: bool):
    log = [write.row(number, offset) for number, case in enumerate(CASES) for offset, write in case.log.items()]
    others = [write.row(number, offset) for number, case in enumerate(CASES) for offset, write in case.others]
    rows, everything = frame(spark, log), frame(spark, log + others)
    starts, ends = (0 if is_complete else 1,) * len(CASES), (1,) * len(CASES)
    contested = [number for number, case in enumerate(CASES) if case.contested]
    suspects = judged(spark, rows).where(f"kind not in {FINE}")
    found = name_causes(suspects, rows, everything, Topic("t", starts, ends, ends), contested).collect()
    assert {bytes(row["key"]) for row in found} == {b"key"}
    named = {CASES[row["partition"]].name: row["cause"] for row in found}
    assert named == {case.name: case.complete if is_complete else case.compacted for case in CASES}
    told = {CASES[row["partition"]].name: _fact(row) for row in found}
    assert told["the newer owner had an earlier input"] == (
        "the held value is of epoch 3 and input 50; epoch 5 had handled input 49"
    )
    assert told["the newer owner had the same one of two inputs"] == (
        "the held value is of epoch 3 and offset 50 of input 1; epoch 5 had handled offset 49 of input 1"
    )
