"""Spark's fold of random histories of window stores and joins beside the workers' disks; a partition for each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.partitioner import murmur2

from actors import App
from actors._core.windows.join_rows import Unmatched, chunk_key, unmatched_key
from actors._core.windows.rows import aligned_key, close_key, list_key
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver
from spark_replay.comparison.held import Held, Part
from spark_replay.comparison.judging import held_point, judge, logged
from spark_replay.fold.fold import last_writes, live
from spark_replay.fold.points import point_at
from spark_replay.fold.settled import Settled
from spark_replay.fold.windows import WindowLog, folded_windows, held_windows
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import with_metadata
from stores._core.record import METADATA_BYTES, decode_metadata, place_of
from stores._core.windows import PROGRESS_KEY, decode_progress
from tests.spark.helpers import NOW_MS
from tests.unit.runtime.windows.test_against_records import BEGIN_MS, GRACE_MS, KINDS, MS, make
from tests.unit.runtime.windows.test_joins import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORIES = 40
RECORDS = (
    "partition int, offset bigint, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
HELD = (
    "partition int, claimed int, key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, "
    "input int"
)


@dataclass(frozen=True)
class History:
    """What a worker wrote, and what its disk has."""

    log: list[Any]
    disk: dict[bytes, bytes]

    @property
    def expired(self) -> bytes:
        return decode_progress(self.disk[PROGRESS_KEY][METADATA_BYTES:]).expired

    def is_past(self, row: bytes) -> bool:
        return row[:1] == self.expired[:1] and row < self.expired

    @property
    def kept(self) -> dict[bytes, bytes]:
        return {row: raw for row, raw in self.disk.items() if not self.is_past(row)}


def app_of(kind: str, chance: random.Random) -> tuple[App, str, list[Any], type]:
    """Return an app with one store of windows or of a join, the store's name, its inputs, and the type of values."""
    if kind != "join":
        app, orders, *_ = make(kind)
        return app, "sales", [orders], int
    world = World(chance.choice(("inner", "left", "outer")), within=10 * MS, grace=GRACE_MS * MS)
    return world.app, "joined", list(world.inputs.values()), str


def history(chance: random.Random) -> History:
    """Run a store through random records and crashes; its retention is a few times a window's length."""
    app, store, inputs, made = app_of(chance.choice([*KINDS, "join"]), chance)
    with ActorTestDriver(app, partitions=1) as driver:
        for _ in range(chance.randint(5, 25)):
            if chance.random() < 0.1:
                driver.crash(keep_disk=chance.random() < 0.5)
            at_ms = BEGIN_MS + chance.randint(0, chance.choice([30, 200]))
            value = made(chance.randint(0, 9))
            driver.send(chance.choice(inputs), key=chance.choice("ab"), value=value, timestamp_ms=at_ms)
        log = driver._cluster.log(TopicPartition(driver._setup.changelog_topic(store), 0))
        (files,) = (one for one in driver._disk.files() if one.store == store)
        return History(log.read(0, max_records=1_000_000)[0], dict(files.data))


@pytest.fixture(scope="module")
def histories() -> list[History]:
    chance = random.Random(24)
    made = [history(chance) for _ in range(HISTORIES)]
    removed = sum(len({record.key for record in one.log if one.is_past(record.key)} - one.disk.keys()) for one in made)
    assert removed > HISTORIES, "disks lack rows that the logs have"
    assert {one.expired[:1] for one in made} == {b"w", b"k", b"j"}
    return made


def topic_of(histories: list[History]) -> Topic:
    ends = tuple(one.log[-1].offset + 1 for one in histories)
    return Topic("log", (0,) * len(ends), ends, ends, deletes=True)


def folded(spark: SparkSession, histories: list[History]) -> DataFrame:
    rows = [
        (number, record.offset, record.key, record.value, None, list(record.headers))
        for number, one in enumerate(histories)
        for record in one.log
    ]
    return last_writes(with_metadata(spark.createDataFrame(rows, RECORDS)), [None] * len(histories))


def held_row(number: int, row: bytes, raw: bytes) -> tuple[Any, ...]:
    metadata = decode_metadata(raw)
    return (number, number, row, raw[METADATA_BYTES:], metadata.source_offset, metadata.epoch, 0, place_of(raw))


def kinds(spark: SparkSession, histories: list[History], rows: list[tuple[Any, ...]]) -> dict[tuple[int, bytes], str]:
    """Judge rows as what is held of the histories' logs; give what isn't fine."""
    topic, kept = topic_of(histories), spark.createDataFrame(rows, HELD)
    held = Held(
        kind="exports",
        where="",
        app="",
        store="",
        placement="task",
        partition_count=len(histories),
        parts=tuple(part(number, end) for number, end in enumerate(topic.ends)),
        stale=(),
        read=lambda _: kept,
    )
    fold, point = folded(spark, histories), held_point(topic, held)
    judged = judge(logged(fold), point, held, kept, windows=windows_of(fold, topic)).collect()
    return {
        (row["partition"], bytes(row["key"])): row["kind"] for row in judged if row["kind"] not in ("equal", "absent")
    }


def windows_of(fold: DataFrame, topic: Topic) -> WindowLog:
    count = topic.partition_count
    return folded_windows(Settled(topic=topic, point=point_at(topic, [None] * count, [0] * count), facts=fold))


def part(number: int, end: int) -> Part:
    return Part(partition=number, changelog_offset=end, as_of_ms=NOW_MS, epoch=9, topic_id="", where="", owner="worker")


def test_the_state_is_what_a_worker_shows(spark: SparkSession, histories: list[History]):
    fold = folded(spark, histories)
    windows = windows_of(fold, topic_of(histories))
    assert windows.expired == tuple(one.expired for one in histories)
    state = live(fold.where(~windows.past()), [NOW_MS] * len(histories)).collect()
    found = {(row["partition"], bytes(row["key"])): bytes(row["value"]) for row in state}
    assert found == {
        (number, row): raw[METADATA_BYTES:] for number, one in enumerate(histories) for row, raw in one.kept.items()
    }


@pytest.mark.nightly
def test_disks_are_equal_to_their_logs(spark: SparkSession, histories: list[History]):
    rows = [held_row(number, row, raw) for number, one in enumerate(histories) for row, raw in one.disk.items()]
    assert kinds(spark, histories, rows) == {}


@pytest.mark.nightly
def test_rows_of_the_log_that_the_broker_deleted_are_not_missed(spark: SparkSession, histories: list[History]):
    """A worker that restored early has them all, and the log has none that are past their retention."""
    last = [{record.key: record for record in one.log if record.value is not None} for one in histories]
    rows = [
        held_row(number, row, dict(record.headers)["fa-stamp"] + record.value)
        for number, one in enumerate(histories)
        for row, record in last[number].items()
        if row in one.disk or one.is_past(row)
    ]
    short = [History([record for record in one.log if not one.is_past(record.key)], one.disk) for one in histories]
    assert kinds(spark, short, rows) == {}


def test_each_damage_of_a_window_that_is_kept_is_found(spark: SparkSession, histories: list[History]):
    rows, planted = [], {}
    for number, one in enumerate(histories):
        kept = sorted(row for row in one.kept if row[:1] in (b"w", b"k", b"j"))
        disk = dict(one.disk)
        damage = ("different", "missing", "extra")[number % 3]
        row = kept[-1] if kept else b""
        if damage == "extra":
            row = row[:1] + (2**62).to_bytes(8) + b"nobody"
            disk[row] = one.disk[PROGRESS_KEY]
        elif damage == "missing":
            del disk[row]
        else:
            disk[row] += b"!"
        planted[number, row] = damage
        rows += [held_row(number, *pair) for pair in disk.items()]
    assert kinds(spark, histories, rows) == planted


@pytest.mark.nightly
def test_other_stream_time_is_found(spark: SparkSession, histories: list[History]):
    rows = [held_row(number, row, raw) for number, one in enumerate(histories) for row, raw in one.disk.items()]
    wrong = [(*row[:3], row[3][:8] + b"\xff" + row[3][9:], *row[4:]) if row[2] == PROGRESS_KEY else row for row in rows]
    assert set(kinds(spark, histories, wrong)) == {(number, PROGRESS_KEY) for number in range(HISTORIES)}


def test_what_the_log_has_forgotten_the_held_side_may_know(spark: SparkSession, histories: list[History]):
    topic, rows = topic_of(histories[:2]), [held_row(1, PROGRESS_KEY, histories[1].disk[PROGRESS_KEY])]
    known = held_windows(spark.createDataFrame(rows, HELD), topic)
    assert known == WindowLog((None, histories[1].expired))
    assert WindowLog((b"w", None), (1,)).or_else(known) == WindowLog((b"w", histories[1].expired), (1,))
    assert not WindowLog().or_else(WindowLog())
    assert WindowLog().or_else(known) is known


def test_a_plain_store_with_such_a_key_is_none(spark: SparkSession):
    """Neither by a row of that name, nor where the topic only compacts."""
    rows = [(0, 0, PROGRESS_KEY, b"p", None, []), (0, 1, b"w" + bytes(8), b"1", None, [])]
    fold = last_writes(with_metadata(spark.createDataFrame(rows, RECORDS)), [None])
    assert not windows_of(fold, Topic("log", (0,), (2,), (2,), deletes=True))
    assert not windows_of(fold, Topic("log", (0,), (2,), (2,)))


def test_a_row_belongs_where_its_message_belongs(spark: SparkSession):
    keys = [b"", b"a", b"key-17", bytes(range(40))]
    rows = {
        row: (murmur2(key) & 0x7FFFFFFF) % 7
        for key in keys
        for row in (
            aligned_key(1, key),
            list_key(9, key),
            close_key(5, 6, key),
            chunk_key(300, 1, 70_000, key),
            unmatched_key(Unmatched(300, 1, 2, 70_000, key)),
        )
    }
    frame = spark.createDataFrame([(0, row) for row in (*rows, PROGRESS_KEY)], "partition int, key binary")
    windows = WindowLog((b"w" + bytes(8),))
    homes = {bytes(row["key"]): row["home"] for row in frame.withColumn("home", windows.home(7, "key")).collect()}
    assert homes == rows | {PROGRESS_KEY: None}
