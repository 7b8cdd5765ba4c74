"""Workers on brokers with access lists: what each feature needs, and what a start says of what is missing."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from actors._faust.setup import Setup
from actors._faust.startup.needs import TopicNeed, counts, permissions, topic_needs
from actors._kafka.permissions import Operation, Permission, Resource
from dev.kafka import Cluster
from tests.certificates import Authority
from tests.kafka import forked
from tests.kafka.acls import AccessLists
from tests.kafka.apps.needs_app import FEATURES, make
from tests.kafka.conftest import PASSWORD
from tests.kafka.helpers import WorkerProcess, eventually, has_leaders, producing, read_all, unique

MODULE = "tests.kafka.apps.needs_app"
PARTITIONS = 2
ENDS_S = 60.0
KINDS = {resource.value for resource in Resource}
WORDS = {operation.word: operation for operation in Operation}


@dataclass(frozen=True, slots=True)
class Site:
    """Brokers with access lists, on which tests may do all over a listener without a password."""

    cluster: Cluster
    authority: Authority
    folder: Path

    async def grant(self, user: str, wanted: Iterable[Permission]) -> None:
        """Add permissions to the access lists, one each."""
        await AccessLists(self.cluster.bootstrap, user).allow(wanted)

    async def make(self, needs: Iterable[TopicNeed]) -> None:
        """Make topics as a platform team would, from what the app says that it needs."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        try:
            needs = list(needs)
            sizes = counts(needs, PARTITIONS)
            topics = [NewTopic(need.name, sizes[need.name], 1, topic_configs=dict(need.config)) for need in needs]
            response = await admin.create_topics(topics)
            assert all(error[1] == 0 for error in response.topic_errors), response
        finally:
            await admin.close()
        async with producing(self.cluster.bootstrap) as producer:
            for need in needs:
                await eventually(lambda need=need: has_leaders(producer, need.name, sizes[need.name]))

    def worker(self, user: str, name: str, features: Collection[str], **more: str) -> WorkerProcess:
        """Give a worker that logs in as a user."""
        environment = {
            "APP_NAME": name,
            "FEATURES": ",".join(features),
            "CREATE_TOPICS": "no",
            "BROKER_USER": user,
            "BROKER_PASSWORD": PASSWORD,
            "BROKER_CA": str(self.authority.file),
            **more,
        }
        return WorkerProcess(MODULE, self.cluster.secure_bootstrap, self.folder / name, **environment)

    async def check(self, worker: WorkerProcess) -> tuple[int, str]:
        """Call `topics --check` as the worker's user; give exit code and output."""
        done = await asyncio.to_thread(
            forked.faust,
            *("-A", MODULE, "topics", "--check"),
            environment=worker._environment,
            timeout_s=ENDS_S,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    async def refusal(self, worker: WorkerProcess) -> str:
        """Give the one line with which a worker doesn't start."""
        worker.start()
        assert await asyncio.to_thread(worker.wait, ENDS_S) == 1, worker.log()
        assert "Traceback" not in worker.log()
        return [line for line in worker.log().splitlines() if "can't start" in line][-1]


@pytest.fixture(scope="module")
def site(secure_cluster: tuple[Cluster, Authority], tmp_path_factory: pytest.TempPathFactory) -> Site:
    cluster, authority = secure_cluster
    return Site(cluster, authority, tmp_path_factory.mktemp("permissions"))


def needed(name: str, features: Collection[str], **options: Any) -> tuple[list[TopicNeed], list[Permission]]:
    """Give what the app says that it needs."""
    setup = Setup(make(name, features, broker="kafka://127.0.0.1:1", **options))
    needs = topic_needs(setup)
    return needs, permissions(setup, needs)


def granted_by(commands: str) -> tuple[set[str], set[Permission]]:
    """Give the users and the permissions that `kafka-acls.sh` would set, of a text that ends with such commands."""
    users, found = set(), set()
    for command in commands[commands.index("kafka-acls.sh") :].split("; "):
        words = shlex.split(command)
        assert words[:2] == ["kafka-acls.sh", "--bootstrap-server"]
        options = [(words[at], words[at + 1]) for at in range(1, len(words) - 1) if words[at].startswith("--")]
        users |= {value for option, value in options if option == "--allow-principal"}
        operations = [WORDS[value] for option, value in options if option == "--operation"]
        for option, value in options:
            if option.removeprefix("--") in KINDS:
                found |= {Permission(option.removeprefix("--"), value, operation) for operation in operations}
        assert ("--resource-pattern-type" in words) == ("--transactional-id" in words)
    return users, found


async def does_its_work(
    site: Site, worker: WorkerProcess, name: str, features: Collection[str], *, lives: int = 1
) -> None:
    """Start a worker once or more often, and see that it does all that the features are for."""
    sent = 0
    for life in range(lives):
        worker.start()
        async with producing(site.cluster.bootstrap) as producer:
            values = [b"first", *([b"bad"] if "park" in features else [])]
            for value in values:
                headers = [("id", value)] if "dedupe" in features else []
                # What is parked holds up later messages of its key.
                key = b"%s %d" % (value, life)
                await producer.send_and_wait(f"{name}-in", value, key, headers=headers)
            if "by" in features:
                await producer.send_and_wait(f"{name}-keyed", b"value")
        sent += 1 + ("timers" in features) + ("by" in features)

        async def is_sent(count: int = sent) -> bool:
            return len(await read_all(site.cluster.bootstrap, f"{name}-out")) == count

        await eventually(is_sent, what=lambda: worker.log()[-5000:])
        if "park" in features:

            async def is_buried(count: int = life + 1) -> bool:
                return len(await read_all(site.cluster.bootstrap, f"{name}-dead-letters")) == count

            await eventually(is_buried, what=lambda: worker.log()[-5000:])
        assert await asyncio.to_thread(worker.terminate) == 0
    # Of other apps' registries it says that it may not see whether they are there.
    denied = [
        line
        for line in worker.log().splitlines()
        if ("Authorization" in line or "isn't allowed" in line) and "an app of that name" not in line
    ]
    assert denied == []


async def test_an_actor_runs_with_what_its_refused_start_asks_for_and_no_more(site: Site) -> None:
    name = unique("plain")
    needs, wanted = needed(name, ["store"])
    await site.make(needs)
    worker = site.worker("plain", name, ["store"])
    line = await site.refusal(worker)
    users, asked = granted_by(line)
    assert (users, asked) == ({"User:plain"}, set(wanted))
    assert all(str(one) in line for one in wanted)
    await site.grant("plain", asked)
    try:
        await does_its_work(site, worker, name, ["store"])
    finally:
        worker.kill()


@pytest.mark.nightly
async def test_all_features_run_with_what_the_table_has(site: Site) -> None:
    name = unique("all")
    needs, wanted = needed(name, FEATURES)
    await site.grant("all", wanted)
    worker = site.worker("all", name, FEATURES)
    code, missing = await site.check(worker)
    assert (code, missing.count("it is missing")) == (1, len(needs))
    small = f"{name}--counts-changelog"
    await site.make(need for need in needs if need.name != small)
    own = next(need for need in needs if need.name == small)
    await site.make([replace(own, partitions=PARTITIONS, config={**own.config, "max.message.bytes": "70000"})])
    code, found = await site.check(worker)
    assert (code, found.splitlines()[-1]) == (0, f"{len(needs)} topics, 0 errors, 1 warnings")
    try:
        await does_its_work(site, worker, name, FEATURES, lives=2)
    finally:
        worker.kill()
    warned = [line for line in worker.log().splitlines() if "max.message.bytes=70000" in line]
    assert len(warned) == 2
    assert all(line[line.index("max.message") :].strip() in found for line in warned)


@pytest.mark.nightly
async def test_topics_that_may_not_be_made_are_all_named(site: Site) -> None:
    name = unique("maker")
    needs, wanted = needed(name, FEATURES)
    await site.make(need for need in needs if not need.is_made)
    await site.grant("maker", wanted)
    made = {need.name for need in needs if need.is_made}
    line = await site.refusal(site.worker("maker", name, FEATURES, CREATE_TOPICS="yes"))
    _, asked = granted_by(line)
    assert asked == {Permission("topic", topic, Operation.CREATE) for topic in made}
    line = await site.refusal(site.worker("maker", name, FEATURES))
    assert f"the broker lacks {len(made)} topics" in line
    assert all(topic in line for topic in made)
    await site.grant("maker", asked)
    worker = site.worker("maker", name, FEATURES, CREATE_TOPICS="yes")
    try:
        await does_its_work(site, worker, name, FEATURES)
    finally:
        worker.kill()
