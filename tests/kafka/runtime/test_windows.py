"""Windows on a real broker: finals once, whoever is killed; the changelog's settings."""

from __future__ import annotations

import asyncio
import collections
import re
import time
from pathlib import Path

import orjson
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from actors._core.partitioner import partition_for
from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "tests.kafka.apps.windows_app"
KEYS = [b"k%d" % number for number in range(60)]
WINDOWS = 20
SIZE_MS = 10_000
RETENTION_MS = 26 * 3_600_000
Finals = collections.Counter[tuple[bytes, int, int]]


async def order(brokers: str, name: str, windows: range, begin_ms: int) -> None:
    """Send for each key and window the amounts 1, 2 and 3."""
    async with producing(brokers) as producer:
        acks = [
            await producer.send(
                f"{name}-in",
                b"%d" % amount,
                key,
                partition=partition_for(key, 2),
                timestamp_ms=begin_ms + window * SIZE_MS + amount * 1_000,
            )
            for window in windows
            for amount in (1, 2, 3)
            for key in KEYS
        ]
        await asyncio.gather(*acks)


async def finals(brokers: str, name: str) -> Finals:
    found: Finals = collections.Counter()
    for record in await read_all(brokers, f"{name}-out"):
        start_ms, end_ms, total = orjson.loads(record.value)
        assert end_ms - start_ms == SIZE_MS
        found[record.key, start_ms, total] += 1
    return found


def wanted(begin_ms: int, windows: int) -> Finals:
    """Each but the last window of each partition, which stays open: 6 for each key."""
    return collections.Counter({(key, begin_ms + n * SIZE_MS, 6): 1 for key in KEYS for n in range(windows - 1)})


def now_ms() -> int:
    return (int(time.time() * 1000) - 3_600_000) // SIZE_MS * SIZE_MS


async def config_of(brokers: str, topic: str) -> dict[str, str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    finally:
        await admin.close()
    return {entry[0]: entry[1] for *_, entries in response.resources for entry in entries}


@pytest.mark.nightly
@pytest.mark.parametrize("standbys", ["0", "1"])
async def test_each_final_is_sent_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], standbys: str
) -> None:
    name, begin_ms = unique("windows"), now_ms()
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    one, two = (
        WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name, STANDBYS=standbys) for each in ("one", "two")
    )
    workers += [one.start(), two.start()]
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())

    async def all_of(windows: int) -> None:
        expected = wanted(begin_ms, windows)

        async def are_there() -> bool:
            return (await finals(brokers, name)) >= expected

        await eventually(are_there, what=lambda: one.log()[-2000:] + two.log()[-2000:])
        assert await finals(brokers, name) == expected

    for step, victim in enumerate((one, two, one)):
        await order(brokers, name, range(step * 5, step * 5 + 5), begin_ms)
        victim.kill()
        victim.start()
        await all_of(step * 5 + 5)
    await order(brokers, name, range(15, WINDOWS), begin_ms)
    await all_of(WINDOWS)
    for worker in (one, two):
        worker.kill()
    again = WorkerProcess(MODULE, brokers, tmp_path / "empty", APP_NAME=name)
    workers.append(again.start())
    await order(brokers, name, range(WINDOWS, WINDOWS + 1), begin_ms)
    await all_of(WINDOWS + 1)
    config = await config_of(brokers, f"{name}--sales-changelog")
    assert sorted(config["cleanup.policy"].split(",")) == ["compact", "delete"]
    assert int(config["retention.ms"]) == RETENTION_MS


@pytest.mark.parametrize(
    ("config", "mended"),
    [
        ({"cleanup.policy": "compact"}, r"cleanup.policy=\[compact,delete\]"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "3600000"}, f"retention.ms={RETENTION_MS}"),
    ],
)
async def test_a_changelog_with_other_settings_is_refused_with_the_command(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], config: dict[str, str], mended: str
) -> None:
    name = unique("windows")
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    await make_topics(brokers, f"{name}--sales-changelog", config=config)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name)
    workers.append(worker.start())
    command = f"--alter --topic {name}--sales-changelog --add-config {mended}".replace("\\", "")
    await eventually(lambda: command in worker.log(), what=worker.log)
    await eventually(lambda: not worker.is_running(), what=worker.log)


@pytest.mark.nightly
async def test_a_close_that_stops_its_partition_is_given_up_by_a_command(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, begin_ms = unique("windows"), now_ms()
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    bad, *good = KEYS
    partition = partition_for(bad, 2)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name, FAILS=bad.decode())
    workers.append(worker.start())
    await order(brokers, name, range(2), begin_ms)
    called = f"stopped drop count {partition} "
    await eventually(lambda: called in worker.log(), what=worker.log)
    id = re.split(r"[`\s]", worker.log().split(called, 1)[1], maxsplit=1)[0]
    arguments = ("-A", MODULE, "-D", str(tmp_path / "one"), "stopped", "drop", "count", str(partition), id)
    environment = {"APP_NAME": name, "KAFKA_URL": f"kafka://{brokers}"}
    (await asyncio.to_thread(forked.faust, *arguments, environment=environment)).check_returncode()
    expected = collections.Counter({(key, begin_ms, 6): 1 for key in good})

    async def are_there() -> bool:
        return (await finals(brokers, name)) >= expected

    await eventually(are_there, what=worker.log)
    # The command is a record of the input, and no order.
    await order(brokers, name, range(2, 3), begin_ms)
    called = f"{begin_ms + SIZE_MS} to"
    await eventually(lambda: called in worker.log(), what=worker.log)
    assert await finals(brokers, name) >= expected
    assert all(key != bad for key, *_ in await finals(brokers, name))
