"""Permissions that are withdrawn while a worker runs: it waits, names them, and goes on when they are granted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actors._kafka.admin.groups import member_count
from actors._kafka.connection import Connection
from actors.declare.names import worker_transactional_id
from dev.kafka import Cluster
from stores.folder import DataFolder
from tests.certificates import Authority
from tests.kafka.acls import AccessLists, Denial, Operation, Resource
from tests.kafka.conftest import PASSWORD, RESTRICTED
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.permissions_app"
POLICIES = ("stop", "skip", "park")
KEYS = (b"a", b"b")
BATCH = 10


@dataclass
class Site:
    """An app whose user has permissions for what begins with its name, and what was sent to its actors."""

    name: str
    brokers: str
    lists: AccessLists
    worker: WorkerProcess
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def send(self) -> None:
        """Send as many records more to each actor."""
        first = len(self.sent)
        records = [(KEYS[number % 2], b"%d" % number) for number in range(first, first + BATCH)]
        self.sent += records
        for policy in POLICIES:
            await send(self.brokers, f"{self.name}-{policy}-in", records, partitions=1)

    async def echoed(self, policy: str) -> list[tuple[bytes, bytes]]:
        records = await read_all(self.brokers, f"{self.name}-{policy}-out")
        return [(record.key, record.value) for record in records]

    async def has_done(self, *policies: str) -> bool:
        """Whether these actors have handled all that was sent, which has to be exactly once and in order."""
        wanted: dict[bytes, list[bytes]] = {key: [] for key in KEYS}
        for key, value in self.sent:
            wanted[key].append(b"%d:%s" % (len(wanted[key]) + 1, value))
        for policy in policies or POLICIES:
            echoes = await self.echoed(policy)
            if len(echoes) < len(self.sent):
                return False
            for key in KEYS:
                assert [value for found, value in echoes if found == key] == wanted[key], policy
        return True

    async def is_forgotten(self) -> bool:
        """Whether the group has no member any more: no heartbeat came for a session."""
        return await member_count(Connection((self.brokers,)), f"{self.name}-actors") == 0

    async def waits_for(self, *denials: Denial, says: list[str], until: Any = None) -> None:
        """Deny something while records come, until the worker has said what is missing; then allow it again."""
        async with self.lists.denied(*denials):
            await self.send()
            await eventually(lambda: all(text in self.worker.log() for text in says), what=self.shown)
            await eventually(until or (lambda: True), what=self.shown)
            assert self.worker.is_running()
            assert not await self.has_done()
        await eventually(self.has_done, what=self.shown)

    def shown(self) -> str:
        return self.worker.log()[-6000:]


@pytest.fixture
async def site(secure_cluster: tuple[Cluster, Authority], tmp_path: Path, workers: list[WorkerProcess]) -> Site:
    cluster, authority = secure_cluster
    name = unique("permissions")
    lists = AccessLists(cluster.bootstrap, RESTRICTED)
    await lists.allow_prefix(name)
    topics = [f"{name}-{policy}-{end}" for policy in POLICIES for end in ("in", "out")]
    await make_topics(cluster.bootstrap, *topics, partitions=1)
    environment = {
        "APP_NAME": name,
        "BROKER_USER": RESTRICTED,
        "BROKER_PASSWORD": PASSWORD,
        "BROKER_CA": str(authority.file),
    }
    worker = WorkerProcess(MODULE, cluster.secure_bootstrap, tmp_path / "worker", **environment).start()
    workers.append(worker)
    return Site(name, cluster.bootstrap, lists, worker)


@pytest.mark.nightly
async def test_a_worker_waits_for_a_permission_that_is_withdrawn_and_blames_no_message(site: Site) -> None:
    name = site.name
    await site.send()
    await eventually(site.has_done, what=site.shown)
    log = site.worker.log()
    # One line for all connections says who the worker is.
    assert log.count(f"as User:{RESTRICTED}") == 1, log
    assert "taking over again" not in log, log
    assert "Authenticated as" not in log

    def isnt_allowed(operation: str, resource: str, resource_name: str) -> str:
        return f"User:{RESTRICTED} isn't allowed {operation} on {resource} {resource_name}. Grant it: kafka-acls.sh"

    outputs = [f"{name}-{policy}-out" for policy in POLICIES]
    # Who may not write to a topic often doesn't even see it.
    await site.waits_for(
        *((operation, Resource.TOPIC, outputs[0]) for operation in (Operation.WRITE, Operation.DESCRIBE)),
        says=[isnt_allowed("Write", "topic", outputs[0])],
        until=lambda: site.has_done(*POLICIES[1:]),
    )
    await site.waits_for(
        *((Operation.WRITE, Resource.TOPIC, topic) for topic in outputs),
        says=[isnt_allowed("Write", "topic", topic) for topic in outputs],
    )
    changelogs = [f"{name}--{policy}-counts-changelog" for policy in ("stop", "park")]
    await site.waits_for(
        *((Operation.WRITE, Resource.TOPIC, topic) for topic in changelogs),
        (Operation.READ, Resource.TOPIC, f"{name}-skip-in"),
        says=[
            *(isnt_allowed("Write", "topic", topic) for topic in changelogs),
            isnt_allowed("Read", "topic", f"{name}-skip-in"),
        ],
    )
    await site.waits_for(
        (Operation.READ, Resource.GROUP, f"{name}-actors"),
        says=[isnt_allowed("Read", "group", f"{name}-actors"), f"--group {name}-actors; it is tried again"],
        until=site.is_forgotten,
    )
    folder_id = DataFolder.inspect(site.worker.folder / "v1" / "actors").id
    await site.waits_for(
        (Operation.WRITE, Resource.TRANSACTIONAL_ID, worker_transactional_id(name, folder_id)),
        says=[isnt_allowed("Write", "transactional ids that begin with", f"{name}:")],
    )
    log = site.worker.log()
    assert "is stopped on" not in log
    assert "Traceback" not in log
    assert not await read_all(site.brokers, f"{name}-dead-letters")
    # Once in each task at most, and not at each try.
    assert max(log.count(isnt_allowed("Write", "topic", topic)) for topic in (*outputs, *changelogs)) <= 2
    assert await asyncio.to_thread(site.worker.terminate) == 0
