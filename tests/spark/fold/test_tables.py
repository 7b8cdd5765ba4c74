"""Rebuilds in tables of Delta Lake and Iceberg."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_replay import (
    PointError,
    ReadError,
    ReplayError,
    TargetError,
    WrongTopicError,
    read_table,
    rebuild_state,
    validate_exports,
    write_rebuild,
)
from spark_replay.sources.tables import Table
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.documents import block
from tests.kafka.helpers import ROOT
from tests.spark.fold.test_extending import KilledError, MemorySource, nth, plain_log, point, windowed_log
from tests.spark.helpers import NOW_MS, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATER = pytest.mark.nightly
pytestmark = pytest.mark.timeout(900)  # Delta has some ten jobs a merge, which take minutes on a busy machine


@pytest.fixture
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Table:
    if request.param == "delta":
        return Table.of(spark, f"delta:{tmp_path}/table")
    return Table.of(spark, f"iceberg:lake.audit.{tmp_path.name}_{tmp_path.parent.name.replace('-', '_')}")


THERE = Path("~/.cache/faust-actors/iceberg-spark-runtime-4.0_2.13-1.11.0").expanduser().is_dir()
both = pytest.mark.parametrize(
    "table", [pytest.param("delta", marks=LATER), pytest.param("iceberg", marks=LATER)], indirect=True
)


def rows(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.select(*sorted(frame.columns)).collect()), key=repr)


def state(source: MemorySource, as_of: str, as_of_ms: int = NOW_MS) -> list[Any]:
    return rows(rebuild_state(source, as_of=as_of, as_of_ms=as_of_ms))


def at(source: MemorySource, share: float) -> str:
    return point([int(end * share) for end in source.ends])


def plain(spark: SparkSession) -> MemorySource:
    return plain_log(spark, random.Random(5))


def write(source: MemorySource, table: Table, share: float, **options: Any) -> Any:
    return write_rebuild(source, **({"to": table.where, "as_of": at(source, share), "as_of_ms": NOW_MS} | options))


@pytest.mark.parametrize("table", [pytest.param("iceberg", marks=() if THERE else LATER)], indirect=True)
def test_changed_keys_are_merged_and_deleted_ones_go(spark: SparkSession, table: Table):
    def record(offset: int, key: bytes, value: bytes | None) -> Any:
        return 0, offset, key, value, None, [(METADATA_HEADER, encode_metadata(3, offset, 0))]

    log = [record(0, b"a", b"1"), record(1, b"b", b"1"), record(2, b"a", None), record(3, b"b", b"2")]
    for end in (2, 4, 4):
        write_rebuild(MemorySource(spark, log[:end], (end,)), to=table.where, as_of_ms=NOW_MS)
    state = read_table(spark, table.where).select("key", "value", "offset").collect()
    assert [tuple(row) for row in state] == [(b"b", b"2", 3)]
    merged = [json.loads(commit.text or "")["merged"] for commit in table.commits()]
    assert merged == [{"partition": 0, "from": 2, "to": 4}, {"partition": 0, "from": 0, "to": 2}]


@both
@pytest.mark.parametrize("make", [plain_log, windowed_log])
def test_a_table_goes_on_from_its_offsets(spark: SparkSession, table: Table, make: Any, tmp_path: Path):
    source = make(spark, random.Random(5))
    for number, share in enumerate((0.5, 0.75)):
        time_ms = NOW_MS + number
        done = write(source, table, share, as_of_ms=time_ms)
        expected = state(source, at(source, share), time_ms)
        assert rows(read_table(spark, table.where)) == expected
        assert (done.keys, done.unknown) == (len(expected), 0)
    commits = table.commits()
    again = write(source, table, share, as_of_ms=time_ms)
    assert (again.records, again.partitions) == (0, done.partitions)
    assert again.notes[-1] == f"{table.where} has this state already: nothing was written"
    assert table.commits() == commits
    write(source, table, share, as_of_ms=time_ms, to=tmp_path / "folder")
    report, other = (
        validate_exports(source, against=where, placement="task") for where in (table.where, tmp_path / "folder")
    )
    assert (report.counts, report.keys) == (other.counts, other.keys)
    assert report.counts["equal"] > 0


@both
def test_an_earlier_version_is_found_by_offsets_and_by_time(spark: SparkSession, table: Table):
    source = plain(spark)
    for number, share in enumerate((0.5, 1)):
        write(source, table, share, as_of_ms=NOW_MS + number)
    for as_of in (at(source, 0.5), at(source, 0.75), f"timestamp:{NOW_MS}"):
        assert rows(read_table(spark, table.where, as_of=as_of)) == state(source, at(source, 0.5))
    newest = state(source, at(source, 1), NOW_MS + 1)
    for as_of in ("latest", at(source, 1), f"timestamp:{NOW_MS + 1}"):
        assert rows(read_table(spark, table.where, as_of=as_of)) == newest
    for as_of in (at(source, 0.4), f"timestamp:{NOW_MS - 1}"):
        with pytest.raises(PointError, match="has no version at or before"):
            read_table(spark, table.where, as_of=as_of)


@both
@pytest.mark.parametrize("whole", [False, True])
def test_a_run_that_was_cut_off_goes_on(
    spark: SparkSession, table: Table, whole: bool, monkeypatch: pytest.MonkeyPatch
):
    source = plain(spark)
    if whole:
        write(source, table, 0.5)
    monkeypatch.setattr(Table, "merge", nth(Table.merge, 2))
    with pytest.raises(KilledError):
        write(source, table, 0.75, overwrite=whole)
    monkeypatch.undo()
    first = table.commits()[0].text
    assert first is not None
    merged = json.loads(first)["merged"]
    assert merged == {"partition": 0, "from": 0, "to": int(source.ends[0] * 0.75)}
    with pytest.raises(ReadError, match="hasn't all partitions of a rebuild: run rebuild --to"):
        read_table(spark, table.where)
    # of the partition that was merged, only what is behind its offsets is read
    done = write(source, table, 1)
    assert done.records < len(source.log)
    assert rows(read_table(spark, table.where)) == state(source, at(source, 1))


@pytest.mark.nightly
@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_the_example(table: Table):
    source = plain(table.spark)
    code = block("docs/reference/api/spark_replay.md", "Examples", 6)
    earlier = replace(code, code=code.code.replace("delta:tables/spent", table.where)).run(
        {}, changes={"offset:0=500,1=480": at(source, 1)}
    )["earlier"](source)
    assert rows(earlier) == rows(read_table(table.spark, table.where))


@pytest.mark.nightly
@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_a_killed_process_leaves_whole_partitions(table: Table):
    """SIGKILL between two merges; another process goes on."""
    command = [sys.executable, "-m", "tests.spark.fold.killed_table", table.where]
    killed = subprocess.run(command, cwd=ROOT, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert len(table.commits()) == 1
    source = plain(table.spark)
    done = write(source, table, 1)
    assert done.records < len(source.log)
    assert rows(read_table(table.spark, table.where)) == state(source, at(source, 1))


@pytest.mark.nightly
def test_the_command_line(brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(21, count=30, keys=30), config={"cleanup.policy": "compact"})
    where = ["--brokers", brokers, "--changelog", log.topic, "--spark-option", "spark.sql.shuffle.partitions=2"]

    def run(command: str, *words: str) -> dict[str, Any]:
        arguments = [sys.executable, "-m", "spark_replay", command, *where, *words, "--json"]
        done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=300)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert done.returncode == 0, result["error"]
        return result

    at = f"offset:{','.join(f'{number}={end}' for number, end in enumerate(log.ends))}"
    table = ["--to", f"delta:{tmp_path}/table", "--as-of", at]
    counts = [run("rebuild", *table)["totals"]["keys"] for _ in range(2)]
    assert counts[0] == counts[1] > 0
    assert run("validate", "--against", f"delta:{tmp_path}/table")["totals"]["mismatches"] == 0


@both
def test_where_keys_are_unknown_all_of_the_log_is_read(spark: SparkSession, table: Table):
    source = plain(spark)
    write(source, table, 0.5)
    compacted = source.compacted(max(source.ends))
    done = write(compacted, table, 0.75)
    assert done.unknown > 0
    assert rows(read_table(spark, table.where)) == state(compacted, at(source, 0.75))
    write(compacted, table, 1)
    assert rows(read_table(spark, table.where)) == state(source, at(source, 1))


@both
def test_what_a_table_cannot_go_on_from(
    spark: SparkSession, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = plain(spark)

    def refused(error: type[ReplayError], text: str, source: MemorySource = source, **options: Any) -> None:
        commits = table.commits() if table.exists else []
        with pytest.raises(error, match=text):
            write(source, table, 1, **options)
        assert commits == (table.commits() if table.exists else [])

    refused(TargetError, "goes on from its own offsets: leave out --from", base=tmp_path)
    narrow = replace(table, where=f"{table.where}_narrow")
    narrow.create("key binary, partition int")
    refused(TargetError, "is made with --app", to=narrow.where)
    write(source, table, 0.5)
    other, again = replace(source, topic="other"), replace(source, topic_id="new")
    refused(WrongTopicError, "is a rebuild of app--store-changelog, not of other", other)
    refused(WrongTopicError, "of a topic .* with the id id, this one has the id new", again)
    refused(PointError, "is before the rebuild in (delta|iceberg):", as_of=at(source, 0.4))
    monkeypatch.setattr("spark_replay.fold.rebuilt.FORMAT", 0)
    refused(ReadError, "is a rebuild of format 1, this release reads format 0")
    monkeypatch.undo()
    spark.sql(f"UPDATE {table.name} SET value = X'00'")
    refused(ReadError, r"another program changed the rows of .*: version \d+ is of (UPDATE|overwrite)")
    with pytest.raises(ReadError, match="another program changed"):
        validate_exports(source, against=table.where)
    write(source, table, 1, overwrite=True)
    assert rows(read_table(spark, table.where)) == state(source, at(source, 1))


@both
@pytest.mark.parametrize("begin", ["MERGE", "SELECT *"])
def test_another_program_that_writes_meanwhile_is_named(
    spark: SparkSession, table: Table, begin: str, monkeypatch: pytest.MonkeyPatch
):
    """While a partition is merged, and after the table's offsets were read."""
    source = plain(spark)
    write(source, table, 0.5)
    sql = spark.sql

    def late(_: SparkSession, query: str, *args: Any, **options: Any) -> Any:
        if query.startswith(begin):
            sql(f"DELETE FROM {table.name} WHERE partition = 0")
        return sql(query, *args, **options)

    monkeypatch.setattr(type(spark), "sql", late)
    with pytest.raises(TargetError, match=r"another program wrote to .* before or while partition 0 was merged"):
        write(source, table, 1)
