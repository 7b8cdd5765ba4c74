"""Window stores of a real worker whose windows expired: validated, rebuilt, compared, recomputed, and damaged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors._core.windows.rows import decode_list, encode_list
from dev.kafka import free_port
from spark_replay import (
    AppError,
    Asked,
    LiveError,
    PlacementError,
    Recomputed,
    Wanted,
    Workers,
    archive,
    archive_topics,
    find_violations,
    kafka,
    plan_recompute,
    publish_state,
    rebuild_state,
    recompute_actor,
    validate_exports,
    validate_states,
    write_rebuild,
)
from spark_replay.comparison.exports import export_folders
from spark_replay.comparison.report import Example, Report
from spark_replay.comparison.watching import Watch
from spark_replay.printing import printable
from spark_replay.sources.kafka import KafkaSource
from stores._core.manifest import MANIFEST, decode_manifest, with_crc32
from stores._core.printable import moment
from stores._core.record import METADATA_BYTES
from stores._core.windows import PROGRESS_KEY, decode_progress
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, read_all, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = [f"k{number}" for number in range(8)]
RECORDS = 400
START_MS = (int(time.time()) - 7_200) // 10 * 10_000
STORES = ("sums", "visits", "near")
APP = """
    from datetime import timedelta

    from actors import App, Context, Session, Sliding, Tumbling, Window, aggregates

    app = App(
        {name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5, broker_commit_interval=0.05
    )
    source = app.topic("{name}-in", key_type=str, value_type=int)
    out = app.topic("{name}-out", key_type=str, value_type=int)
    kept = timedelta(seconds=60)
    sums = app.window_store(
        "sums", Tumbling(seconds=10), grace=timedelta(seconds=5), retention=kept, aggregate=aggregates.sum()
    )
    visits = app.window_store("visits", Session(timedelta(seconds=9)), retention=kept, aggregate=aggregates.count())
    near = app.window_store("near", Sliding(timedelta(seconds=10)), retention=kept, aggregate=aggregates.max())
    totals = app.store("totals", key_type=str, value_type=int)


    @sums.on_close
    async def closed(ctx: Context, window: Window, total: int) -> None:
        totals.set(ctx.key, totals.get(ctx.key, 0) + {step})


    @visits.on_close
    async def left(ctx: Context, window: Window, count: int) -> None:
        totals.set(ctx.key, totals.get(ctx.key, 0) + 1000 * count)


    @app.actor(source, stores=[sums, visits, near, totals], late="handle", on_error="skip")
    async def add(ctx: Context, amount: int) -> None:
        for store in (sums, visits, near):
            store.add(ctx.key, amount)
        ctx.send(out, key=ctx.key, value=amount)
"""


@dataclass(frozen=True)
class World:
    """An app whose worker handled all records and stopped."""

    spark: SparkSession
    brokers: str
    name: str
    folder: Path

    def module(self, step: str = "total", *, suffix: str = "") -> str:
        module = f"{self.name}{suffix}".replace("-", "_")
        text = textwrap.dedent(APP).format(name=self.name, url=f"kafka://{self.brokers}", step=step)
        (self.folder / f"{module}.py").write_text(text)
        return module

    def log(self, store: str) -> KafkaSource:
        return kafka(self.spark, self.brokers, f"{self.name}--{store}-changelog")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def placement(self, store: str) -> str:
        """How a store's keys are placed."""
        return "key"

    def export(self, store: str, to: Path) -> dict[int, Path]:
        """Export what the disk holds; give the files."""
        options: dict[str, Any] = {"placement": self.placement(store), "partition_count": PARTITIONS}
        folders = [file.parent for file in self.data.glob("**/worker.json")]
        export_folders(folders, to, changelog=self.log(store).topic, **options)
        (manifest,) = to.glob(f"*/{MANIFEST}")
        parts = decode_manifest(manifest.read_text()).partitions
        return {part.partition: manifest.with_name(part.file) for part in parts}


def inputs() -> Iterator[tuple[str, int, int]]:
    """Give a record each second: each seventh 4 s too early, each fiftieth too late for all, one from the year 9999."""
    for number in range(RECORDS):
        early_s = 40 if number % 50 == 49 else 4 if number % 7 == 0 else 0
        yield KEYS[number * 5 % len(KEYS)], number, START_MS + 1000 * (number - early_s)
    yield KEYS[0], -1, 253_370_764_800_000


async def run(world: World) -> None:
    brokers, name = world.brokers, world.name
    # Brokers refuse the year 9999 by default.
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    await make_topics(brokers, f"{name}-in", partitions=PARTITIONS, config=config)
    await make_topics(brokers, f"{name}-out", partitions=PARTITIONS)
    async with producing(brokers) as producer:
        for key, amount, at_ms in inputs():
            home = partition_for(key.encode(), PARTITIONS)
            await producer.send(f"{name}-in", b"%d" % amount, key.encode(), partition=home, timestamp_ms=at_ms)
        await producer.flush()
    path = os.pathsep.join([str(world.folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(world.module(), brokers, world.data, PYTHONPATH=path).start()

    async def handled() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= RECORDS and "253370764800000" in worker.log()

    async def closed() -> bool:
        logs = [await last_values(world, store) for store in ("sums", "visits")]
        return all(not waiting(rows) for log in logs for rows in log.values())

    try:
        await eventually(handled, deadline_s=180, what=worker.log)
        await eventually(closed, deadline_s=180, what=worker.log)
        assert worker.terminate() == 0
    finally:
        worker.kill()


async def last_values(world: World, store: str) -> dict[int, dict[bytes, bytes]]:
    """The rows that a store's changelog has, by partition."""
    last: dict[int, dict[bytes, bytes | None]] = {}
    for record in await read_all(world.brokers, world.log(store).topic):
        last.setdefault(record.partition, {})[record.key] = record.value
    return {number: {row: value for row, value in rows.items() if value is not None} for number, rows in last.items()}


def waiting(rows: dict[bytes, bytes]) -> list[bytes]:
    """The rows whose close is due and wasn't handled."""
    progress = decode_progress(rows[PROGRESS_KEY])
    lengths_ms = {b"w": 15_000, b"e": 9_001}
    return [
        row
        for row in rows
        if row[:1] in lengths_ms
        and int.from_bytes(row[1:9]) + lengths_ms[row[:1]] <= progress.stream_ms
        and row > progress.closed
    ]


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(spark, brokers, unique("windows"), tmp_path_factory.mktemp("windows"))
    asyncio.run(run(made))
    sys.path.insert(0, str(made.folder))
    yield made
    sys.path.remove(str(made.folder))


def expired(rows: dict[bytes, Any]) -> set[bytes]:
    until = decode_progress(rows[PROGRESS_KEY]).expired
    return {row for row in rows if row[:1] == until[:1] and row < until}


def rows_of(file: Path) -> dict[bytes, bytes]:
    table = pq.ParquetFile(file).read()
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.parametrize("store", ["sums", *(pytest.param(name, marks=pytest.mark.nightly) for name in STORES[1:])])
def test_a_disk_is_equal_to_its_log(world: World, tmp_path: Path, store: str):
    log, removed = asyncio.run(last_values(world, store)), 0
    for number, file in world.export(store, tmp_path).items():
        live, held = log[number], rows_of(file)
        assert held.keys() <= live.keys()
        assert live.keys() - held.keys() <= expired(live)
        removed += len(live) - len(held)
    assert removed > 5, "the worker removed windows that the log still has"
    report = validate_exports(world.log(store), against=world.data, invariants=Asked())
    assert report.is_clean, report
    assert report.counts["equal"] == report.keys > 10


@pytest.mark.nightly
@pytest.mark.parametrize("damage", ["different", "missing"])
def test_planted_damage_of_a_window_is_found(world: World, tmp_path: Path, damage: str):
    file = world.export("sums", tmp_path)[0]
    rows = pq.ParquetFile(file).read().to_pylist()
    past = expired(rows_of(file))
    planted = next(one for one in rows if one["key"][:1] == b"w" and one["key"] not in past)
    if damage == "missing":
        rewrite(file, [one for one in rows if one is not planted])
    else:
        rewrite(file, [one | {"value": b"v\xcd\x30\x39"} if one is planted else one for one in rows])
    report = validate_exports(world.log("sums"), against=tmp_path)
    assert report.mismatches == report.counts[damage] == 1
    [example] = report.examples[damage]
    key, start_ms = planted["key"][9:].decode(), int.from_bytes(planted["key"][1:9])
    assert example.key == f"{key}, the window from {moment(start_ms)} ({start_ms} ms)"


def move(files: dict[int, Path], letter: bytes) -> dict[str, Any]:
    """Move a row of that letter, which isn't past its retention, from the first file into the second; return it."""
    kept, others = (pq.ParquetFile(files[number]).read().to_pylist() for number in (0, 1))
    past = expired(rows_of(files[0])) | expired(rows_of(files[1]))
    moved = next(one for one in kept if one["key"][:1] == letter and one["key"] not in past)
    rewrite(files[0], [one for one in kept if one is not moved])
    # The row itself doesn't tell where it was.
    rewrite(files[1], [*others, moved | {"partition": 1}])
    return moved


@pytest.mark.nightly
@pytest.mark.parametrize(("store", "letter"), [("sums", b"w"), ("visits", b"k")])
def test_a_window_in_another_partition_than_its_keys_is_found(world: World, tmp_path: Path, store: str, letter: bytes):
    move(world.export(store, tmp_path), letter)
    report = validate_exports(world.log(store), against=tmp_path)
    assert report.mismatches == 2
    assert report.counts["missing"] == report.counts["wrong_partition"] == 1
    [example] = report.examples["wrong_partition"]
    assert example.seen == "belongs in partition 0, found in 1 in the export"


@pytest.mark.nightly
def test_a_window_that_is_past_its_retention_may_be_held_still(world: World, tmp_path: Path):
    file = world.export("sums", tmp_path)[0]
    rows = pq.ParquetFile(file).read().to_pylist()
    over = len(expired(rows_of(file)))
    rewrite(file, [*rows, rows[0] | {"key": b"w" + bytes(8) + b"old", "value": b"v1"}])
    report = validate_exports(world.log("sums"), against=tmp_path)
    assert report.is_clean, report
    assert report.over > over


def rewrite(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write an export's file anew, and the number of its rows."""
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(file)), file)
    manifest = file.with_name(MANIFEST)
    content = json.loads(manifest.read_text())
    for one in content["partitions"]:
        if one["file"] == file.name:
            one["keys"] = len(rows)
    manifest.write_text(json.dumps(with_crc32(content)))


@pytest.mark.nightly
def test_a_rebuild_has_no_window_that_is_past_its_retention(world: World, tmp_path: Path):
    rebuilt = write_rebuild(world.log("sums"), to=tmp_path / "sums", app=world.module())
    rows = rebuild_state(world.log("sums"), app=world.module()).collect()
    assert rebuilt.keys == len(rows)
    assert rebuilt.undecodable == 0
    for number in range(PARTITIONS):
        own = {bytes(row["key"]): row for row in rows if row["partition"] == number}
        assert not expired({key: bytes(row["value"]) for key, row in own.items()})
        stream_ms = json.loads(own[PROGRESS_KEY]["value_json"])["stream_ms"]
        shown = [json.loads(row["key_json"]) for key, row in own.items() if key[:1] == b"w"]
        assert all(start > stream_ms - 60_000 and end == start + 10_000 for _, start, end in shown)
        assert shown
    report = validate_exports(world.log("sums"), against=tmp_path / "sums")
    assert report.is_clean, report


@pytest.mark.nightly
def test_an_archive_knows_that_the_log_is_of_windows(world: World, tmp_path: Path):
    log = world.log("visits")
    archive_topics(world.spark, Wanted(brokers=world.brokers, topics=(log.topic,)), to=tmp_path / "archive")
    old = archive(world.spark, tmp_path / "archive", log.topic)
    rows, archived = (
        {(row["partition"], bytes(row["key"])) for row in rebuild_state(one).collect()} for one in (log, old)
    )
    assert archived == rows
    report = validate_exports(old, against=world.data)
    assert report.is_clean, report
    assert report.counts["equal"] == len(rows)


@pytest.mark.nightly
def test_two_points_and_two_logs_are_compared(world: World):
    log = world.log("visits")
    assert validate_states(log, log).is_clean
    copy = kafka(world.spark, world.brokers, f"{world.name}--copy-changelog")
    publish_state(log, copy)
    with copy.asking() as admin:
        assert sorted(admin.settings(copy.topic).effective["cleanup.policy"].split(",")) == ["compact", "delete"]
    report = validate_states(log, copy)
    assert report.is_clean
    assert report.counts["equal"] > 10
    few = kafka(world.spark, world.brokers, f"{world.name}--few-changelog")
    with pytest.raises(PlacementError, match=r"is the changelog of a window store or a join: .*only with --app"):
        publish_state(log, few, partitions=3)


def test_the_checks_of_a_log_know_where_windows_belong(world: World):
    log = world.log("near")
    found = {finding.check: finding.count for finding in find_violations(log, log.describe(), Asked())}
    assert found == dict.fromkeys(("epochs", "source_offsets", "metadata", "partitioner"), 0)


def recomputed(world: World, module: str) -> Recomputed:
    world.spark.sparkContext.addPyFile(str(world.folder / f"{module}.py"))
    return recompute_actor(world.spark, plan_recompute(world.spark, world.brokers, module))


@pytest.mark.nightly
def test_the_input_leads_to_the_same_windows(world: World):
    found = recomputed(world, world.module())
    kinds = {
        store: {kind: count for kind, count in counts.items() if count} for store, counts in found.by_store.items()
    }
    assert {store: set(counts) for store, counts in kinds.items()} == {store: {"equal"} for store in kinds}
    assert kinds["totals"] == {"equal": len(KEYS)}
    assert found.records == RECORDS + 1


@pytest.mark.nightly
def test_other_code_that_closes_windows_differs(world: World):
    found = recomputed(world, world.module("total + 1 * (ctx.key == 'k3')", suffix="-v2"))
    assert {store: counts["different"] for store, counts in found.by_store.items()} == dict.fromkeys(STORES, 0) | {
        "totals": 1
    }


def named_by_watch(world: World, store: str, folder: Path, letter: bytes, value: bytes) -> tuple[bytes, Example]:
    """Watch a worker on a copy of the disk, change a row, and watch again; give the row and what was named."""
    data, port = folder / "data", free_port()
    shutil.copytree(world.data, data)
    path = os.pathsep.join([str(world.folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(world.module(), world.brokers, data, PYTHONPATH=path, WEB_PORT=str(port))
    workers = Workers([f"http://127.0.0.1:{port}"])
    watch = Watch(source=world.log(store), workers=workers, store=store, folder=folder / "state")

    def compare() -> Report:
        worker.start(web=True)
        deadline_s = time.monotonic() + 180
        while True:
            try:
                if not (report := watch.compare()).unanswered:
                    return report
            except LiveError:
                assert time.monotonic() < deadline_s, worker.log()
            time.sleep(0.5)

    try:
        with closing(workers):
            report = compare()
            assert report.mismatches == 0, report
            assert report.counts["equal"] > 10
            assert worker.terminate() == 0
            row = planted(world, store, data, letter, value)
            report = compare()
    finally:
        worker.kill()
    assert report.mismatches == report.counts["different"] == 1, report
    ((example,),) = report.examples.values()
    assert example.partition == 0
    log = asyncio.run(read_all(world.brokers, world.log(store).topic))
    assert example.log is not None
    last = max(record.offset for record in log if record.partition == 0 and record.key == row)
    assert example.log["offset"] == last
    return row, example


def planted(world: World, store: str, data: Path, letter: bytes, value: bytes) -> bytes:
    """Change the last row of a letter in partition 0, which isn't past its retention; return the row."""
    opened = DataFolder.open(data / "v1" / "actors", app=world.name)
    with closing(opened), closing(RocksStore.open(opened.store_path(store, 0))) as rows:
        *_, (row, raw) = rows.scan(letter, letter + b"\xff")
        position = rows.position()
        assert position is not None
        rows.apply([(row, raw[:METADATA_BYTES] + value)], position)
    return row


@pytest.mark.nightly
def test_a_watch_names_a_changed_window(world: World, tmp_path: Path) -> None:
    row, example = named_by_watch(world, "sums", tmp_path, b"w", b"v\xcd\x30\x39")
    start_ms = int.from_bytes(row[1:9])
    assert example.key == f"{row[9:].decode()}, the window from {moment(start_ms)} ({start_ms} ms)"
    assert example.export is not None
    assert example.export["value"] == printable(b"\xcd\x30\x39")


def twice(key: bytes, value: bytes) -> tuple[bytes, bytes] | None:
    """Leave out k3."""
    return None if key == b"k3" else (key, value * 2)


def transformed(world: World, store: str, transform: Callable[[bytes, bytes], Any]) -> dict[int, dict[bytes, bytes]]:
    """Publish a store with a transform; return the new changelog's rows."""
    copy = kafka(world.spark, world.brokers, f"{world.name}--{unique('copy')}-changelog")
    publish_state(world.log(store), copy, layout="windows", transform=transform)
    rows: dict[int, dict[bytes, bytes]] = {}
    for record in asyncio.run(read_all(world.brokers, copy.topic)):
        rows.setdefault(record.partition, {})[record.key] = record.value
    return rows


@pytest.mark.parametrize("store", ["sums", pytest.param("visits", marks=pytest.mark.nightly)])
def test_values_of_windows_are_transformed(world: World, store: str) -> None:
    def changed(raw: bytes) -> bytes:
        if raw[:1] == b"l":
            windows = decode_list(raw)
            for window in windows:
                window.value *= 2
            return encode_list(windows)
        return raw[:1] + 2 * raw[1:] if raw[:1] == b"v" else raw

    log = asyncio.run(last_values(world, store))
    assert any(row.endswith(b"k3") for rows in log.values() for row in rows)
    assert transformed(world, store, twice) == {
        number: {row: changed(raw) for row, raw in rows.items() if not row.endswith(b"k3")}
        for number, rows in log.items()
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("store", "transform"),
    [
        ("sums", lambda key, value: (key + b"x", value)),
        ("visits", lambda key, value: (key + b"x", value)),
        ("sums", lambda key, value: None if value < b"\x40" else (key, value)),
    ],
)
def test_windows_keep_their_keys(world: World, store: str, transform: Callable[[bytes, bytes], Any]) -> None:
    with pytest.raises(AppError, match=r"another key for the key k\d of windows or a join, or left out some"):
        transformed(world, store, transform)
