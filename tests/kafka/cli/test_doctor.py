"""`faust doctor` on real brokers, with planted damage."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from pathlib import Path

import faust
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from actors._faust.setup import Setup
from actors._faust.startup.needs import topic_needs
from actors.cli.doctor import brokers as broker_checks
from actors.cli.doctor import offsets as offset_checks
from actors.cli.doctor.examine import examine
from actors.cli.doctor.report import Level, Result
from dev.kafka import Cluster
from tests.certificates import Authority
from tests.kafka import forked
from tests.kafka.apps import plan_app
from tests.kafka.apps.needs_app import make
from tests.kafka.conftest import PASSWORD, RESTRICTED
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique

DAY_MS = 86_400_000


def an_app(name: str, brokers: str, folder: Path, **options: object) -> Setup:
    return Setup(make(name, ["store"], broker=f"kafka://{brokers}", datadir=str(folder), **options))


async def all_topics(setup: Setup, brokers: str, **changed: dict[str, str]) -> None:
    """Make all topics that the app needs, as they should be, but for settings that are given by the topic's ending."""
    for need in topic_needs(setup):
        config = dict(need.config) | changed.get(
            need.name.removeprefix(f"{setup.app.conf.id}-").removeprefix("-").replace("-", "_"), {}
        )
        await make_topics(brokers, need.name, partitions=need.partitions or 2, config=config)


def of(results: list[Result], check: str, *levels: Level) -> list[Result]:
    return [one for one in results if one.check == check and one.level in (levels or (Level.ERROR, Level.WARNING))]


def findings(results: list[Result]) -> list[str]:
    """All but what depends on the machine that the tests run on."""
    assert all(one.remedy for one in results if one.level is not Level.NOTE)
    return [str(one) for one in results if one.level is not Level.NOTE and one.check not in ("disk", "files")]


async def test_an_app_whose_topics_are_as_they_should_be(brokers: str, tmp_path: Path) -> None:
    setup = an_app(unique("well"), brokers, tmp_path)
    await all_topics(setup, brokers)
    results = await examine(setup)
    assert findings(results) == []
    (members,) = of(results, "group", Level.NOTE)
    assert members.what.endswith("has 0 members")


async def test_topics_that_are_missing_or_differ(brokers: str, tmp_path: Path) -> None:
    name = unique("ill")
    setup = an_app(name, brokers, tmp_path)
    await make_topics(brokers, f"{name}--counts-changelog", partitions=3, config={"cleanup.policy": "delete"})
    found = of(await examine(setup), "topics")
    assert [one.level for one in found if f"{name}-in isn't on the broker" in one.what] == [Level.ERROR]
    assert [one.level for one in found if f"{name}-out isn't on the broker" in one.what] == [Level.WARNING]
    assert any("cleanup.policy=delete" in one.what for one in found)
    assert not any("actors-owners isn't" in one.what for one in found), "workers make it"
    await make_topics(brokers, f"{name}-in")
    found = of(await examine(setup), "topics")
    assert any(f"{name}--counts-changelog: 3 partitions, and not 2" in one.what for one in found)
    assert all(one.remedy or "kafka-" in one.what for one in found)


async def test_a_changelog_of_windows_that_keeps_them_too_shortly(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("short")
    setup = Setup(plan_app.make(name, 1, broker=f"kafka://{brokers}", datadir=str(tmp_path / "command")))
    changelog = f"{name}--minutes-changelog"
    kept_ms = setup.kept_ms()[changelog]
    await all_topics(setup, brokers, minutes_changelog={"retention.ms": str(kept_ms - 1)})
    (one,) = of(await examine(setup), "retention")
    assert (one.level, f"topic {changelog} has retention.ms={kept_ms - 1}" in one.what) == (Level.ERROR, True)
    assert one.remedy.startswith(f"kafka-configs.sh --bootstrap-server {brokers.split(',')[0]} --alter")
    assert one.remedy.endswith(f"--topic {changelog} --add-config retention.ms={kept_ms}")
    worker = WorkerProcess("tests.kafka.apps.plan_app", brokers, tmp_path / "data", APP_NAME=name, PROGRAM="1")
    workers.append(worker.start())
    assert await asyncio.to_thread(worker.wait, 60) == 1
    assert f"can't start: topic {changelog} has retention.ms={kept_ms - 1}" in worker.log()
    well = Setup(plan_app.make(unique("well"), 1, broker=f"kafka://{brokers}", datadir=str(tmp_path / "command")))
    await all_topics(well, brokers)
    assert findings(await examine(well)) == []


async def test_the_clock(brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = an_app(unique("late"), brokers, tmp_path)
    (note,) = of(await examine(setup), "clock", *Level)
    assert note.level is Level.NOTE
    assert "is made by the first worker" in note.what
    await all_topics(setup, brokers)
    for off_s, side, level in ((3600, "ahead of", Level.ERROR), (-3600, "behind", Level.ERROR), (60, "ahead of", None)):
        shifted = lambda off_s=off_s: time.time_ns() // 1_000_000 + off_s * 1000  # noqa: E731
        monkeypatch.setattr(broker_checks, "machine_ms", shifted)
        (one,) = of(await examine(setup), "clock")
        assert one.level is (level or Level.WARNING)
        assert f" s {side} the broker's" in one.what
        assert ("more than clock_skew_margin" in one.what) == (level is Level.ERROR)
        assert abs(float(one.what.split("clock is ")[1].split(" s ")[0]) - abs(off_s)) < 5


async def commit(brokers: str, setup: Setup, source: TopicPartition, offset: int) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, group_id=setup.group, enable_auto_commit=False)
    async with consumer as tool:
        tool.assign([source])
        await tool.commit({source: offset})


async def test_offsets_that_retention_overtakes(brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = an_app(unique("kept"), brokers, tmp_path)
    topic = f"{setup.app.conf.id}-in"
    await make_topics(brokers, topic, config={"retention.ms": str(7 * DAY_MS)})
    await others(setup, brokers)
    source = TopicPartition(topic, partition_for(b"a", 2))
    await send(brokers, topic, [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")])
    await commit(brokers, setup, source, 1)
    assert of(await examine(setup), "offsets") == []
    with monkeypatch.context() as patched:
        patched.setattr(offset_checks, "machine_ms", lambda: time.time_ns() // 1_000_000 + 4 * DAY_MS)
        (one,) = of(await examine(setup), "offsets")
        assert (one.level, "older than half of retention.ms" in one.what) == (Level.WARNING, True)
    await commit(brokers, setup, source, 9)
    (one,) = of(await examine(setup), "offsets")
    assert (one.level, "beyond the end" in one.what) == (Level.ERROR, True)
    await commit(brokers, setup, source, 1)
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_records({source: RecordsToDelete(2)})
    finally:
        await admin.close()
    (one,) = of(await examine(setup), "offsets")
    assert (one.level, one.what) == (
        Level.ERROR,
        f"topic {topic}, partitions {source.partition}: records were deleted before they were handled",
    )


async def test_records_that_outlive_the_groups_offsets(brokers: str, tmp_path: Path) -> None:
    setup = an_app(unique("long"), brokers, tmp_path)
    await make_topics(brokers, f"{setup.app.conf.id}-in", config={"retention.ms": str(30 * DAY_MS)})
    await others(setup, brokers)
    (one,) = of(await examine(setup), "retention")
    assert "keep records for up to 30 days" in one.what
    assert one.remedy == "Set offsets.retention.minutes=43200 on the brokers"


async def others(setup: Setup, brokers: str) -> None:
    for need in topic_needs(setup):
        if not need.name.endswith("-in"):
            await make_topics(brokers, need.name, partitions=need.partitions or 2, config=dict(need.config))


async def test_transactions_of_the_first_version(brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = an_app(unique("first"), brokers, tmp_path)
    monkeypatch.setattr(broker_checks, "finalized_features", lambda _: {"transaction.version": 1})
    (one,) = of(await examine(setup), "brokers")
    assert (one.level, "could have transaction.version 2 and has 1" in one.what) == (Level.WARNING, True)
    assert one.remedy.endswith("upgrade --feature transaction.version=2")


async def test_permissions_that_are_missing(secure_cluster: tuple[Cluster, Authority], tmp_path: Path) -> None:
    cluster, authority = secure_cluster
    name = unique("denied")
    await all_topics(an_app(name, cluster.bootstrap, tmp_path), cluster.bootstrap)
    credentials = faust.SASLCredentials(
        username=RESTRICTED,
        password=PASSWORD,
        mechanism="PLAIN",
        ssl_context=ssl.create_default_context(cafile=str(authority.file)),
    )
    results = await examine(an_app(name, cluster.secure_bootstrap, tmp_path, broker_credentials=credentials))
    found = of(results, "permissions")
    assert f"Read on topic {name}-in" in found[0].what
    assert found[0].level is Level.ERROR
    assert f"kafka-acls.sh --bootstrap-server {cluster.secure_bootstrap.split(',')[0]} --add" in found[0].remedy
    assert of(results, "topics", Level.UNKNOWN), "what can't be looked at isn't in order"


async def test_the_command_beside_a_worker(brokers: str, tmp_path: Path) -> None:
    name = unique("seen")
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    environment = {"APP_NAME": name, "KAFKA_URL": f"kafka://{brokers}"}
    worker = WorkerProcess("tests.kafka.apps.counter_app", brokers, tmp_path / "data", APP_NAME=name).start()
    await eventually(lambda: worker.log().count("owns") >= 2, what=worker.log)
    arguments = ("-A", "tests.kafka.apps.counter_app", "-D", str(tmp_path / "data"), "--json", "doctor")
    done = await asyncio.to_thread(forked.faust, *arguments, environment=environment)
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert [row["what"] for row in said["results"] if row["check"] == "group"] == [f"group {name}-actors has 1 member"]
    assert [row for row in said["results"] if row["level"] in ("error", "unknown")] == []
    assert done.returncode == said["exit_code"]
    assert done.returncode in (0, 1)
    other = await asyncio.to_thread(
        forked.faust, *arguments, environment={**environment, "KAFKA_URL": "kafka://127.0.0.1:1"}
    )
    assert other.returncode == 2
