"""How a worker stops, waits for a broker, and says that something holds it up."""

from __future__ import annotations

import asyncio
import linecache
import re
import time
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from dev.kafka import Cluster
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.slow_app"
EXIT_S = 8.0


async def begin(brokers: str, partitions: int = 2) -> str:
    name = unique("slow")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=partitions)
    return name


async def echoes(brokers: str, name: str) -> int:
    return len(await read_all(brokers, f"{name}-out"))


async def members(brokers: str, group: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        (described,) = await admin.describe_consumer_groups([group])
        return len(described.groups[0][-2] if len(described.groups[0]) > 6 else described.groups[0][-1])
    finally:
        await admin.close()


def stopped_within(worker: WorkerProcess, limit_s: float) -> None:
    began_s = time.monotonic()
    assert worker.terminate() == 0, worker.log()[-3000:]
    took_s = time.monotonic() - began_s
    assert took_s < limit_s, f"{took_s:.1f} s; {worker.log()[-3000:]}"


async def test_a_busy_worker_commits_leaves_and_is_gone_in_time(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    sent = [(b"key-%d" % (number % 50), b"%d" % number) for number in range(30_000)]
    await send(brokers, f"{name}-in", sent)
    await eventually(lambda: "owns" in worker.log())
    stopped_within(worker, EXIT_S)
    assert await members(brokers, f"{name}-actors") == 0
    done = await echoes(brokers, name)
    worker.start()
    await eventually(lambda: _has(brokers, name, len(sent)), what=worker.log)
    assert sorted(int(record.value) for record in await read_all(brokers, f"{name}-out")) == list(range(len(sent)))
    assert done <= len(sent)


async def _has(brokers: str, name: str, count: int) -> bool:
    return await echoes(brokers, name) >= count


async def test_a_worker_that_is_stopped_while_it_joins_leaves_the_group(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name, STOP_IN_JOIN="1")
    workers.append(worker.start())
    assert await asyncio.to_thread(worker.wait) == 0, worker.log()
    assert "(generation 1)" in worker.log()
    assert await members(brokers, f"{name}-actors") == 0, worker.log()


async def test_a_handler_that_waits_doesnt_hold_the_stop(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    await send(brokers, f"{name}-in", [(b"a", b"1")])
    await eventually(lambda: _has(brokers, name, 1), what=worker.log)
    await send(brokers, f"{name}-in", [(b"a", b"wait:120")])
    await eventually(lambda: "waits 120 s" in worker.log(), what=worker.log)
    stopped_within(worker, EXIT_S)
    assert "didn't end in time: cancelled" in worker.log()
    assert await echoes(brokers, name) == 1


async def test_a_handler_that_blocks_its_thread_doesnt_hold_the_stop(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    await make_topics(brokers, f"{name}-threaded", partitions=1)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name, THREADED="1")
    workers.append(worker.start())
    await send(brokers, f"{name}-threaded", [(b"a", b"120")], partitions=1)
    await eventually(lambda: "blocks a thread for 120 s" in worker.log(), what=worker.log)
    stopped_within(worker, EXIT_S)


@pytest.mark.nightly
async def test_a_rolling_restart_with_static_membership_moves_no_partition(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers, partitions=6)
    for number in range(3):
        instance = f"worker-{number}"
        worker = WorkerProcess(
            MODULE, brokers, tmp_path / instance, APP_NAME=name, INSTANCE_ID=instance, SESSION_S="30"
        )
        workers.append(worker.start())
    await eventually(lambda: all(len(_owned(worker)) == 2 for worker in workers), what=lambda: _logs(workers))
    before = [_owned(worker) for worker in workers]
    assert sorted(partition for owned in before for partition in owned) == list(range(6))
    for number, worker in enumerate(workers):
        takeovers = [len(_takeovers(other)) for other in workers]
        stopped_within(worker, EXIT_S)
        worker.start()
        await eventually(
            lambda worker=worker, count=takeovers[number]: len(_takeovers(worker)) == count + 2,
            what=lambda: _logs(workers),
        )
        assert [_owned(other) for other in workers] == before
        others = [len(_takeovers(other)) for place, other in enumerate(workers) if place != number]
        assert others == [count for place, count in enumerate(takeovers) if place != number], _logs(workers)
    await send(brokers, f"{name}-in", [(b"key-%d" % number, b"%d" % number) for number in range(60)], partitions=6)
    await eventually(lambda: _has(brokers, name, 60), what=lambda: _logs(workers))


def _takeovers(worker: WorkerProcess) -> list[int]:
    return [int(found) for found in re.findall(r"owns \S+-in\[(\d+)\] from offset", worker.log())]


def _owned(worker: WorkerProcess) -> set[int]:
    """The partitions that it took over and didn't give up since."""
    owned: set[int] = set()
    for done, partition in re.findall(r"(owns|gave up) \S+-in\[(\d+)\]", worker.log()):
        (owned.add if done == "owns" else owned.discard)(int(partition))
    return owned


def _logs(workers: list[WorkerProcess]) -> str:
    return "\n---\n".join(worker.log()[-1500:] for worker in workers)


@pytest.mark.nightly
async def test_a_handler_that_holds_the_loop_is_named_before_the_session_is_over(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    await eventually(lambda: len(_takeovers(worker)) == 2, what=worker.log)
    await send(brokers, f"{name}-in", [(b"a", b"block:4")])
    await eventually(lambda: "has held the event loop" in worker.log(), deadline_s=10, what=worker.log)
    assert await echoes(brokers, name) == 0, "it is said while the handler runs"
    await eventually(lambda: _has(brokers, name, 1), what=worker.log)
    said = re.search(
        r"actor repeat (\S+), in repeat \((\S+):(\d+)\) has held the event loop for ([\d.]+) s", worker.log()
    )
    assert said is not None, worker.log()
    assert said[1].startswith(f"{name}-in[")
    assert said[2].endswith("slow_app.py")
    assert "time.sleep" in linecache.getline(said[2], int(said[3]))
    assert 1.0 <= float(said[4]) < 6.0
    over = re.search(r"it was held for ([\d.]+) s by actor repeat", worker.log())
    assert over is not None, worker.log()
    assert 3.0 <= float(over[1]) < 6.0
    assert len(_takeovers(worker)) == 2, "the session wasn't lost"


@pytest.mark.nightly
async def test_a_message_that_holds_the_loop_for_longer_than_a_session_is_given_up(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    for number in range(2):
        workers.append(WorkerProcess(MODULE, brokers, tmp_path / f"data-{number}", APP_NAME=name, ON_ERROR="skip"))
        workers[-1].start()
    await eventually(lambda: all(_takeovers(worker) for worker in workers), what=lambda: _logs(workers))
    sent = [(b"key-%d" % number, b"block:9" if number == 20 else b"%d" % number) for number in range(40)]
    await send(brokers, f"{name}-in", sent)
    await eventually(lambda: _has(brokers, name, 39), deadline_s=120, what=lambda: _logs(workers))
    logs = "".join(worker.log() for worker in workers)
    assert "held the event loop for longer than broker_session_timeout=6 s, 2 times on this worker" in logs
    assert "skipped after 1 attempts" in logs
    values = sorted(record.value for record in await read_all(brokers, f"{name}-out"))
    assert values == sorted(value for _, value in sent if not value.startswith(b"block"))


@pytest.mark.nightly
async def test_a_broker_that_is_away_is_said_once_per_interval(tmp_path: Path, workers: list[WorkerProcess]) -> None:
    with Cluster.up(tmp_path / "kafka") as cluster:
        name = await begin(cluster.bootstrap)
        worker = WorkerProcess(MODULE, cluster.bootstrap, tmp_path / "data", APP_NAME=name)
        workers.append(worker.start())
        await send(cluster.bootstrap, f"{name}-in", [(b"a", b"1")])
        await eventually(lambda: _has(cluster.bootstrap, name, 1), what=worker.log)
        before = len(worker.log())
        await asyncio.to_thread(cluster.kill, 1)
        await eventually(lambda: "can't be reached since" in worker.log(), deadline_s=30, what=worker.log)
        said = worker.log()[before:].splitlines()
        assert sum("can't be reached; it is tried again" in line for line in said) == 1, said
        assert sum("can't be reached since 1" in line for line in said) == 1, said
        assert len(said) <= 40, "\n".join(said)
        await asyncio.to_thread(cluster.start, 1)
        await send(cluster.bootstrap, f"{name}-in", [(b"a", b"2")])
        await eventually(lambda: _has(cluster.bootstrap, name, 2), deadline_s=30, what=worker.log)
        assert "is reached again after" in worker.log()
        await asyncio.to_thread(cluster.kill, 1)
        stopped_within(worker, EXIT_S)
