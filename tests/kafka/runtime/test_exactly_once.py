"""Nothing lost, nothing doubled: on a real broker, with real workers, killed for real."""

from __future__ import annotations

import collections
import random
import signal
from pathlib import Path

import pytest

from actors._core.partitioner import partition_for
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.counter_app"
PARTITIONS = 2
KEYS = [f"key-{number}" for number in range(40)]


def records(count: int, seed: int = 1) -> list[tuple[bytes, bytes]]:
    choice = random.Random(seed)
    return [(choice.choice(KEYS).encode(), str(number).encode()) for number in range(count)]


def expected_echo(sent: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """Per key, the running values in the order of its messages: independent of the code under test."""
    found: dict[bytes, list[bytes]] = collections.defaultdict(list)
    for key, value in sent:
        found[key].append(b"%d:%s" % (len(found[key]) + 1, value))
    return found


async def echoed(brokers: str, name: str) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = collections.defaultdict(list)
    for record in await read_all(brokers, f"{name}-out"):
        found[record.key].append(record.value)
    return found


async def all_echoed(brokers: str, name: str, sent: list[tuple[bytes, bytes]], *workers: WorkerProcess) -> None:
    """Wait until as many echoes as inputs are committed, and compare them one by one."""

    async def enough() -> bool:
        assert any(worker.is_running() for worker in workers), workers[-1].log()[-3000:]
        return sum(map(len, (await echoed(brokers, name)).values())) >= len(sent)

    await eventually(enough, what=f"{len(sent)} echoes; log: " + (workers[-1].log()[-2000:] if workers else ""))
    assert await echoed(brokers, name) == expected_echo(sent)


def stored(folder: Path, name: str) -> dict[bytes, int]:
    """What the worker's RocksDB holds (the worker is stopped)."""
    data = DataFolder.open(folder / "v1" / "actors", app=name)
    found = {}
    try:
        for partition in data.partitions_on_disk("counts"):
            store = RocksStore.open(data.store_path("counts", partition))
            found.update({key: int(value[25:]) for key, value in store.scan()})
            store.close()
    finally:
        data.close()
    return found


async def begin(brokers: str) -> str:
    name = unique("count")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS)
    return name


@pytest.mark.parametrize("point", ["claim", "handled", "inside", "ended", "stored"])
async def test_a_kill_at_any_step_of_a_commit_changes_nothing(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], point: str
) -> None:
    name = await begin(brokers)
    sent = records(600)
    await send(brokers, f"{name}-in", sent[:200], partitions=PARTITIONS)
    # The claim's transaction stays open until it expires, 10 s after the deadline of a commit.
    environment = {"APP_NAME": name, "INSTANCE_ID": "one", "MAX_POLL_RECORDS": "50", "COMMIT_DEADLINE_S": "5"}
    doomed = WorkerProcess(MODULE, brokers, tmp_path / "data", CRASH_AT=point, CRASH_COUNT="2", **environment)
    workers.append(doomed.start())

    async def has_committed() -> bool:
        return bool(await echoed(brokers, name)) or not doomed.is_running()

    # A fast worker commits all that is there at once: the second commit has what is sent after the first.
    await eventually(has_committed, what="a commit")
    await send(brokers, f"{name}-in", sent[200:400], partitions=PARTITIONS)
    assert doomed.wait() == -9, doomed.log()[-3000:]
    await no_uncommitted_trace(brokers, name, tmp_path / "data")
    survivor = WorkerProcess(MODULE, brokers, tmp_path / "data", **environment)
    workers.append(survivor.start())
    await send(brokers, f"{name}-in", sent[400:], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent, survivor)
    assert survivor.terminate() == 0, survivor.log()[-3000:]
    assert stored(tmp_path / "data", name) == {key: len(values) for key, values in expected_echo(sent).items()}


async def no_uncommitted_trace(brokers: str, name: str, folder: Path) -> None:
    """RocksDB holds a prefix of the committed changelog, nothing else."""
    committed = await read_all(brokers, f"{name}--counts-changelog")
    data = DataFolder.open(folder / "v1" / "actors", app=name)
    try:
        for partition in data.partitions_on_disk("counts"):
            store = RocksStore.open(data.store_path("counts", partition))
            position = store.position()
            upto = position.changelog_offset if position is not None else 0
            fold = {r.key: r.value for r in committed if r.partition == partition and r.offset < upto}
            assert {key: value[25:] for key, value in store.scan()} == fold
            store.close()
    finally:
        data.close()


async def test_a_worker_that_lost_its_disk_rebuilds_from_the_changelog(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    sent = records(500)
    first = WorkerProcess(MODULE, brokers, tmp_path / "first", APP_NAME=name, INSTANCE_ID="one")
    workers.append(first.start())
    await send(brokers, f"{name}-in", sent[:300], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent[:300], first)
    first.kill()
    second = WorkerProcess(MODULE, brokers, tmp_path / "second", APP_NAME=name, INSTANCE_ID="one")
    workers.append(second.start())
    await send(brokers, f"{name}-in", sent[300:], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent, second)
    assert "restored" in second.log()


async def test_of_two_workers_with_one_instance_id_the_newer_one_stays(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    sent = records(200)
    first, second = (
        WorkerProcess(MODULE, brokers, tmp_path / folder, APP_NAME=name, INSTANCE_ID="one") for folder in "ab"
    )
    workers += [first.start(), second]
    await send(brokers, f"{name}-in", sent[:100], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent[:100], first)
    second.start()
    assert first.wait() == 1
    assert "consumer_group_instance_id='one' is unknown to the group" in first.log()
    # A join of the former one during its stop would have taken the membership by now.
    await send(brokers, f"{name}-in", sent[100:], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent, second)
    assert second.terminate() == 0
    assert "consumer_group_instance_id='one' any more" not in second.log()


@pytest.mark.nightly
async def test_rebalances_between_workers_lose_and_double_nothing(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    """A second worker joins while the first is busy, the first is killed, and comes back."""
    name = await begin(brokers)
    sent = records(3000)
    environment = {"APP_NAME": name, "MAX_POLL_RECORDS": "20"}
    one = WorkerProcess(MODULE, brokers, tmp_path / "one", **environment)
    two = WorkerProcess(MODULE, brokers, tmp_path / "two", **environment)
    workers += [one.start(), two]
    await send(brokers, f"{name}-in", sent[:1000], partitions=PARTITIONS)
    await eventually(lambda: "owns" in one.log())
    two.start()
    await eventually(lambda: "owns" in two.log(), what="the second worker owns something")
    await send(brokers, f"{name}-in", sent[1000:2000], partitions=PARTITIONS)
    one.kill()
    await send(brokers, f"{name}-in", sent[2000:], partitions=PARTITIONS)
    before = one.log().count("owns")
    one.start()
    await all_echoed(brokers, name, sent, one, two)
    await eventually(lambda: one.log().count("owns") > before, what="the first worker owns something again")
    assert one.terminate() == 0
    assert two.terminate() == 0


@pytest.mark.nightly
async def test_a_paused_worker_that_wakes_up_changes_nothing(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    """A zombie: stopped for longer than its session while another worker takes over, then woken up."""
    name = await begin(brokers)
    sent = records(900)
    zombie = WorkerProcess(MODULE, brokers, tmp_path / "zombie", APP_NAME=name, MAX_POLL_RECORDS="10")
    other = WorkerProcess(MODULE, brokers, tmp_path / "other", APP_NAME=name)
    workers += [zombie.start(), other]
    await send(brokers, f"{name}-in", sent[:300], partitions=PARTITIONS)
    await eventually(lambda: "owns" in zombie.log())
    zombie.signal(signal.SIGSTOP)
    other.start()
    await send(brokers, f"{name}-in", sent[300:600], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent[:600], other)
    zombie.signal(signal.SIGCONT)
    await send(brokers, f"{name}-in", sent[600:], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent, other, zombie)
    assert zombie.is_running()


async def test_records_stay_with_the_partition_of_their_key(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = await begin(brokers)
    sent = records(200)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    await send(brokers, f"{name}-in", sent, partitions=PARTITIONS)
    await all_echoed(brokers, name, sent, worker)
    for topic in (f"{name}-out", f"{name}--counts-changelog"):
        for record in await read_all(brokers, topic):
            assert record.partition == partition_for(record.key, PARTITIONS)
