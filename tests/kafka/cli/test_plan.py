"""`faust plan` and `faust topics create` on real brokers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors.cli.deploy.changes import Action, Change, exit_code, plan
from tests.kafka import forked
from tests.kafka.apps.plan_app import make
from tests.kafka.helpers import WorkerProcess, delete, eventually, make_topics, read_all, send, topic_id, unique

MODULE = "tests.kafka.apps.plan_app"


async def planned(brokers: str, name: str, program: int) -> list[Change]:
    setup = Setup(make(name, program, broker=f"kafka://{brokers}"))
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        return await plan(setup, control, 2)


async def faust(brokers: str, name: str, program: int, *arguments: str) -> CompletedProcess[str]:
    environment = {"APP_NAME": name, "PROGRAM": str(program), "KAFKA_URL": f"kafka://{brokers}"}
    return await asyncio.to_thread(forked.faust, "-A", MODULE, *arguments, environment=environment)


async def has_counts(brokers: str, name: str) -> bool:
    return {record.key for record in await read_all(brokers, f"{name}--counts-changelog")} == {b"a", b"b"}


def told(changes: list[Change]) -> list[tuple[Action, str]]:
    return [(change.action, change.name) for change in changes]


async def configure(brokers: str, topic: str, **settings: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        wanted = {name.replace("_", "."): value for name, value in settings.items()}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=wanted)])
    finally:
        await admin.close()


async def test_from_the_first_deploy_to_a_program_that_lost_a_store(brokers: str, tmp_path: Path) -> None:
    name = unique("plan")
    at_first = await planned(brokers, name, 1)
    missing = [f"{name}-in", f"{name}--counts-changelog", f"{name}--minutes-changelog", f"{name}-actors-owners"]
    assert told(at_first) == [
        *((Action.CREATE, topic) for topic in missing),
        (Action.ADD, "counts"),
        (Action.ADD, "minutes"),
    ]
    assert [change.partitions for change in at_first[:4]] == [2, 2, 2, 1]
    assert await topic_id(brokers, f"{name}-in") is None, "a plan makes nothing"

    done = await faust(brokers, name, 1, "topics", "create", "--partitions", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == [f"made topic {topic}" for topic in missing]
    ids = [await topic_id(brokers, topic) for topic in missing]
    again = await faust(brokers, name, 1, "topics", "create", "--partitions", "2")
    assert (again.returncode, again.stdout) == (0, "all topics are there: nothing was made\n")
    assert [await topic_id(brokers, topic) for topic in missing] == ids
    assert told(await planned(brokers, name, 1)) == [(Action.ADD, "counts"), (Action.ADD, "minutes")]

    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name, PROGRAM="1").start()
    await send(brokers, f"{name}-in", [(b"a", b"1"), (b"b", b"2")])
    await eventually(lambda: has_counts(brokers, name), what=worker.log)
    assert await asyncio.to_thread(worker.terminate) == 0
    assert await planned(brokers, name, 1) == [], "topics that were made beforehand are as a worker makes them"

    second = await planned(brokers, name, 2)
    assert told(second) == [
        (Action.CREATE, f"{name}--extra-changelog"),
        (Action.CHANGE, "counts"),
        (Action.CHANGE, "minutes"),
        (Action.ADD, "extra"),
        (Action.REFUSE, name),
    ]
    assert second[1].text.startswith("version 1 of its values becomes 2")
    assert "Tumbling(0:01:00)" in second[2].text
    assert "Tumbling(0:02:00)" in second[2].text
    done = await faust(brokers, name, 2, "--json", "plan")
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (1, 1), "windows of another size are refused"

    third = await planned(brokers, name, 3)
    assert (Action.REMOVE, "counts") in told(third)
    refused = [change for change in third if change.action is Action.REFUSE]
    assert "store counts: no actor of this program has it any more" in refused[0].text
    done = await faust(brokers, name, 3, "plan")
    assert done.returncode == 1
    done = await faust(brokers, name, 3, "topics", "create")
    assert done.returncode == 1
    assert "so no topic was made" in done.stderr
    assert await topic_id(brokers, f"{name}--extra-changelog") is None


@pytest.mark.nightly
async def test_settings_partitions_and_a_changelog_that_was_deleted(brokers: str, tmp_path: Path) -> None:
    name = unique("drift")
    await make_topics(brokers, f"{name}-in")
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name, PROGRAM="1").start()
    await eventually(lambda: worker.log().count("owns") >= 2, what=worker.log)
    assert await asyncio.to_thread(worker.terminate) == 0
    await configure(brokers, f"{name}--counts-changelog", cleanup_policy="compact", segment_ms="1000000")
    drifted = await planned(brokers, name, 1)
    assert told(drifted) == [(Action.CONFIGURE, f"{name}--counts-changelog")]
    assert "segment.ms is 1000000, not " in drifted[0].text
    assert "kafka-configs.sh" in drifted[0].remedy
    assert exit_code(drifted) == 2
    await configure(brokers, f"{name}--counts-changelog", cleanup_policy="delete")
    assert (Action.REFUSE, f"{name}--counts-changelog") in told(await planned(brokers, name, 1))

    await delete(brokers, f"{name}--counts-changelog")
    lost = await planned(brokers, name, 1)
    assert told(lost) == [(Action.REFUSE, name)], "to begin without its state is an operator's choice"
    assert "was deleted" in lost[0].text
    await make_topics(brokers, f"{name}--counts-changelog", partitions=3, config={"cleanup.policy": "compact"})
    changed = [change for change in await planned(brokers, name, 1) if change.kind == "topic"]
    assert "3 partitions, and not 2" in changed[0].text
    assert exit_code(changed) == 1


async def test_what_cannot_be_told_is_no_change(brokers: str) -> None:
    assert (await faust("127.0.0.1:1", unique("away"), 1, "plan")).returncode == 1
    wrong = await faust(brokers, unique("typo"), 1, "plan", "--partitons", "3")
    assert wrong.returncode == 1
    assert "Did you mean --partitions" in wrong.stderr or "--partitions" in wrong.stderr
