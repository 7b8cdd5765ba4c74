"""A table and the orders that read it: what a real worker made of them, audited, rebuilt, and handled again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from actors._core.windows.versions import MARK_KEY, decode_mark, decode_versions
from actors.runtime.message.grouping import TIME_BYTES
from spark_replay import (
    Asked,
    kafka,
    plan_recompute,
    publish_state,
    rebuild_state,
    recompute_actor,
    validate_exports,
    validate_states,
    write_rebuild,
)
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, read_all, unique
from tests.spark.comparison.test_window_stores import World, rewrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = [f"k{number}" for number in range(8)]
RECORDS = 160
STEP_MS = 5
HISTORY_MS = 400
"""Half as long as all records take: what is older is removed."""
START_MS = int(time.time() * 1000) - 3_600_000
STORES = ("rates", "rates-history")
APP = """
    from datetime import timedelta

    from actors import App, Context

    app = App({name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
    orders = app.topic("{name}-orders", key_type=str, value_type=int)
    out = app.topic("{name}-out", key_type=str, value_type=int)
    rates = app.table(
        app.topic("{name}-rates", key_type=str, value_type=int),
        name="rates",
        history=timedelta(milliseconds={history_ms}),
    )
    seen = app.store("seen", key_type=str, value_type=list)


    @app.actor(orders, stores=[rates, seen])
    async def order(ctx: Context, number: int) -> None:
        rate, before = rates.get(ctx.key), rates.get(ctx.key, as_of=ctx.timestamp_ms - 20)
        seen.set(ctx.key, [*seen.get(ctx.key, []), [number, rate, before]])
        ctx.send(out, key=ctx.key, value=number)
"""


class Tables(World):
    """An app with a table."""

    def module(self, step: str = "", *, suffix: str = "") -> str:
        module = f"{self.name}{suffix}".replace("-", "_")
        url = f"kafka://{self.brokers}"
        text = textwrap.dedent(APP).format(name=self.name, url=url, history_ms=HISTORY_MS)
        (self.folder / f"{module}.py").write_text(text)
        return module

    def placement(self, store: str) -> str:
        """Rows of a history lie where the rows of their table do, and have other keys."""
        return "key" if store == "rates" else "task"


def rates() -> Iterator[tuple[str, int | None, int]]:
    """Key, value and time of each row's change; each eleventh is a delete."""
    for number in range(RECORDS):
        yield KEYS[number % len(KEYS)], None if number % 11 == 0 else number, START_MS + number * STEP_MS


def versions() -> dict[str, list[tuple[int, int, int | None]]]:
    """Start, end and value of each former value of a key, in order."""
    found: dict[str, list[tuple[int, int, int | None]]] = {key: [] for key in KEYS}
    last: dict[str, tuple[int, int | None]] = {}
    for key, value, at_ms in rates():
        if key in last:
            found[key].append((last[key][0], at_ms, last[key][1]))
        last[key] = at_ms, value
    return found


async def live(world: World) -> None:
    """All records are there before the first is handled; each key has an order and a rate of the same time."""
    brokers, name = world.brokers, world.name
    await make_topics(brokers, *(f"{name}-{end}" for end in ("orders", "rates", "out")), partitions=PARTITIONS)
    async with producing(brokers) as producer:
        for key, value, at_ms in rates():
            place: dict[str, Any] = {"partition": partition_for(key.encode(), PARTITIONS), "timestamp_ms": at_ms}
            number = b"%d" % ((at_ms - START_MS) // STEP_MS)
            await producer.send(f"{name}-rates", None if value is None else number, key.encode(), **place)
            await producer.send(f"{name}-orders", number, key.encode(), **place)
        await producer.flush()
    path = os.pathsep.join([str(world.folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(world.module(), brokers, world.data, PYTHONPATH=path).start()

    async def handled() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= RECORDS

    try:
        await eventually(handled, what=worker.log)
        assert worker.terminate() == 0
    finally:
        worker.kill()


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made = Tables(spark, brokers, unique("tables"), tmp_path_factory.mktemp("tables"))
    asyncio.run(live(made))
    sys.path.insert(0, str(made.folder))
    yield made
    sys.path.remove(str(made.folder))
    sys.modules.pop(made.module(), None)


@pytest.mark.parametrize("store", [pytest.param("rates", marks=pytest.mark.nightly), "rates-history"])
def test_a_disk_is_equal_to_its_log(world: Tables, store: str) -> None:
    placement = world.placement(store)
    report = validate_exports(world.log(store), against=world.data, placement=placement, invariants=Asked())
    assert report.is_clean, report
    assert report.counts["equal"] == report.keys > 5


def test_a_rebuild_has_the_latest_values(world: Tables, tmp_path: Path) -> None:
    rebuilt = write_rebuild(world.log("rates"), to=tmp_path / "rates", app=world.module())
    assert rebuilt.undecodable == 0
    rows = rebuild_state(world.log("rates"), app=world.module()).collect()
    latest = {key: value for key, value, _ in rates()}
    found = {json.loads(row["key_json"]): json.loads(row["value_json"]) for row in rows}
    assert found == {key: value for key, value in latest.items() if value is not None}
    report = validate_exports(world.log("rates"), against=tmp_path / "rates")
    assert report.is_clean, report


def test_a_rebuild_has_the_history(world: Tables, tmp_path: Path) -> None:
    """Former values are there as far as the history goes back, each with its time, and none that never was."""
    write_rebuild(world.log("rates-history"), to=tmp_path / "history")
    rows = [(row["partition"], bytes(row["key"]), bytes(row["value"])) for row in pq_rows(tmp_path / "history")]
    newest_ms = {partition: decode_mark(raw).newest_ms for partition, row, raw in rows if row == MARK_KEY}
    assert newest_ms.keys() == set(range(PARTITIONS))
    found: dict[str, list[tuple[int, int, int | None]]] = {}
    for _, row, raw in sorted(rows):
        if row[:1] == b"h":
            values = [(one.start_ms, one.end_ms, one.value) for one in decode_versions(raw)]
            own = found.setdefault(row[9:].decode(), [])
            # The record's time is in front of its value.
            own += [(start, end, None if value is None else int(value[TIME_BYTES:])) for start, end, value in values]
    for key, wanted in versions().items():
        since_ms = newest_ms[partition_for(key.encode(), PARTITIONS)] - HISTORY_MS
        assert {one for one in wanted if one[1] > since_ms} <= set(found[key]) <= set(wanted)
    assert sum(map(len, found.values())) < sum(map(len, versions().values())), "old ones are removed"
    report = validate_exports(world.log("rates-history"), against=tmp_path / "history", placement="task")
    assert report.is_clean, report


def pq_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a rebuild."""
    return [
        row | {"partition": int(file.parent.name.partition("=")[2])}
        for file in folder.glob("partition=*/*.parquet")
        for row in pq.ParquetFile(file).read().to_pylist()
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
def test_two_logs_are_compared(world: Tables, store: str) -> None:
    log = world.log(store)
    copy = kafka(world.spark, world.brokers, f"{world.name}--{store}-copy-changelog")
    publish_state(log, copy)
    report = validate_states(log, copy)
    assert report.is_clean, report
    assert report.counts["equal"] == report.keys > 5


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("damage", ["different", "missing"])
def test_planted_damage_of_a_row_is_found(world: Tables, tmp_path: Path, store: str, damage: str) -> None:
    file = world.export(store, tmp_path)[0]
    rows = pq.ParquetFile(file).read().to_pylist()
    planted = rows[0]
    if damage == "missing":
        rewrite(file, rows[1:])
    else:
        rewrite(file, [planted | {"value": planted["value"][:-1] + b"?"}, *rows[1:]])
    report = validate_exports(world.log(store), against=tmp_path)
    assert report.mismatches == report.counts[damage] == 1


@pytest.mark.nightly
def test_orders_meet_the_rows_that_they_met(world: Tables) -> None:
    module = world.module()
    world.spark.sparkContext.addPyFile(str(world.folder / f"{module}.py"))
    found = recompute_actor(world.spark, plan_recompute(world.spark, world.brokers, module))
    kinds = {store: {kind for kind, count in counted.items() if count} for store, counted in found.by_store.items()}
    assert kinds == {store: {"equal"} for store in (*STORES, "seen")}
    assert found.by_store["seen"]["equal"] == len(KEYS)
    assert found.records == 2 * RECORDS
