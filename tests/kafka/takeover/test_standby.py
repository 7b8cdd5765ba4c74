"""Standbys and warm-ups with real workers: who gets what when, what a takeover has to read, what copies answer."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from actors._core.group.members import TaskId
from actors._core.partitioner import partition_for
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors._kafka.consume.standby_owners import KafkaCopies
from actors.client import StateClient
from dev.kafka import free_port
from tests import documents
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, send, unique

MODULE = "tests.kafka.apps.standby_app"
PARTITIONS = 4
KEYS = 12_000
RESTORED_MOST = 2_000
"""Less than what each partition holds."""
LONGEST_PAUSE_S = 8.0
"""On a machine with other work; alone it is less than 2 s."""


class Group:
    """Workers of one app, and what was sent to it."""

    def __init__(self, brokers: str, folder: Path, workers: list[WorkerProcess], **environment: str) -> None:
        self.brokers, self.folder, self.workers = brokers, folder, workers
        self.environment = environment
        self.is_static = False
        self.name = unique("standby")
        self.ports: list[int] = []
        self.sent: Counter[bytes] = Counter()

    async def begin(self, keys: int = KEYS) -> WorkerProcess:
        """Start the first worker, and have it count each key once."""
        await make_topics(self.brokers, f"{self.name}-in", f"{self.name}-out", partitions=PARTITIONS)
        first = self.start()
        await self.send(keys)
        await self.all_counted()
        return first

    def start(self) -> WorkerProcess:
        number = len(self.workers)
        self.ports.append(free_port())
        environment = {
            **self.environment,
            "INSTANCE_ID": f"w{number}" * self.is_static,
            "APP_NAME": self.name,
            "WEB_PORT": str(self.ports[number]),
        }
        worker = WorkerProcess(MODULE, self.brokers, self.folder / f"w{number}", **environment)
        self.workers.append(worker.start(web=True))
        return worker

    async def get(self, number: int, path: str) -> tuple[int, Any]:
        """Ask a worker."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.ports[number]}/actors{path}") as reply,
        ):
            return reply.status, await reply.json(content_type=None)

    async def held(self, number: int) -> tuple[set[int], set[int]]:
        """Give what a worker owns, and the standbys that it follows; nothing while it can't be asked."""
        try:
            status, overview = await self.get(number, "")
        except aiohttp.ClientError:
            return set(), set()
        if status != 200:
            return set(), set()
        owns = {one["partition"] for one in overview["partitions"] if one["state"] == "running"}
        follows = {
            one["partition"] for one in overview["copies"] if one["role"] == "standby" and one["lag"] is not None
        }
        return owns, follows

    async def trickle(self, enough: asyncio.Event) -> None:
        """Send to each partition all the time."""
        keys = {partition_for(key, PARTITIONS): key for key in (b"key-%05d" % number for number in range(100))}
        async with producing(self.brokers) as producer:
            while not enough.is_set():
                for partition, key in keys.items():
                    await producer.send(f"{self.name}-in", b"x", key, partition=partition)
                    self.sent[key] += 1
                await asyncio.sleep(0.05)

    async def longest_pause_s(self, since_ms: int, until_ms: int) -> float:
        """Give for how long a partition was without an output at most."""
        times: dict[int, list[int]] = {number: [since_ms, until_ms] for number in range(PARTITIONS)}
        for record in await read_all(self.brokers, f"{self.name}-out"):
            if since_ms < record.timestamp < until_ms:
                times[record.partition].append(record.timestamp)
        gaps = (later - earlier for own in times.values() for earlier, later in pairwise(sorted(own)))
        return max(gaps) / 1000

    async def send(self, count: int) -> None:
        keys = [b"key-%05d" % number for number in range(count)]
        self.sent.update(keys)
        await send(self.brokers, f"{self.name}-in", [(key, b"x") for key in keys], partitions=PARTITIONS)

    async def all_counted(self) -> None:
        """Wait for an echo of each message, and see that each key was counted 1, 2, 3, …"""
        total = self.sent.total()
        records: list = []

        async def are_all_there() -> bool:
            records[:] = await read_all(self.brokers, f"{self.name}-out")
            return len(records) >= total

        await eventually(are_all_there, what=self.logs)
        seen: dict[bytes, list[int]] = {}
        for record in records:
            seen.setdefault(record.key, []).append(int(record.value))
        assert {key: list(range(1, count + 1)) for key, count in self.sent.items()} == seen

    def logs(self) -> str:
        return "\n---\n".join(worker.log()[-3000:] for worker in self.workers)


def owned(worker: WorkerProcess) -> list[int]:
    return [int(found) for found in re.findall(r"owns \S+-in\[(\d+)\] from offset", worker.log())]


def restored(log: str) -> int:
    return sum(int(found) for found in re.findall(r"-changelog\[\d+\]: restored (\d+) records", log))


async def warm_up(group: Group) -> WorkerProcess:
    """Start a cold worker, and see that it gets its share only when it is warm."""
    second = group.start()
    await eventually(lambda: len(set(owned(second))) == PARTITIONS // 2, what=group.logs)
    before, _, after = second.log().partition("warm copies, asking for a rebalance")
    assert after, "it never warmed up"
    assert " owns " not in before, "it got a partition although it was cold"
    assert restored(second.log()) < RESTORED_MOST
    return second


async def check_copies_answer(group: Group, *, dead: bool = False) -> None:
    """See that worker 1 answers for what it keeps copies of, and says how old that may be."""
    _, overview = await group.get(1, "")
    kept = {copy["partition"] for copy in overview["copies"] if copy["role"] == "standby"}
    assert kept == set(range(PARTITIONS)) - {one["partition"] for one in overview["partitions"] if one["state"]}
    partition = min(kept)
    key = next(f"key-{n:05d}" for n in range(100) if partition_for(b"key-%05d" % n, PARTITIONS) == partition)
    status, answer = await group.get(1, f"/counts/{key}?read=standby")
    assert (status, answer["read"], answer["partition"]) == (200, "standby", partition), answer
    assert answer["value"] in (2, 3)
    assert 0 <= answer["staleness_ms"] < 15_000
    status, page = await group.get(1, f"/counts?read=standby&limit=10&partition={partition}")
    assert (status, page["read"], len(page["items"])) == (200, "standby", 10)
    if dead:
        assert (await group.get(1, f"/counts/{key}"))[0] == 503
        return
    assert (await group.get(1, f"/counts/{key}"))[1]["staleness_ms"] == 0
    status, answer = await group.get(0, f"/counts/{key}?read=standby")
    assert (status, answer["read"], answer["staleness_ms"]) == (200, "committed", 0), "it is the owner itself"
    status, page = await group.get(0, "/counts?read=standby&limit=1000")
    assert (status, len(page["items"])) == (200, 1000)


async def check_the_pages_example(group: Group) -> None:
    """Run the page's command at the worker that has a copy of that key, and ask the same from Python."""
    (command,) = documents.commands_of("docs/how-to/standbys.md")
    expected = dict(command.answer)
    partition = partition_for(expected["key"].encode(), PARTITIONS)
    for port in group.ports:
        said = await documents.run(command, port)
        if said["read"] == "standby":
            break
    stale_ms = said.pop("staleness_ms")
    assert 0 <= stale_ms < 15_000
    assert {name: said.get(name) for name in expected} == expected | {"staleness_ms": None}
    assert said["partition"] == partition
    async with StateClient(f"http://127.0.0.1:{port}", read="standby") as client:
        answer = await client.lookup("counts", expected["key"])
        assert answer.value == expected["value"]
        assert answer.staleness_ms < 15_000
        assert await client.get_many("counts", [expected["key"]]) == {expected["key"]: expected["value"]}
        pages = client.range("counts", prefix="key-0001", partition=partition)
        assert expected["key"] in {key async for key, _ in pages}


async def check_group_knows_the_copies(group: Group) -> None:
    """See that what the coordinator has of the copies is what the workers keep."""
    kept: dict[TaskId, list[str]] = {}
    for number, port in enumerate(group.ports):
        _, overview = await group.get(number, "")
        for copy in overview["copies"]:
            kept.setdefault(TaskId("count", copy["partition"]), []).append(f"http://127.0.0.1:{port}")
    name = f"{group.name}-actors"
    async with ControlPlane.connect(Connection.to(group.brokers, client_id="test"), name) as control:
        copies = KafkaCopies(control, name)
        assert await copies.addresses() == kept
        assert sorted((await copies.members()).addresses) == sorted(f"http://127.0.0.1:{port}" for port in group.ports)
    assert len(kept) == PARTITIONS


async def check_copies_are_shown(group: Group) -> None:
    """See that the metrics of a worker tell of its copies, and the dashboard of the other one as well."""
    half = PARTITIONS // 2
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{group.ports[1]}/metrics") as reply:
            found = [sample for family in parse_text(await reply.text()) for sample in family.samples]
        async with session.get(f"http://127.0.0.1:{group.ports[0]}/dashboard") as reply:
            page = await reply.text()

    def total(name: str, role: str) -> float:
        return sum(one.value for one in found if one.name == f"faust_actors_{name}" and one.labels["role"] == role)

    for name in ("assigned_copies", "copies"):
        assert (total(name, "standby"), total(name, "warm-up")) == (half, 0), name
    assert 0 <= total("copy_lag_records", "standby") < 100
    since = [one.value for one in found if one.name == "faust_actors_copy_current_timestamp_seconds"]
    assert len(since) == half
    assert all(abs(time.time() - one) < 60 for one in since)
    cells = re.findall(r'data-name="Copies"><div><bdi>(\S+)</bdi> <span class="soft">standby, lag \S+</span>', page)
    assert len(cells) == PARTITIONS, page
    assert [cells.count(worker) for worker in set(cells)] == [half, half]


async def test_a_cold_worker_warms_up_and_takes_over_from_a_killed_one(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    group = Group(brokers, tmp_path, workers)
    first = await group.begin()
    assert len(owned(first)) == PARTITIONS
    second = await warm_up(group)
    await group.send(500)
    await group.all_counted()
    await eventually(lambda: second.log().count("is a standby copy") >= PARTITIONS // 2, what=group.logs)
    await check_copies_answer(group)
    await check_group_knows_the_copies(group)
    await check_copies_are_shown(group)
    await check_the_pages_example(group)
    before = len(second.log())
    await group.send(KEYS // 3)
    first.kill()
    await check_copies_answer(group, dead=True)
    await group.all_counted()
    # The killed one may have handled all of a partition.
    await eventually(lambda: len(set(re.findall(r"owns \S+-in\[(\d+)\]", second.log()))) == PARTITIONS, what=group.logs)
    taken = second.log()[before:]
    assert restored(taken) < RESTORED_MOST, taken


@pytest.mark.nightly
async def test_the_checks_see_an_assignment_that_ignores_warmth(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    group = Group(brokers, tmp_path, workers, PLANT="ignore warmth")
    await group.begin(3_000)
    with pytest.raises(AssertionError, match=r"it never warmed up|although it was cold"):
        await warm_up(group)


async def grow_to_three(group: Group) -> None:
    """Start two cold workers while records come, and see that no partition waits long, or goes to one of them cold.

    A cold takeover takes longer than `LONGEST_PAUSE_S` here.
    """
    enough, since_ms = asyncio.Event(), int(time.time() * 1000)
    trickle = asyncio.create_task(group.trickle(enough))
    try:
        group.start()
        group.start()

        async def is_even() -> bool:
            held = [await group.held(number) for number in range(3)]
            owned, followed = ([len(each) for each in kind] for kind in zip(*held, strict=True))
            return sorted(owned) == [1, 1, 2] and sum(followed) == PARTITIONS

        await eventually(is_even, what=group.logs)
    finally:
        enough.set()
        await trickle
    await group.all_counted()
    assert await group.longest_pause_s(since_ms, int(time.time() * 1000)) < LONGEST_PAUSE_S
    for worker in group.workers[1:]:
        assert restored(worker.log()) < 500


@pytest.mark.nightly
async def test_three_share_without_a_long_pause_and_a_lost_disk_is_nobodys_wait(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    group = Group(brokers, tmp_path, workers, ACCEPTABLE_LAG="300", SLOW_RESTORES="500", HEARTBEAT_S="0.2")
    group.is_static = True
    first = await group.begin(3_000)
    await grow_to_three(group)
    was, _ = await group.held(0)
    first.kill()
    shutil.rmtree(first.folder)
    before = len(first.log())
    # Within its session: the group gives it what it had.
    first.start(web=True)

    async def is_with_the_others() -> bool:
        return was <= (await group.held(1))[0] | (await group.held(2))[0]

    await eventually(is_with_the_others, deadline_s=20, what=group.logs)
    await eventually(lambda: "nothing is left on this disk: asking for a rebalance" in first.log()[before:])
    await group.send(100)
    await group.all_counted()
    for worker in workers[1:]:
        assert restored(worker.log()) < 1_000
