"""The store of a real worker's join whose records expired: validated, rebuilt, recomputed, and damaged."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from actors._core.windows.join_rows import decode_chunk, encode_chunk, with_last_chunk
from actors._core.windows.lists import number_of
from spark_replay import (
    Asked,
    find_violations,
    kafka,
    publish_state,
    rebuild_state,
    validate_exports,
    validate_states,
    write_rebuild,
)
from stores._core.printable import moment
from stores._core.windows import PROGRESS_KEY, decode_progress
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, unique
from tests.spark.comparison.test_window_stores import (
    World,
    expired,
    last_values,
    move,
    named_by_watch,
    recomputed,
    rewrite,
    rows_of,
    transformed,
    twice,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = [f"k{number}" for number in range(8)]
RECORDS = 400
WITHIN_MS, GRACE_MS = 10_000, 5_000
START_MS = (int(time.time()) - 7_200) * 1000
APP = """
    from datetime import timedelta

    from actors import App, Context

    app = App(
        {name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5, broker_commit_interval=0.05
    )
    left, right = (app.topic(f"{name}-{{side}}", key_type=str, value_type=int) for side in ("left", "right"))
    totals = app.store("totals", key_type=str, value_type=int)


    @app.join(
        left,
        right,
        within=timedelta(seconds=10),
        grace=timedelta(seconds=5),
        how="outer",
        stores=[totals],
        name="pairs",
    )
    async def pair(ctx: Context, one: int | None, other: int | None) -> None:
        totals.set(ctx.key, totals.get(ctx.key, 0) + (one or 1000) * (other or 1))
"""


class Joined(World):
    """An app with a join."""

    def module(self, step: str = "", *, suffix: str = "") -> str:
        module = f"{self.name}{suffix}".replace("-", "_")
        text = textwrap.dedent(APP).format(name=self.name, url=f"kafka://{self.brokers}")
        (self.folder / f"{module}.py").write_text(text)
        return module


def inputs(side: str) -> Iterator[tuple[str, int, int]]:
    """Give a record each second, each seventh 12 s too early; keys have more of one side than of the other."""
    for number in range(RECORDS):
        place = number * (5 if side == "left" else 3)
        key = KEYS[place % len(KEYS) if number % 3 else 0]
        yield key, number + 1, START_MS + 1000 * (number - (12 if number % 7 == 0 else 0))
    # Both partitions come so far that all but the newest records are over.
    yield from ((key, RECORDS, START_MS + 1000 * (RECORDS + 60)) for key in KEYS)


async def run(world: World) -> None:
    brokers, name = world.brokers, world.name
    await make_topics(brokers, f"{name}-left", f"{name}-right", partitions=PARTITIONS)
    async with producing(brokers) as producer:
        for side in ("left", "right"):
            for key, amount, at_ms in inputs(side):
                home = partition_for(key.encode(), PARTITIONS)
                await producer.send(f"{name}-{side}", b"%d" % amount, key.encode(), partition=home, timestamp_ms=at_ms)
        await producer.flush()
    path = os.pathsep.join([str(world.folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(world.module(), brokers, world.data, PYTHONPATH=path).start()

    async def closed() -> bool:
        log = await last_values(world, "pairs")
        return len(log) == PARTITIONS and not any(map(waiting, log.values()))

    try:
        await eventually(closed, deadline_s=180, what=worker.log)
        assert worker.terminate() == 0
    finally:
        worker.kill()


def waiting(rows: dict[bytes, bytes]) -> bool:
    """Tell whether the last message wasn't handled, or a record without a match wasn't handed out."""
    if PROGRESS_KEY not in rows:
        return True
    stream_ms = decode_progress(rows[PROGRESS_KEY]).stream_ms
    ends_ms = [int.from_bytes(row[1:9]) for row in rows if row[:1] == b"u"]
    return stream_ms < START_MS + 1000 * (RECORDS + 60) or any(end_ms + GRACE_MS < stream_ms for end_ms in ends_ms)


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = Joined(spark, brokers, unique("joins"), tmp_path_factory.mktemp("joins"))
    asyncio.run(run(made))
    sys.path.insert(0, str(made.folder))
    yield made
    sys.path.remove(str(made.folder))


def test_a_disk_is_equal_to_its_log(world: World, tmp_path: Path) -> None:
    log, removed = asyncio.run(last_values(world, "pairs")), 0
    for number, file in world.export("pairs", tmp_path).items():
        live, held = log[number], rows_of(file)
        assert held.keys() <= live.keys()
        assert live.keys() - held.keys() <= expired(live)
        removed += len(live) - len(held)
    assert removed > 20, "the worker removed records that the log still has"
    report = validate_exports(world.log("pairs"), against=world.data, invariants=Asked())
    assert report.is_clean, report
    assert report.counts["equal"] == report.keys > len(KEYS)


@pytest.mark.nightly
@pytest.mark.parametrize("damage", ["different", "missing"])
def test_planted_damage_of_records_that_are_kept_is_found(world: World, tmp_path: Path, damage: str) -> None:
    file = world.export("pairs", tmp_path)[0]
    rows = pq.ParquetFile(file).read().to_pylist()
    past = expired(rows_of(file))
    planted = next(one for one in rows if one["key"][:1] == b"j" and one["key"] not in past)
    if damage == "missing":
        rewrite(file, [one for one in rows if one is not planted])
    else:
        rewrite(file, [one | {"value": b"c\x92\x91\x92\x05\xc4\x019\x00"} if one is planted else one for one in rows])
    report = validate_exports(world.log("pairs"), against=tmp_path)
    assert report.mismatches == report.counts[damage] == 1
    [example] = report.examples[damage]
    key, segment, side = planted["key"][14:].decode(), int.from_bytes(planted["key"][1:9]), planted["key"][9]
    assert example.key == f"{key}, the {('left', 'right')[side]} records of segment {segment}"
    if damage == "different":
        assert example.export is not None
        assert example.export["value"] == f"{moment(5)}: 9"


@pytest.mark.nightly
def test_records_in_another_partition_than_their_keys_are_found(world: World, tmp_path: Path) -> None:
    move(world.export("pairs", tmp_path), b"j")
    report = validate_exports(world.log("pairs"), against=tmp_path)
    assert report.mismatches == 2
    assert report.counts["missing"] == report.counts["wrong_partition"] == 1
    [example] = report.examples["wrong_partition"]
    assert example.seen == "belongs in partition 0, found in 1 in the export"


@pytest.mark.nightly
def test_records_that_are_past_their_retention_may_be_held_still(world: World, tmp_path: Path) -> None:
    file = world.export("pairs", tmp_path)[0]
    rows = pq.ParquetFile(file).read().to_pylist()
    rewrite(file, [*rows, rows[0] | {"key": b"j" + bytes(13) + b"old", "value": b"c"}])
    report = validate_exports(world.log("pairs"), against=tmp_path)
    assert report.is_clean, report
    assert report.over > 0


@pytest.mark.nightly
def test_a_rebuild_has_no_record_that_is_past_its_retention(world: World, tmp_path: Path) -> None:
    rebuilt = write_rebuild(world.log("pairs"), to=tmp_path / "pairs", app=world.module())
    rows = rebuild_state(world.log("pairs"), app=world.module()).collect()
    assert rebuilt.keys == len(rows)
    assert rebuilt.undecodable == 0
    shown = {tuple(json.loads(row["key_json"])[:2]) for row in rows if bytes(row["key"])[:1] == b"j"}
    assert shown == {(side, key) for side in ("left", "right") for key in KEYS}
    for row in rows:
        if bytes(row["key"])[:1] == b"j":
            records = decode_chunk(bytes(row["value"]))
            assert json.loads(row["value_json"]) == [[one.at_ms, json.loads(one.value)] for one in records]
    for number in range(PARTITIONS):
        own = {bytes(row["key"]): bytes(row["value"]) for row in rows if row["partition"] == number}
        assert not expired(own)
    report = validate_exports(world.log("pairs"), against=tmp_path / "pairs")
    assert report.is_clean, report


@pytest.mark.nightly
def test_two_logs_and_two_points_are_compared(world: World) -> None:
    log = world.log("pairs")
    copy = kafka(world.spark, world.brokers, f"{world.name}--copy-changelog")
    publish_state(log, copy)
    report = validate_states(log, copy)
    assert report.is_clean, report
    assert report.counts["equal"] == report.keys > len(KEYS)
    report = validate_states(
        log, log, against_as_of=f"offset:{','.join(f'{number}=60' for number in range(PARTITIONS))}"
    )
    assert report.mismatches > len(KEYS)


@pytest.mark.nightly
def test_the_checks_of_a_log_know_where_records_belong(world: World) -> None:
    log = world.log("pairs")
    found = {finding.check: finding.count for finding in find_violations(log, log.describe(), Asked())}
    assert found == dict.fromkeys(("epochs", "source_offsets", "metadata", "partitioner"), 0)


@pytest.mark.nightly
def test_the_inputs_lead_to_the_same_records_and_pairs(world: World) -> None:
    found = recomputed(world, world.module())
    kinds = {store: {kind for kind, count in counts.items() if count} for store, counts in found.by_store.items()}
    assert kinds == {"pairs": {"equal"}, "totals": {"equal"}}
    assert found.by_store["totals"]["equal"] == len(KEYS)
    assert found.records == 2 * (RECORDS + len(KEYS))


@pytest.mark.nightly
def test_a_watch_names_changed_records(world: World, tmp_path: Path) -> None:
    row, example = named_by_watch(world, "pairs", tmp_path, b"j", b"c\0\0\0\0\x91\x92\x05\xc4\x019")
    segment, side = int.from_bytes(row[1:9]), ("left", "right")[row[9]]
    assert example.key == f"{row[14:].decode()}, the {side} records of segment {segment}"
    assert example.export is not None
    assert example.export["value"] == f"{moment(5)}: 9"


@pytest.mark.nightly
def test_values_of_records_are_transformed(world: World) -> None:
    def changed(raw: bytes) -> bytes:
        if raw[:1] != b"c":
            return raw
        records = decode_chunk(raw)
        for record in records:
            record.value *= 2
        return with_last_chunk(encode_chunk(records), number_of(raw))

    log = asyncio.run(last_values(world, "pairs"))
    assert transformed(world, "pairs", twice) == {
        number: {row: changed(raw) for row, raw in rows.items() if not row.endswith(b"k3")}
        for number, rows in log.items()
    }
