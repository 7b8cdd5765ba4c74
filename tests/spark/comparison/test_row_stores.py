"""Map, list and set stores of a real worker that was killed: exact, validated, rebuilt as columns, and damaged."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from actors._core.values.rows import decode_span, row_parts
from spark_replay import Asked, rebuild_state, validate_exports
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, read_all, unique
from tests.spark.comparison.test_window_stores import World, last_values, rewrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = [f"room {number}" for number in range(5)]
MESSAGES = 1_500
KEPT = 100
APP = """
    from actors import App, Context

    app = App(
        {name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5, broker_commit_interval=0.02
    )
    source = app.topic("{name}-in", key_type=str, value_type=int)
    out = app.topic("{name}-out", key_type=str, value_type=int)
    lines = app.list_store("lines", value_type=int)
    counts = app.map_store("counts", row_type=int, value_type=int)
    tags = app.set_store("tags", row_type=str)


    @app.actor(source, stores=[lines, counts, tags], name="rooms")
    async def add(ctx: Context, number: int) -> None:
        rows, per_digit = lines.at(ctx.key), counts.at(ctx.key)
        rows.append(number)
        del rows[:-{kept}]
        per_digit[number % 10] = per_digit.get(number % 10, 0) + 1
        tags.at(ctx.key).add(str(number % 7))
        ctx.send(out, key=ctx.key, value=len(rows))
"""


class Rooms(World):
    """An app with rows below its keys."""

    def module(self, step: str = "", *, suffix: str = "") -> str:
        module = f"{self.name}{suffix}".replace("-", "_")
        text = textwrap.dedent(APP).format(name=self.name, url=f"kafka://{self.brokers}", kept=KEPT)
        (self.folder / f"{module}.py").write_text(text)
        return module

    def placement(self, store: str) -> str:
        return "row"


async def run(world: World) -> None:
    brokers, name = world.brokers, world.name
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS)
    path = os.pathsep.join([str(world.folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(world.module(), brokers, world.data, PYTHONPATH=path).start()

    async def handled(count: int) -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= count

    try:
        async with producing(brokers) as producer:
            for number in range(MESSAGES):
                key = KEYS[number % len(KEYS)]
                home = partition_for(key.encode(), PARTITIONS)
                await producer.send(f"{name}-in", b"%d" % number, key.encode(), partition=home)
                if number % 1_000 == 500:
                    await producer.flush()
                    await eventually(lambda: handled(number // 2), deadline_s=180, what=worker.log)  # noqa: B023
                    worker.kill()
                    worker.start()
            await producer.flush()
        await eventually(lambda: handled(MESSAGES), deadline_s=180, what=worker.log)
        assert worker.terminate() == 0
        assert len(await read_all(brokers, f"{name}-out")) == MESSAGES
    finally:
        worker.kill()


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rooms = Rooms(spark, brokers, unique("rooms"), tmp_path_factory.mktemp("rooms"))
    asyncio.run(run(rooms))
    sys.path.insert(0, str(rooms.folder))
    yield rooms
    sys.path.remove(str(rooms.folder))


def of_key(key: str) -> list[int]:
    return [number for number in range(MESSAGES) if KEYS[number % len(KEYS)] == key]


def test_rows_are_exact_under_kills(world: World) -> None:
    for store in ("lines", "counts", "tags"):
        rows: dict[str, dict[bytes, bytes]] = {key: {} for key in KEYS}
        spans = {}
        for part in asyncio.run(last_values(world, store)).values():
            for raw, value in part.items():
                raw_key, row = row_parts(raw)
                if row is None:
                    spans[raw_key.decode()] = decode_span(value)
                else:
                    rows[raw_key.decode()][row] = value
        for key, content in rows.items():
            numbers = of_key(key)
            first, end = spans[key]
            assert end - first == len(content)
            if store == "lines":
                assert [int(content[place.to_bytes(8)]) for place in range(first, end)] == numbers[-KEPT:]
            elif store == "counts":
                wanted = Counter(number % 10 for number in numbers)
                assert {int(row): int(value) for row, value in content.items()} == wanted
            else:
                assert {int(row) for row in content} == {number % 7 for number in numbers}


@pytest.mark.parametrize("store", ["lines", pytest.param("tags", marks=pytest.mark.nightly)])
def test_a_disk_is_equal_to_its_log(world: World, store: str) -> None:
    report = validate_exports(world.log(store), against=world.data, placement="row", invariants=Asked())
    assert report.is_clean, report
    assert report.counts["equal"] == report.keys >= len(KEYS)


@pytest.mark.nightly
def test_a_row_in_another_partition_than_its_key_is_found(world: World, tmp_path: Path) -> None:
    files = world.export("lines", tmp_path)
    mine, theirs = (pq.ParquetFile(files[number]).read().to_pylist() for number in (0, 1))
    rewrite(files[0], mine[1:])
    rewrite(files[1], [*theirs, mine[0] | {"partition": 1}])
    report = validate_exports(world.log("lines"), against=tmp_path)
    assert report.counts["missing"] == report.counts["wrong_partition"] == 1
    [example] = report.examples["wrong_partition"]
    assert example.seen == "belongs in partition 0, found in 1 in the export"


def test_a_rebuild_has_keys_and_rows_as_columns(world: World) -> None:
    rows = rebuild_state(world.log("counts"), app=world.module()).collect()
    shown = {(row["key_json"], row["row_json"]): row["value_json"] for row in rows}
    for key in KEYS:
        wanted = Counter(number % 10 for number in of_key(key))
        of_rows = {
            json.loads(row): json.loads(value) for (of, row), value in shown.items() if of == json.dumps(key) and row
        }
        assert of_rows == wanted
        assert json.loads(shown[json.dumps(key), None]) == {"first": 0, "end": len(wanted)}
