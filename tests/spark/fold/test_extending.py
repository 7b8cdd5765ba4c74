"""A rebuild from an earlier one, against a rebuild from the start of the log."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark_replay import (
    LogTooShortError,
    PointError,
    ReadError,
    ReplayError,
    TargetError,
    WrongTopicError,
    kafka,
    read_rebuild,
    validate_exports,
    write_rebuild,
)
from spark_replay.fold import extending, rebuilt
from spark_replay.fold.rebuilt import SUMMARY, read_summary
from spark_replay.sources import folders, staging
from spark_replay.sources.base import RECORDS, Source
from spark_replay.sources.brokers.topic import Span, Topic
from spark_replay.sources.columns import by_partition
from spark_replay.sources.folders import Folder
from stores._core.manifest import with_crc32
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.examples import examples
from tests.kafka.helpers import ROOT
from tests.spark.fold.test_windows import history
from tests.spark.helpers import NOW_MS, PARTITIONS, Export, Log, Write, append, home, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Record = tuple[int, int, bytes | None, bytes | None, None, list[tuple[str, bytes]] | None]
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
COLUMNS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(HEADER)),
    ]
)
"""The columns of `RECORDS`."""
SEEDS = range(examples(4))
STEPS = 3


@dataclass(frozen=True)
class MemorySource(Source):
    """A log that doesn't change, in memory; compaction has been at what lies below `cleaned`."""

    spark: SparkSession = field(repr=False)
    log: list[Record]
    ends: tuple[int, ...]
    cleaned: int = 0
    deletes: bool = False
    topic_id: str = "id"
    topic: str = "app--store-changelog"

    def describe(self) -> Topic:
        spans = tuple(
            (Span(0, min(self.cleaned, end), exact=False), Span(min(self.cleaned, end), end, exact=True))
            for end in self.ends
        )
        return Topic(
            self.topic, (0,) * len(self.ends), self.ends, self.ends, self.topic_id, spans=spans, deletes=self.deletes
        )

    def records(self, topic: Topic) -> DataFrame:
        offset = F.col("offset")
        columns = zip(*self.log, strict=True) if self.log else [[]] * len(COLUMNS)
        # by Arrow: of Python's rows Spark makes a job, in a process of its own
        rows = self.spark.createDataFrame(pa.table([*map(list, columns)], schema=COLUMNS), RECORDS)
        return rows.where((offset >= by_partition(topic.starts)) & (offset < by_partition(topic.ends)))

    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        raise NotImplementedError

    def compacted(self, below: int) -> MemorySource:
        """Return the log without the records below an offset that a later one of their key follows below it."""
        last = {(record[0], record[2]): record[1] for record in self.log if record[1] < below}
        log = [record for record in self.log if record[1] >= below or last[record[0], record[2]] == record[1]]
        return replace(self, log=log, cleaned=below)

    def __str__(self) -> str:
        return "a log in memory"


def plain_log(spark: SparkSession, chance: random.Random) -> MemorySource:
    """Committed records: tombstones, expiries, damage, and gaps where transactions end or were aborted."""
    log: list[Record] = []
    ends = []
    for number in range(3):
        offset = 0
        for _ in range(chance.randint(0, 60)):
            offset += chance.choice([0, 0, 0, 1, 7])
            value = None if chance.random() < 0.25 else chance.randbytes(chance.randint(0, 5))
            expires = chance.choice([0, 0, *(NOW_MS + step for step in range(STEPS + 1))])
            headers = [(METADATA_HEADER, encode_metadata(3, offset, 0 if value is None else expires))]
            key = None if chance.random() < 0.02 else b"key-%d" % chance.randint(0, 12)
            log.append((number, offset, key, value, None, None if chance.random() < 0.05 else headers))
            offset += 1
        ends.append(offset + chance.randint(0, 2))
    return MemorySource(spark, log, tuple(ends))


def windowed_log(spark: SparkSession, chance: random.Random) -> MemorySource:
    """What workers wrote of window stores and joins, one in each partition."""
    histories = [history(chance) for _ in range(4)]
    log: list[Record] = [
        (number, record.offset, record.key, record.value, None, list(record.headers))
        for number, one in enumerate(histories)
        for record in one.log
    ]
    return MemorySource(spark, log, tuple(one.log[-1].offset + 1 for one in histories), deletes=True)


def point(offsets: Sequence[int]) -> str:
    return "offset:" + ",".join(f"{number}={offset}" for number, offset in enumerate(offsets))


def rows(spark: SparkSession, folder: Path | str) -> list[Any]:
    frame = read_rebuild(spark, folder)
    return sorted((tuple(row) for row in frame.select(*sorted(frame.columns)).collect()), key=repr)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [plain_log, pytest.param(windowed_log, marks=pytest.mark.nightly)])
def test_a_rebuild_from_an_earlier_one_equals_one_from_the_start(
    spark: SparkSession,
    tmp_path: Path,
    seed: int,
    make: Callable[[SparkSession, random.Random], MemorySource],
    monkeypatch: pytest.MonkeyPatch,
):
    chance = random.Random(seed)
    # layers of few rows, that are put together in the middle of the chain
    monkeypatch.setattr(extending, "MOST_LAYERS", chance.randint(1, STEPS))
    monkeypatch.setattr(extending, "LARGEST_SHARE", chance.choice([0, 1]))
    source = make(spark, chance)
    offsets = [[chance.randint(0, end) for end in source.ends] for _ in range(STEPS)]
    steps = list(zip(*(sorted(of) for of in zip(*offsets, strict=True)), strict=True))
    base: Path | None = None
    for number, before in enumerate([*steps, source.ends]):
        if chance.random() < 0.4:
            source = source.compacted(max(source.cleaned, chance.randint(0, max(source.ends))))
        options: dict[str, Any] = {"as_of": point(before), "as_of_ms": NOW_MS + number}
        whole = write_rebuild(source, to=tmp_path / f"whole-{number}", **options)
        if base is not None and read_summary(base).unknown:
            with pytest.raises(TargetError, match="keys whose state at its point is unknown"):
                write_rebuild(source, to=tmp_path / "refused", base=base, **options)
            base = None
        done = write_rebuild(source, to=tmp_path / f"{number}", base=base, **options)
        base = tmp_path / f"{number}"
        assert rows(spark, base) == rows(spark, tmp_path / f"whole-{number}"), number
        assert (done.keys, done.unknown, done.partitions) == (whole.keys, whole.unknown, whole.partitions)
        assert done.undecodable is None


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> MemorySource:
    return plain_log(spark, random.Random(5))


@pytest.fixture(scope="module")
def middle(log: MemorySource) -> list[int]:
    return [end * 3 // 4 for end in log.ends]


@pytest.fixture(scope="module")
def original(log: MemorySource, middle: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "base"
    write_rebuild(log, to=folder, as_of=point(middle), as_of_ms=NOW_MS)
    return folder


@pytest.fixture
def base(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "base")


def a_file(folder: Path) -> Path:
    return max(folder.rglob("*.parquet"), key=lambda file: file.stat().st_size)


def flip(folder: Path) -> None:
    content = bytearray(a_file(folder).read_bytes())
    content[len(content) // 2] ^= 1
    a_file(folder).write_bytes(content)


def lose(folder: Path) -> None:
    a_file(folder).unlink()


def add(folder: Path) -> None:
    shutil.copy(a_file(folder), a_file(folder).with_name("more.parquet"))


def change(folder: Path, **fields: Any) -> None:
    file = folder / SUMMARY
    file.write_text(json.dumps(with_crc32(json.loads(file.read_text()) | fields)))


def flip_a_number(folder: Path) -> None:
    file = folder / SUMMARY
    last_digit = re.compile(r'("end_offset": \d*)(\d)')
    file.write_text(last_digit.sub(lambda end: f"{end[1]}{int(end[2]) ^ 1}", file.read_text()))


def cut_off(folder: Path) -> None:
    file = folder / SUMMARY
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, r"parquet of the rebuild isn't what was written"),
        (lose, r"parquet is missing from the rebuild"),
        (add, r"more.parquet isn't one of the rebuild's files"),
        (cut_off, r"is no rebuild: its _rebuild.json can't be read"),
        (flip_a_number, r"is no rebuild: its _rebuild.json can't be read \(its CRC-32 is \d+ and was \d+\)"),
        (lambda folder: change(folder, version=2), r"is a rebuild of format 2, this release reads format 1"),
    ],
)
def test_a_damaged_rebuild_is_neither_read_nor_gone_on_from(
    spark: SparkSession, log: MemorySource, base: Path, damage: Callable[[Path], None], text: str
):
    damage(base)
    with pytest.raises(ReadError, match=text):
        read_rebuild(spark, base)
    with pytest.raises(ReadError, match=text):
        write_rebuild(log, to=base.with_name("to"), as_of_ms=NOW_MS, base=base)
    assert [path.name for path in base.parent.iterdir()] == ["base"]


def test_what_a_rebuild_cannot_go_on_from(log: MemorySource, middle: list[int], base: Path, tmp_path: Path):
    earlier = [max(0, middle[0] - 1), *middle[1:]]

    def refused(error: type[ReplayError], text: str, source: MemorySource = log, **options: Any) -> None:
        with pytest.raises(error, match=text):
            write_rebuild(source, **({"to": tmp_path / "to", "base": base, "as_of_ms": NOW_MS} | options))
        assert not (tmp_path / "to").exists()

    refused(WrongTopicError, "is a rebuild of app--store-changelog, not of other", replace(log, topic="other"))
    refused(WrongTopicError, "of a topic .* with the id id, this one has the id new", replace(log, topic_id="new"))
    refused(WrongTopicError, "is a rebuild of 3 partitions", replace(log, ends=log.ends[:2]))
    refused(LogTooShortError, r"partition 0 ends at offset 0", replace(log, ends=(0, *log.ends[1:])))
    refused(PointError, rf"partition 0: the point, offset {earlier[0]}, is before the rebuild", as_of=point(earlier))
    refused(PointError, r"partition 0: keys count as expired at", as_of_ms=NOW_MS - 1)
    change(base, unknown=1)
    refused(TargetError, "lacks 1 keys whose state at its point is unknown")
    change(base, unknown=0, undecodable=0)
    refused(TargetError, "is made with --app: choose the same for both")


def test_a_rebuild_that_is_older_than_deletes_are_kept(spark: SparkSession, base: Path):
    earlier = extending.Base.of(Folder(spark, base))
    ends = tuple(end + 1 for end in earlier.ends)

    def topic(joints: tuple[int, ...]) -> Topic:
        return Topic("log", (0,) * len(ends), ends, ends, joints=joints)

    asked: list[float] = []
    live = SimpleNamespace(live=SimpleNamespace(keeps_deletes=lambda age_s: bool(asked.append(age_s))))
    with pytest.raises(ReadError, match=r"older than the delete\.retention\.ms"):
        earlier.require_deletes_kept(live, topic(()))
    assert 0 <= asked[0] < 600
    # what an archive has behind the rebuild, compaction can't take any more
    earlier.require_deletes_kept(live, topic(ends))
    earlier.require_deletes_kept(SimpleNamespace(live=None), topic(()))


class KilledError(BaseException):
    """The process ends here."""


def nth(call: Callable[..., Any], number: int) -> Callable[..., Any]:
    calls = iter(range(1, 1_000))

    def counted(*args: Any, **options: Any) -> Any:
        if next(calls) == number:
            raise KilledError
        return call(*args, **options)

    return counted


LATER = pytest.mark.nightly
KILLS = (
    pytest.param(os, "link", 2, marks=LATER),
    pytest.param(rebuilt, "write_files", 1, marks=LATER),
    pytest.param(rebuilt, "require_same", 1, marks=LATER),
    pytest.param(Path, "rename", 1, marks=LATER),
    pytest.param(folders, "write_atomically", 1, marks=LATER),
    pytest.param(staging, "tighten_tree", 1, marks=LATER),
    pytest.param(Path, "rename", 2, marks=LATER),
    pytest.param(Path, "rename", 3),
)


@pytest.mark.parametrize(("where", "name", "number"), KILLS)
def test_a_killed_run_leaves_the_old_state_or_the_new_one(
    spark: SparkSession,
    log: MemorySource,
    base: Path,
    where: Any,
    name: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(extending, "LARGEST_SHARE", 0)
    old = rows(spark, base)
    options: dict[str, Any] = {"to": base, "base": base, "overwrite": True, "as_of_ms": NOW_MS + 1}
    with pytest.MonkeyPatch.context() as patch:
        # a killed process cleans up nothing
        patch.setattr(staging, "_restore", lambda *_: None)
        patch.setattr(staging.shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(where, name, nth(getattr(where, name), number))
        with pytest.raises(KilledError):
            write_rebuild(log, **options)
    if base.exists():
        assert rows(spark, base) == old
    write_rebuild(log, **options)
    write_rebuild(log, to=base.with_name("whole"), as_of_ms=NOW_MS + 1)
    assert rows(spark, base) == rows(spark, base.with_name("whole"))
    assert len(read_summary(base).layers) == 2
    assert sorted(path.name for path in base.parent.iterdir()) == ["base", "whole"]


def test_a_cancelled_job_leaves_the_old_state_and_nothing_else(
    spark: SparkSession, log: MemorySource, base: Path, monkeypatch: pytest.MonkeyPatch
):
    old, context, write = rows(spark, base), spark.sparkContext, rebuilt.write_files

    def cancelled(rows: DataFrame, folder: Folder) -> None:
        def cancel() -> None:
            while not context.statusTracker().getActiveJobsIds():
                time.sleep(0.01)
            context.cancelAllJobs()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        sleep = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.lit(60_000).cast("bigint"))
        try:
            write(rows.where(sleep.isNull()), folder)
        finally:
            canceller.join()

    monkeypatch.setattr(rebuilt, "write_files", cancelled)
    context.setLocalProperty("spark.job.interruptOnCancel", "true")
    try:
        with pytest.raises(ReadError, match=r"Spark could not read a log in memory: .*[Cc]ancelled"):
            write_rebuild(log, to=base, overwrite=True, as_of_ms=NOW_MS + 1)
    finally:
        context.setLocalProperty("spark.job.interruptOnCancel", None)
    assert rows(spark, base) == old
    assert [path.name for path in base.parent.iterdir()] == ["base"]


def test_files_are_copied_where_they_cannot_be_linked(
    spark: SparkSession, log: MemorySource, base: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(extending, "LARGEST_SHARE", 0)
    old = rows(spark, base)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        done = write_rebuild(log, to=base.with_name("to"), as_of_ms=NOW_MS, base=base)
    assert done.made_from == str(base)
    flip(base.with_name("to"))
    assert rows(spark, base) == old


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_validation_from_a_rebuild_finds_the_same(spark: SparkSession, tmp_path: Path, seed: int):
    written = Log("app--store-changelog", [])
    offsets: Counter[int] = Counter()
    for transaction in random_transactions(seed, count=60, keys=50):
        for write in transaction.writes:
            if transaction.committed:
                written.records.append(replace(write, offset=offsets[write.partition]))
            offsets[write.partition] += 1
    written.ends = [offsets[number] for number in range(PARTITIONS)]
    source = MemorySource(
        spark,
        [(w.partition, w.offset, w.key, w.value, None, list(w.wire_headers)) for w in written.records],
        tuple(written.ends),
    )
    positions = [end * 4 // 5 for end in written.ends]
    export = Export.of(written, positions=positions)
    chance = random.Random(seed)
    keys = [row.key for held in export.rows.values() for row in held]
    for key in chance.sample(keys, 6):
        if chance.random() < 0.5:
            export.remove(key)
        else:
            export.replace(key, value=b"other")
    export.rows[0].append(Write(0, b"nobody's", b"x"))
    export.write(tmp_path / "exports")
    before = [position // 2 for position in positions]
    write_rebuild(source, to=tmp_path / "base", as_of=point(before), as_of_ms=NOW_MS - 1)
    reports = [validate_exports(source, against=tmp_path / "exports", base=base) for base in (None, tmp_path / "base")]
    whole, since = ({kind: count for kind, count in report.counts.items() if kind != "absent"} for report in reports)
    assert since == whole
    assert reports[0].causes == reports[1].causes
    assert reports[0].examples == reports[1].examples
    assert reports[0].mismatches >= 7
    write_rebuild(source, to=tmp_path / "late", as_of_ms=NOW_MS - 1)
    with pytest.raises(PointError, match=r"is before the rebuild"):
        validate_exports(source, against=tmp_path / "exports", base=tmp_path / "late")


@pytest.mark.nightly
def test_a_position_before_the_markers_that_a_rebuild_ends_with(spark: SparkSession, tmp_path: Path):
    """A worker's position is behind its last record, and the log ends behind the marker of the transaction."""
    key = next(b"%d" % number for number in range(99) if home(b"%d" % number) == 0)
    written = Log("app--store-changelog", [Write(0, key, b"%d" % number, offset=3 * number) for number in range(4)])
    written.ends = [10, 0, 0]
    log = [(0, w.offset, w.key, w.value, None, list(w.wire_headers)) for w in written.records]
    write_rebuild(MemorySource(spark, log[:2], (5, 2, 0)), to=tmp_path / "earlier", as_of_ms=NOW_MS - 1)
    source, later = (MemorySource(spark, log, (end, 2, 0)) for end in (11, 20))
    base = tmp_path / "base"
    write_rebuild(source, to=base, as_of_ms=NOW_MS - 1, base=tmp_path / "earlier")
    folder = Export.of(written).write(tmp_path / "exports")
    report = validate_exports(later, against=folder, base=base)
    assert (report.counts["equal"], report.mismatches, report.unanswered) == (1, 0, {})
    # without new records the rebuild keeps what it knows of each partition
    write_rebuild(later, to=tmp_path / "again", as_of_ms=NOW_MS - 1, base=base)
    assert validate_exports(later, against=folder, base=tmp_path / "again").mismatches == 0
    written.ends = [9, 0, 0]
    with pytest.raises(PointError, match=r"partition 0: the point, offset 9, is before the rebuild"):
        validate_exports(later, against=Export.of(written).write(tmp_path / "stale"), base=base)


@pytest.mark.nightly
def test_a_rebuild_goes_on_from_an_earlier_one_on_a_broker(spark: SparkSession, brokers: str, tmp_path: Path):
    written = write_log(brokers, random_transactions(11, count=60, keys=50), config={"cleanup.policy": "compact"})
    source = kafka(spark, brokers, written.topic)
    write_rebuild(source, to=tmp_path / "to", as_of_ms=NOW_MS)
    asyncio.run(append(brokers, written, random_transactions(12, count=10, keys=50)))
    done = write_rebuild(source, to=tmp_path / "to", base=tmp_path / "to", overwrite=True, as_of_ms=NOW_MS)
    assert 0 < done.records < len(written.records)
    write_rebuild(source, to=tmp_path / "whole", as_of_ms=NOW_MS)
    assert rows(spark, tmp_path / "to") == rows(spark, tmp_path / "whole")


@pytest.mark.nightly
def test_a_skewed_partition_and_a_skewed_key(spark: SparkSession, tmp_path: Path):
    def record(number: int, offset: int, key: bytes, value: bytes) -> Record:
        return number, offset, key, value, None, [(METADATA_HEADER, encode_metadata(3, offset))]

    log = [record(0, offset, b"%d" % max(0, offset - 979), b"%d" % offset) for offset in range(990)]
    log += [record(number, 0, b"other", b"x") for number in (1, 2)]
    source = MemorySource(spark, log, (990, 1, 1))
    write_rebuild(source, to=tmp_path / "base", as_of=point((980, 0, 1)), as_of_ms=NOW_MS)
    write_rebuild(source, to=tmp_path / "to", base=tmp_path / "base", as_of_ms=NOW_MS)
    state = read_rebuild(spark, tmp_path / "to").select("partition", "key", "value").collect()
    assert {(row[0], bytes(row[1])): bytes(row[2]) for row in state} == {(row[0], row[2]): row[3] for row in log}


@pytest.mark.nightly
def test_five_million_keys_in_a_gibibyte(tmp_path: Path):
    keys = 5_000_000
    command = [sys.executable, "-m", "tests.spark.fold.many_keys", str(tmp_path), str(keys)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert (counts["whole"]["keys"], counts["whole"]["records"]) == (keys, keys)
    assert (counts["done"]["keys"], counts["done"]["records"]) == (keys, keys // 50)
    assert counts["layers"] == [keys, keys // 50]
