"""A changelog on a real broker, rebuilt by Spark and by plain Python."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from spark_replay import AsOf, TargetError, UnknownTopicError, kafka, read_changelog, rebuild_state, write_rebuild
from spark_replay.fold.rebuilt import read_rebuild
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.kafka.helpers import make_topics, unique
from tests.spark.helpers import (
    NOW_MS,
    PARTITIONS,
    Log,
    Transaction,
    Write,
    fold,
    put,
    random_transactions,
    write_log,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, random_transactions(5, count=150, keys=80))


def held(rows: list[dict]) -> dict:
    names = ("value", "source_offset", "epoch", "expires_at_ms", "offset")
    return {(row["partition"], bytes(row["key"])): tuple(row[name] for name in names) for row in rows}


def expected(state: dict) -> dict:
    return {
        place: (write.value, write.source_offset, write.epoch, write.expires_at_ms, write.offset)
        for place, write in state.items()
    }


def collected(frame: DataFrame) -> dict:
    return held([row.asDict() for row in frame.collect()])


def test_rebuild_equals_a_plain_fold(spark: SparkSession, brokers: str, log: Log):
    state = rebuild_state(kafka(spark, brokers, log.topic), as_of_ms=NOW_MS)
    assert collected(state) == expected(fold(log.records))


def test_rebuild_before_positions(spark: SparkSession, brokers: str, log: Log):
    before = [log.ends[0] // 2, None, 3]
    state = rebuild_state(kafka(spark, brokers, log.topic), as_of_ms=NOW_MS, as_of=AsOf({0: before[0], 2: 3}))
    assert collected(state) == expected(fold(log.records, before=before))


def test_changelog_holds_committed_records_only(spark: SparkSession, brokers: str, log: Log):
    rows = read_changelog(kafka(spark, brokers, log.topic)).collect()
    assert {(row["partition"], row["offset"]) for row in rows} == {(w.partition, w.offset) for w in log.records}
    by_place = {(write.partition, write.offset): write for write in log.records}
    for row in rows:
        write = by_place[row["partition"], row["offset"]]
        assert (bytes(row["key"]), row["tombstone"]) == (write.key, write.value is None)
        assert (row["epoch"], row["source_offset"]) == (write.epoch, write.source_offset)
        assert row["expires_at_ms"] == write.expires_at_ms


@pytest.mark.nightly
def test_folder_of_a_rebuild(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    to = tmp_path / "a rebuild"
    done = write_rebuild(kafka(spark, brokers, log.topic), to=to, as_of_ms=NOW_MS)
    state = fold(log.records)
    assert held(pq.read_table(to).to_pylist()) == expected(state)
    summary = json.loads((to / "_rebuild.json").read_text())
    assert (summary["changelog"], summary["as_of_ms"]) == (log.topic, NOW_MS)
    assert (done.keys, done.records, done.without_metadata) == (len(state), len(log.records), 0)
    for part in summary["partitions"]:
        number = part["partition"]
        assert part["keys"] == sum(partition == number for partition, _ in state)
        assert part["end_offset"] >= log.ends[number]


def test_empty_changelog(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [])
    done = write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path / "to")
    assert (done.keys, done.records, done.without_metadata) == (0, 0, 0)
    assert pq.read_table(tmp_path / "to").num_rows == 0


@pytest.mark.nightly
def test_only_aborted_records(spark: SparkSession, brokers: str):
    log = write_log(brokers, [Transaction((put("a", "1"), put("b", "2")), committed=False)])
    assert rebuild_state(kafka(spark, brokers, log.topic)).collect() == []


def test_records_without_metadata_are_kept_and_counted(spark: SparkSession, brokers: str, tmp_path: Path):
    good = encode_metadata(1, 2)
    damages = {
        b"none": (),
        b"short": ((METADATA_HEADER, good[:-1]),),
        b"long": ((METADATA_HEADER, good + b"\0"),),
        b"version": ((METADATA_HEADER, b"\x03" + good[1:]),),
        b"name": (("other", good),),
    }
    damaged = tuple(Write(1, key, b"value", headers=headers) for key, headers in damages.items())
    log = write_log(brokers, [Transaction((put("good", "1"), *damaged))])
    done = write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path / "to")
    assert (done.keys, done.records, done.without_metadata) == (6, 6, 5)
    rows = {row["key"]: row for row in pq.read_table(tmp_path / "to").to_pylist()}
    assert rows[b"good"]["epoch"] == 1
    for key in damages:
        assert (rows[key]["value"], rows[key]["epoch"]) == (b"value", None)


@pytest.mark.nightly
def test_metadata_behind_another_header(spark: SparkSession, brokers: str):
    headers = (("trace", b"x"), (METADATA_HEADER, encode_metadata(3, 4, 0)))
    log = write_log(brokers, [Transaction((Write(0, b"a", b"1", headers=headers),))])
    row = read_changelog(kafka(spark, brokers, log.topic)).collect()[0]
    assert (row["epoch"], row["source_offset"]) == (3, 4)


def test_an_existing_folder_is_kept(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    (tmp_path / "mine").write_text("data")
    with pytest.raises(TargetError, match="exists"):
        write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path)
    with pytest.raises(TargetError, match="is no rebuild"):
        write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path, overwrite=True)
    assert (tmp_path / "mine").read_text() == "data"


@pytest.mark.nightly
def test_overwrite_replaces_a_rebuild_when_the_new_one_is_complete(
    spark: SparkSession, brokers: str, log: Log, tmp_path: Path
):
    to = tmp_path / "to"
    write_rebuild(kafka(spark, brokers, log.topic), to=to)
    with pytest.raises(UnknownTopicError, match=r"no topic no-such-changelog"):
        write_rebuild(kafka(spark, brokers, "no-such-changelog"), to=to, overwrite=True)
    assert json.loads((to / "_rebuild.json").read_text())["changelog"] == log.topic
    other = unique("other-changelog")
    asyncio.run(make_topics(brokers, other, partitions=PARTITIONS))
    write_rebuild(kafka(spark, brokers, other), to=to, overwrite=True)
    assert json.loads((to / "_rebuild.json").read_text())["changelog"] == other
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


@pytest.mark.nightly
def test_a_rebuild_has_the_input_of_each_write(spark: SparkSession, brokers: str, tmp_path: Path):
    writes = [put(f"key-{n}", "x", source_offset=n, input=None if n < 5 else n % 2) for n in range(20)]
    written = write_log(brokers, [Transaction(tuple(writes))])
    write_rebuild(kafka(spark, brokers, written.topic), to=tmp_path / "new")
    expected = {write.key: (write.source_offset, write.input) for write in writes}

    def found(folder: Path) -> dict[bytes, tuple[int, int | None]]:
        rows = read_rebuild(spark, folder).collect()
        return {bytes(row["key"]): (row["source_offset"], row["input"]) for row in rows}

    assert found(tmp_path / "new") == expected
