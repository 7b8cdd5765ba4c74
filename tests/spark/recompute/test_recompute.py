"""Real workers, one of them killed; then their input through the same code, through other code, and past damage."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition
from click.testing import CliRunner, Result

from spark_replay import (
    AppError,
    InputError,
    Recompute,
    Recomputed,
    RecomputeError,
    TargetError,
    UnknownTopicError,
    kafka,
    plan_recompute,
    recompute_actor,
    recompute_keys,
    write_rebuild,
)
from spark_replay.cli import main
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.documents import block
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, send, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
KEYS = [f"k{number}" for number in range(40)]
COUNTER = """
    import os
    import random
    from datetime import timedelta

    import msgspec

    from actors import Actor, App, Context, receive

    app = App({name!r}, broker={url!r}, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
    source = app.topic("{name}-in", key_type=str, value_type=str)
    counts = app.store("counts", key_type=str, value_type=int)
    dice = app.store("dice", key_type=str, value_type=float)
    echo = app.topic("{name}-out", key_type=str, value_type=str)


    @app.actor(source, stores=[counts, dice])
    async def count(ctx: Context, value: str) -> None:
        if value == "forget":
            counts.delete(ctx.key)
            return
        counts.set(ctx.key, (counts.get(ctx.key) or 0) + {step})
        if ctx.key.endswith("7"):
            dice.set(ctx.key, random.random())
        ctx.send(echo, key=ctx.key, value=value)


    class Beat(msgspec.Struct, tag="beat"):
        pass


    class Start(msgspec.Struct, tag="start"):
        pass


    class Heart(msgspec.Struct):
        beats: int = 0


    starts = app.topic("{name}-starts", key_type=str)


    @app.actor(starts, timers=True)
    class Monitor(Actor[Heart]):
        @receive
        async def start(self, _: Start) -> None:
            self.ctx.schedule(Beat(), after=timedelta(milliseconds=50), name="beat")

        @receive
        async def beat(self, _: Beat) -> None:
            self.state.beats += 1
            if self.state.beats < 5:
                self.ctx.schedule(Beat(), after=timedelta(milliseconds=50), name="beat")
"""


@dataclass
class World:
    """An app whose workers ran and stopped, and modules with other versions of it."""

    brokers: str
    folder: Path
    name: str

    def module(self, step: str = "1", *, suffix: str = "") -> str:
        """Write a version of the app; give its module's name."""
        module = f"{self.name}{suffix}".replace("-", "_")
        text = textwrap.dedent(COUNTER).format(name=self.name, url=f"kafka://{self.brokers}", step=step)
        (self.folder / f"{module}.py").write_text(text)
        return module

    def changelog(self, store: str = "counts") -> str:
        return f"{self.name}--{store}-changelog"

    async def make(self) -> None:
        await make_topics(
            self.brokers, *(f"{self.name}-{end}" for end in ("in", "out", "starts")), partitions=PARTITIONS
        )

    async def put(self, *records: tuple[str, str], topic: str = "in") -> None:
        pairs = [(key.encode(), value.encode()) for key, value in records]
        await send(self.brokers, f"{self.name}-{topic}", pairs, partitions=PARTITIONS)

    def worker(self, label: str) -> WorkerProcess:
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        return WorkerProcess(self.module(), self.brokers, self.folder / label, PYTHONPATH=path).start()

    async def handled(self, count: int) -> None:
        """Wait until so many inputs were echoed."""
        out = f"{self.name}-out"

        async def done() -> bool:
            return len(await read_all(self.brokers, out)) >= count

        await eventually(done)


async def live(world: World) -> int:
    """Two workers, one of them killed in the middle, inputs before and after; gives how many there were."""
    await world.make()
    first, second = world.worker("first"), world.worker("second")
    try:
        batches = [[(KEYS[(7 * n + batch) % 40], f"{batch}-{n}") for n in range(150)] for batch in range(4)]
        await world.put(*batches[0])
        await world.put(*((key, json.dumps({"type": "start"})) for key in KEYS[:5]), topic="starts")
        await world.handled(150)
        await world.put(*batches[1])
        first.kill()
        await world.put(*batches[2])
        await world.put(("k3", "forget"))
        await world.put(*batches[3])
        await world.handled(600)
        monitor = f"{world.name}--Monitor-changelog"

        async def beaten() -> bool:
            records = await read_all(world.brokers, monitor)
            return {record.key: record.value for record in records} == {
                key.encode(): b'{"beats":5}' for key in KEYS[:5]
            }

        await eventually(beaten)
        assert second.terminate() == 0, second.log()
    finally:
        first.kill()
        second.kill()
    return 601


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("recompute")
    made = World(brokers, folder, unique("recount"))
    assert asyncio.run(live(made)) == 601
    sys.path.insert(0, str(folder))
    yield made
    sys.path.remove(str(folder))


Run = Callable[..., Recomputed]


@pytest.fixture
def plan(spark: SparkSession, world: World) -> Callable[..., Recompute]:
    def plan(module: str, actor: str | None = "count", **options: object) -> Recompute:
        spark.sparkContext.addPyFile(str(world.folder / f"{module}.py"))
        return plan_recompute(spark, world.brokers, module, actor=actor, **options)

    return plan


@pytest.fixture
def run(spark: SparkSession, plan: Callable[..., Recompute]) -> Run:
    return lambda *args, **options: recompute_actor(spark, plan(*args, **options))


def kinds(found: Recomputed) -> dict[str, int]:
    return {kind: count for kind, count in found.counts.items() if count}


@pytest.mark.nightly
def test_the_same_code_gives_the_same_state(run: Run, world: World):
    found = run(world.module(), store="counts")
    assert kinds(found) == {"equal": 40}
    assert (found.records, found.mismatches, found.unknown_events) == (601, 0, {})
    assert {part["end_by"] for part in found.partitions} == {"committed"}


@pytest.mark.nightly
def test_the_example_of_the_page(world: World, plan: Callable[..., Recompute]):
    module = world.module()
    plan(module)
    changes = {"127.0.0.1:9092": world.brokers, '"shop"': f'"{module}"'}
    names = block("docs/reference/api/spark_replay.md", "Examples", 4).run({}, changes=changes)
    assert (names["plan"].actor, names["found"].mismatches) == ("count", 4)
    assert names["differing"].count() == 4


@pytest.mark.nightly
def test_timers_fire_as_they_did(run: Run, world: World):
    found = run(world.module(), "Monitor")
    assert kinds(found) == {"equal": 5}


@pytest.mark.nightly
def test_what_is_not_a_function_of_the_input_is_found(run: Run, world: World):
    found = run(world.module())
    assert found.by_store["counts"]["equal"] == 40
    assert {one.key for one in found.differences} == {"k7", "k17", "k27", "k37"}
    assert {one.store for one in found.differences} == {"dice"}
    assert kinds(found) == {"equal": 40, "different": 4}


@pytest.mark.nightly
def test_a_new_version_of_the_code_differs_for_the_keys_that_it_treats_otherwise(
    spark: SparkSession, plan: Callable[..., Recompute], world: World
):
    module = world.module("(2 if ctx.key in ('k1', 'k12') else 1)", suffix="-v2")
    judged = recompute_keys(spark, plan(module, store="counts"))
    rows = {bytes(row["key"]).decode(): row for row in judged.where("kind != 'equal'").collect()}
    assert sorted(rows) == ["k1", "k12"]
    assert {row["kind"] for row in rows.values()} == {"different"}
    for row in rows.values():
        assert int(row["recomputed"]["value"]) == 2 * int(row["log"]["value"])
        assert row["recomputed"]["source_offset"] == row["log"]["source_offset"]


@pytest.mark.nightly
def test_keys_that_only_one_side_has(run: Run, world: World):
    module = world.module("(1 if ctx.key != 'k2' else ctx.headers[0])", suffix="-v3")
    found = run(module, store="counts")
    assert kinds(found) == {"equal": 39, "unknown": 1}
    [one] = found.differences
    assert (one.key, one.recomputed) == ("k2", None)
    assert "raised IndexError" in (one.unknown or "")
    inputs = asyncio.run(read_all(world.brokers, f"{world.name}-in"))
    reason = one.unknown.split(": ", 1)[1]
    assert found.unknown_events == {reason: sum(record.key == b"k2" for record in inputs)}
    module = world.module(
        "1)\n    if ctx.key in ('k4', 'k5'):\n        counts.delete(ctx.key)\n    int(1", suffix="-v4"
    )
    found = run(module, store="counts")
    assert kinds(found) == {"equal": 38, "only_changelog": 2}


@pytest.mark.nightly
def test_inputs_that_no_worker_has_handled_do_not_count(run: Run, world: World):
    asyncio.run(world.put(*((key, "later") for key in KEYS[:10])))
    found = run(world.module(), store="counts")
    assert (kinds(found), found.records) == ({"equal": 40}, 601)


@pytest.mark.nightly
def test_without_a_committed_offset_the_changelogs_say_how_far_the_workers_are(
    spark: SparkSession, run: Run, world: World
):
    offsets = asyncio.run(committed(world))
    forget(spark, world)
    try:
        found = run(world.module(), store="counts")
        assert kinds(found) == {"equal": 40}
        assert {part["end_by"] for part in found.partitions} == {"changelog"}
    finally:
        asyncio.run(commit(world, offsets))


def forget(spark: SparkSession, world: World) -> None:
    """Delete the group, as happens to one that is away for a week."""
    jvm = spark._jvm
    settings, groups = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    settings.put("bootstrap.servers", world.brokers)
    groups.add(f"{world.name}-actors")
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    admin.deleteConsumerGroups(groups).all().get()
    admin.close()


async def committed(world: World) -> dict:
    admin = AIOKafkaAdminClient(bootstrap_servers=world.brokers)
    await admin.start()
    try:
        return await admin.list_consumer_group_offsets(f"{world.name}-actors")
    finally:
        await admin.close()


async def commit(world: World, offsets: dict) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        bootstrap_servers=world.brokers, group_id=f"{world.name}-actors", enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign(list(offsets))
        await consumer.commit(offsets)
    finally:
        await consumer.stop()


@pytest.mark.nightly
def test_a_value_that_somebody_else_wrote_is_found(run: Run, world: World):
    topic, victim = world.changelog(), b"k9"
    last = [record for record in asyncio.run(read_all(world.brokers, topic)) if record.key == victim][-1]

    async def write(value: bytes, headers: list[tuple[str, bytes]]) -> None:
        async with producing(world.brokers) as producer:
            await producer.send_and_wait(topic, value, victim, partition=last.partition, headers=headers)

    metadata = list(last.headers)
    try:
        for headers in ([], metadata):
            asyncio.run(write(b"9999", headers))
            found = run(world.module(), store="counts")
            assert kinds(found) == {"equal": 39, "different": 1}
            [one] = found.differences
            assert (one.key, one.log["value"], one.recomputed["value"]) == ("k9", "9999", last.value.decode())
        # the write of a later input than the point compared is none of its business
        asyncio.run(write(last.value, metadata))
        asyncio.run(write(b"9999", [(METADATA_HEADER, encode_metadata(9, 1 << 40))]))
        assert kinds(run(world.module(), store="counts")) == {"equal": 40}
    finally:
        asyncio.run(write(last.value, metadata))


@pytest.mark.nightly
def test_from_a_rebuild_and_past_inputs_that_are_gone(spark: SparkSession, run: Run, world: World, tmp_path: Path):
    """State at some point, more inputs, the first inputs deleted: what is left is enough with the state."""
    other = World(world.brokers, world.folder, unique("cut"))

    async def work(label: str, count: int) -> None:
        worker = other.worker(label)
        try:
            await other.put(*((KEYS[n % 40], f"{label}-{n}") for n in range(200)))
            await other.handled(count)
            assert worker.terminate() == 0
        finally:
            worker.kill()

    async def first() -> None:
        await other.make()
        await work("before", 200)

    asyncio.run(first())
    for store in ("counts", "dice"):
        write_rebuild(kafka(spark, world.brokers, other.changelog(store)), to=tmp_path / "states" / store)
    offsets = asyncio.run(committed(other))
    asyncio.run(work("after", 400))
    found = run(other.module(), store="counts", from_state=tmp_path / "states")
    assert kinds(found) == {"equal": 40}
    assert found.records == 200
    asyncio.run(cut(other, {source: offset.offset for source, offset in offsets.items()}))
    with pytest.raises(InputError, match=r"partition \d begins at offset \d+, not 0: the inputs before are gone"):
        run(other.module(), store="counts")
    assert kinds(run(other.module(), store="counts", from_state=tmp_path / "states")) == {"equal": 40}
    found = run(other.module(), store="counts", accept_missing_input=True)
    assert kinds(found) == {"different": 40}
    with pytest.raises(TargetError, match=rf"no rebuild of {other.changelog('dice')}"):
        run(other.module(), from_state=tmp_path / "states" / "counts")


async def cut(world: World, offsets: dict[TopicPartition, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=world.brokers)
    await admin.start()
    try:
        wanted = {
            source: RecordsToDelete(before_offset=offset)
            for source, offset in offsets.items()
            if source.topic == f"{world.name}-in"
        }
        await admin.delete_records(wanted)
    finally:
        await admin.close()


# --- the command ---------------------------------------------------------------------------------------------------


def command(world: World, module: str, *args: object) -> Result:
    given = ["recompute", "--brokers", world.brokers, "--app", module, *args]
    return CliRunner().invoke(main, [str(arg) for arg in given])


def one_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in result.stderr
    return line


def test_exit_codes_and_the_report(spark: SparkSession, world: World):
    module = world.module()
    files = ["--py-files", world.folder / f"{module}.py"]
    result = command(world, module, "--actor", "count", "--store", "counts", *files)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["equal"] == 40
    result = command(world, module, "--actor", "count", "--json", *files)
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)["totals"]
    assert (found["different"], found["differences"], found["records"]) == (4, 4, 601)
    assert "different: store dice partition" in result.stderr


def test_dry_run_says_what_would_be_read(spark: SparkSession, world: World):
    result = command(world, world.module(), "--actor", "count", "--dry-run")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["input"], found["changelogs"]["counts"]) == (f"{world.name}-in", world.changelog())
    assert found["offsets"] == sum(part["end"] - part["start"] for part in found["partitions"]) >= 601
    assert f"would replay {world.name}-in" in result.stderr


def test_what_cannot_be_answered(spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch):
    module = world.module()
    assert "module 'no_such_app' can't be imported (No module" in one_error(command(world, "no_such_app"))
    assert "has the actors Monitor, count: choose one with --actor" in one_error(command(world, module))
    assert "has no actor 'nobody', it has Monitor, count" in one_error(command(world, module, "--actor", "nobody"))
    assert f"{module}:none: there is no app" in one_error(command(world, f"{module}:none"))
    assert "has no app: name the app" in one_error(command(world, "json"))
    wrong_store = command(world, module, "--actor", "count", "--store", "nothing")
    assert "has no store 'nothing', it has counts, dice" in one_error(wrong_store)
    (world.folder / "app_that_raises.py").write_text("raise KeyError('SECRET')\n")
    assert "raised KeyError: 'SECRET' while it was imported here" in one_error(command(world, "app_that_raises"))


def test_topics_that_are_not_there(spark: SparkSession, world: World):
    absent = World(world.brokers, world.folder, unique("absent"))
    module = absent.module()
    with pytest.raises(UnknownTopicError, match=rf"no topic '{absent.name}-in', the input of actor count"):
        plan_recompute(spark, world.brokers, module, actor="count")
    asyncio.run(absent.make())
    with pytest.raises(UnknownTopicError, match=rf"no topic '{absent.changelog()}', the changelog of store counts"):
        plan_recompute(spark, world.brokers, module, actor="count")
    asyncio.run(make_topics(world.brokers, absent.changelog(), absent.changelog("dice"), partitions=PARTITIONS))
    with pytest.raises(InputError, match=r"has committed nothing of .* did a worker ever run"):
        plan_recompute(spark, world.brokers, module, actor="count")


def test_an_app_that_the_executors_do_not_have(spark: SparkSession, world: World):
    module = world.module(suffix="-unshipped")
    planned = plan_recompute(spark, world.brokers, module, actor="count")
    with pytest.raises(RecomputeError, match=r"can't be imported \(No module .* --py-files") as failed:
        recompute_actor(spark, planned)
    assert "\n" not in str(failed.value)


def test_an_app_without_state(spark: SparkSession, world: World):
    with pytest.raises(AppError, match="keeps no state"):
        plan_recompute(spark, world.brokers, "examples.bank_accounts", actor="transfer")
