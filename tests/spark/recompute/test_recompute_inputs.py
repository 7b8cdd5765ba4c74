"""An actor of two inputs: what real workers made of them, and what the same code makes of them in one order."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import (
    InputError,
    LogTooShortError,
    TargetError,
    kafka,
    plan_recompute,
    recompute_actor,
    write_rebuild,
)
from spark_replay.recompute.plan import Recompute
from spark_replay.recompute.report import Recomputed
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, read_all, send, unique
from tests.spark.helpers import cut_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
KEYS = [f"k{number}" for number in range(8)]
# The broker deletes what is older than its retention.
START_MS = int(time.time() * 1000) - 3_600_000
JOIN = """
    from datetime import timedelta

    from actors import App, Context

    app = App({name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
    left, right = (app.topic("{name}-" + side, key_type=str, value_type=int) for side in ("left", "right"))
    out = app.topic("{name}-out", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)
    lines = app.store("lines", key_type=str, value_type=list)


    @app.actor(left, right, stores=[sums, lines])
    async def join(ctx: Context, value: int) -> None:
        sums.set(ctx.key, sums.get(ctx.key, 0) + {step})
        lines.set(ctx.key, [*lines.get(ctx.key, []), [ctx.topic[-5:].strip("-"), value]])
        ctx.send(out, key=ctx.key, value=value)
"""

World = tuple[str, str, Path]


def module_of(world: World, step: str = "value", *, suffix: str = "") -> str:
    brokers, name, folder = world
    module = f"{name}{suffix}".replace("-", "_")
    text = textwrap.dedent(JOIN).format(name=name, url=f"kafka://{brokers}", step=step)
    (folder / f"{module}.py").write_text(text)
    return module


async def put(world: World, side: str, numbers: range, *, from_ms: int) -> None:
    """Send numbers to one input, each a millisecond after the one before; every tenth timestamp is 50 ms too early."""
    brokers, name, _ = world
    async with producing(brokers) as producer:
        for number in numbers:
            key = KEYS[number % len(KEYS)]
            at_ms = START_MS + from_ms + number - (50 if number % 10 == 0 else 0)
            await producer.send_and_wait(
                f"{name}-{side}",
                b"%d" % number,
                key.encode(),
                partition=partition_for(key.encode(), PARTITIONS),
                timestamp_ms=at_ms,
            )


async def live(world: World) -> None:
    """All records are there before the first is handled."""
    brokers, name, folder = world
    await make_topics(brokers, *(f"{name}-{end}" for end in ("left", "right", "out")), partitions=PARTITIONS)
    await put(world, "right", range(100), from_ms=0)
    await put(world, "left", range(100, 300), from_ms=-150)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(module_of(world), brokers, folder / "data", PYTHONPATH=path).start()

    async def handled() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= 300

    try:
        await eventually(handled, what=worker.log)
        assert worker.terminate() == 0
    finally:
        worker.kill()


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("inputs")
    made = brokers, unique("two"), folder
    asyncio.run(live(made))
    sys.path.insert(0, str(folder))
    yield made
    sys.path.remove(str(folder))


def recomputed(spark: SparkSession, world: World, module: str) -> Recomputed:
    brokers, _, folder = world
    spark.sparkContext.addPyFile(str(folder / f"{module}.py"))
    return recompute_actor(spark, plan_recompute(spark, brokers, module))


def counts(spark: SparkSession, world: World, module: str) -> dict[str, dict[str, int]]:
    found = recomputed(spark, world, module)
    return {
        store: {kind: count for kind, count in kinds.items() if count} for store, kinds in found.by_store.items()
    } | {"records": {"all": found.records}}


@pytest.mark.nightly
def test_all_inputs_are_replayed_in_the_order_of_their_timestamps(spark: SparkSession, world: World) -> None:
    all_equal = {"sums": {"equal": 8}, "lines": {"equal": 8}, "records": {"all": 300}}
    assert counts(spark, world, module_of(world)) == all_equal


@pytest.mark.nightly
def test_other_code_differs(spark: SparkSession, world: World) -> None:
    module = module_of(world, "(2 * value if ctx.key == 'k1' and ctx.topic.endswith('left') else value)", suffix="-v2")
    found = recomputed(spark, world, module)
    assert {kind: count for kind, count in found.by_store["sums"].items() if count} == {"equal": 7, "different": 1}
    [one] = found.differences
    assert one.log is not None
    assert one.recomputed is not None
    # The last record of the key is the same on both sides, and of the first input.
    assert one.log["source_offset"] == one.recomputed["source_offset"]
    assert (one.log["input"], one.recomputed["input"]) == (0, 0)


@pytest.mark.nightly
def test_what_is_read_of_each_input_is_said(spark: SparkSession, world: World, tmp_path: Path) -> None:
    brokers, name, _ = world
    plan = plan_recompute(spark, brokers, module_of(world))
    assert plan.input == f"{name}-left, {name}-right"
    assert [(part["topic"], part["partition"], part["end_by"]) for part in plan.summary["partitions"]] == [
        (f"{name}-{side}", number, "committed") for side in ("left", "right") for number in range(PARTITIONS)
    ]
    assert plan.offsets >= 300
    with pytest.raises(TargetError, match="a state doesn't say how far the others had been handled"):
        plan_recompute(spark, brokers, module_of(world), from_state=tmp_path)


@pytest.mark.nightly
def test_a_record_that_came_after_later_ones_of_another_input_differs_only_where_order_counts(
    spark: SparkSession, world: World
) -> None:
    brokers, name, folder = world
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(module_of(world), brokers, folder / "data", PYTHONPATH=path).start()

    async def go_on() -> None:
        for count, (side, from_ms) in enumerate({"right": 10_000, "left": 5_000}.items(), 1):
            await put(world, side, range(1, 4), from_ms=from_ms)

            async def handled(wanted: int = 300 + 3 * count) -> bool:
                return len(await read_all(brokers, f"{name}-out")) >= wanted

            await eventually(handled, what=worker.log)

    try:
        asyncio.run(go_on())
        assert worker.terminate() == 0
    finally:
        worker.kill()
    found = counts(spark, world, module_of(world))
    assert found == {"sums": {"equal": 8}, "lines": {"equal": 5, "different": 3}, "records": {"all": 306}}


TIMED = """
    from datetime import timedelta

    from actors import App, Context

    app = App({name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
    left = app.topic("{name}-left", key_type=str, value_type=list, timestamp=lambda value: value[1])
    right = app.topic("{name}-right", key_type=str, value_type=int)
    out = app.topic("{name}-out", key_type=str, value_type=int)
    lines = app.store("lines", key_type=str, value_type=list)


    @app.actor(left, right, stores=[lines], on_error="skip")
    async def join(ctx: Context, value: object) -> None:
        lines.set(ctx.key, [*lines.get(ctx.key, []), value])
        ctx.send(out, key=ctx.key, value=1)
"""


@pytest.mark.nightly
def test_inputs_are_merged_by_the_times_that_their_values_say(spark: SparkSession, world: World) -> None:
    """The records of the first one are all written at the end, and one of them tells no time."""
    brokers, _, folder = world
    name = unique("timed")
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(textwrap.dedent(TIMED).format(name=name, url=f"kafka://{brokers}"))
    asyncio.run(make_topics(brokers, *(f"{name}-{end}" for end in ("left", "right", "out")), partitions=1))

    async def fill() -> None:
        async with producing(brokers) as producer:
            for number in range(40):
                key, at_ms = KEYS[number % 3].encode(), START_MS + number * 10
                told = b"[%d, %s]" % (number, b"null" if number == 20 else b"%d" % (at_ms + 5))
                await producer.send(f"{name}-left", told, key, timestamp_ms=START_MS + 500_000)
                await producer.send(f"{name}-right", b"%d" % number, key, timestamp_ms=at_ms)
            await producer.flush()

    asyncio.run(fill())
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    worker = WorkerProcess(module, brokers, folder / "timed", PYTHONPATH=path).start()

    async def handled() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= 79

    try:
        asyncio.run(eventually(handled, what=worker.log))
        assert worker.terminate() == 0
    finally:
        worker.kill()
    assert counts(spark, world, module) == {"lines": {"equal": 3}, "records": {"all": 80}}


REKEYED = """
    from actors import App, Context

    app = App({name!r}, broker={url!r})
    orders = app.topic("{name}-orders", key_type=str, value_type=dict)
    payments = app.topic("{name}-payments", key_type=str, value_type=dict)
    sums, joined = app.store("sums", key_type=str), app.store("joined", key_type=str)


    @app.actor(payments, by="order", stores=[sums])
    async def add_up(ctx: Context, value: dict) -> None: ...


    @app.actor(orders, payments, by={{payments: "order"}}, stores=[joined])
    async def join(ctx: Context, value: dict) -> None: ...
"""


async def handled_and_deleted(brokers: str, name: str, actor: str, store: str, place: int | None) -> None:
    """Leave what workers leave: a state of 5 payments read by another key, of whose records they deleted 3."""
    topic, changelog = f"{name}--{actor}-{name}-payments-repartition", f"{name}--{store}-changelog"
    await make_topics(brokers, topic, changelog, partitions=1)
    await send(brokers, topic, [(b"o", b"{}")] * 5, partitions=1)
    async with producing(brokers) as producer:
        headers = [(METADATA_HEADER, encode_metadata(1, 4, input=place))]
        await producer.send_and_wait(changelog, b"1", b"o", partition=0, headers=headers)
    await cut_log(brokers, topic, {0: 3})


@pytest.mark.nightly
def test_what_is_said_of_inputs_by_another_key_whose_records_workers_have_deleted(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    brokers, _, folder = world
    name = unique("rekeyed")
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(textwrap.dedent(REKEYED).format(name=name, url=f"kafka://{brokers}"))
    asyncio.run(make_topics(brokers, f"{name}-orders", partitions=1))
    asyncio.run(handled_and_deleted(brokers, name, "add_up", "sums", None))
    asyncio.run(handled_and_deleted(brokers, name, "join", "joined", 1))
    gone = (
        "begins at offset 3, not 0: the inputs before are gone. Workers delete from this topic what they have handled"
    )
    with pytest.raises(InputError, match=f"{gone}.*Begin with the state of that point or a later one"):
        plan_recompute(spark, brokers, module, actor="add_up")
    with pytest.raises(InputError, match=f"{gone}.*Actors with several inputs can't begin with a state"):
        plan_recompute(spark, brokers, module, actor="join")
    # Each remedy, as printed.
    write_rebuild(kafka(spark, brokers, f"{name}--sums-changelog"), to=tmp_path / "sums")
    assert starts(plan_recompute(spark, brokers, module, actor="add_up", from_state=tmp_path)) == [5]
    assert starts(plan_recompute(spark, brokers, module, actor="add_up", accept_missing_input=True)) == [3]
    assert starts(plan_recompute(spark, brokers, module, actor="join", accept_missing_input=True)) == [0, 3]
    with pytest.raises(TargetError, match="Leave it out"):
        plan_recompute(spark, brokers, module, actor="join", from_state=tmp_path)
    # Of the records behind the state some are deleted, and they may have written nothing.
    topic = f"{name}--add_up-{name}-payments-repartition"
    asyncio.run(send(brokers, topic, [(b"o", b"{}")] * 3, partitions=1))
    asyncio.run(cut_log(brokers, topic, {0: 7}))
    with pytest.raises(LogTooShortError, match=r"begins at offset 7, after the state's 5.*--accept-missing-input"):
        plan_recompute(spark, brokers, module, actor="add_up", from_state=tmp_path)
    accepted = plan_recompute(spark, brokers, module, actor="add_up", from_state=tmp_path, accept_missing_input=True)
    assert starts(accepted) == [7]


def starts(plan: Recompute) -> list[int]:
    return [start for one in plan.inputs for start in one.starts]
