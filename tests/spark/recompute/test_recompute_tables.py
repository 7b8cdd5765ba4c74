"""A table and the orders that read it: what a real worker made of them, and what the same code makes of them."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import plan_recompute, recompute_actor
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, read_all, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = [f"k{number}" for number in range(8)]
START_MS = int(time.time() * 1000) - 3_600_000
TABLES = """
    from datetime import timedelta

    from actors import App, Context

    app = App({name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
    orders = app.topic("{name}-orders", key_type=str, value_type=int)
    out = app.topic("{name}-out", key_type=str, value_type=int)
    rates = app.table(app.topic("{name}-rates", key_type=str, value_type=int), name="rates", history=timedelta(hours=2))
    seen = app.store("seen", key_type=str, value_type=list)


    @app.actor(orders, stores=[rates, seen], max_task_idle=timedelta(seconds=60))
    async def order(ctx: Context, number: int) -> None:
        rate, before = rates.get(ctx.key), rates.get(ctx.key, as_of=ctx.timestamp_ms - 20)
        seen.set(ctx.key, [*seen.get(ctx.key, []), [number, rate, before]])
        ctx.send(out, key=ctx.key, value=number)
"""


async def put(brokers: str, topic: str, count: int) -> None:
    """Send numbers; each key has an order and a rate of the same time."""
    async with producing(brokers) as producer:
        for number in range(count):
            key = KEYS[number % len(KEYS)].encode()
            value = None if topic.endswith("rates") and number % 11 == 0 else b"%d" % number
            partition, at_ms = partition_for(key, PARTITIONS), START_MS + number * 5
            await producer.send_and_wait(topic, value, key, partition=partition, timestamp_ms=at_ms)


async def live(brokers: str, name: str, module: str, folder: Path) -> None:
    """All records are there before the first is handled."""
    await make_topics(brokers, *(f"{name}-{end}" for end in ("orders", "rates", "out")), partitions=PARTITIONS)
    await put(brokers, f"{name}-rates", 160)
    await put(brokers, f"{name}-orders", 160)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(module, brokers, folder / "data", PYTHONPATH=path).start()

    async def handled() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= 160

    try:
        await eventually(handled, what=worker.log)
        assert worker.terminate() == 0
    finally:
        worker.kill()


@pytest.mark.nightly
def test_orders_meet_the_rows_that_they_met(
    spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("tables")
    module = name.replace("-", "_")
    text = textwrap.dedent(TABLES).format(name=name, url=f"kafka://{brokers}")
    (tmp_path / f"{module}.py").write_text(text)
    asyncio.run(live(brokers, name, module, tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    spark.sparkContext.addPyFile(str(tmp_path / f"{module}.py"))
    found = recompute_actor(spark, plan_recompute(spark, brokers, module))
    kinds = {store: {kind for kind, count in counted.items() if count} for store, counted in found.by_store.items()}
    assert kinds == {store: {"equal"} for store in ("rates", "rates-history", "seen")}
    assert found.by_store["seen"]["equal"] == len(KEYS)
    assert found.records == 320
    sys.modules.pop(module, None)
