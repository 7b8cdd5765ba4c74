"""What a worker checks before it runs: the product's `StoreRegistry`, over the simulated cluster."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from actors import App, Context
from actors._core.task.takeover import LostChangelog
from actors._faust.setup import Setup
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord
from actors.errors import BrokerUnavailableError
from actors.ports import Clock, TopicPartition
from actors.testing.fakes.direct import retried
from actors.testing.fakes.errors import NoAnswerError, RefusedError
from actors.testing.fakes.ports import FakeLogs
from tests.sim import app
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.network import Network

ANSWER_S = 10.0
RETRY_S = 0.05
RECORD = b"store:"
"""Begins the key of a store's record in the registry."""


@functools.cache
def setup_of(stores: tuple[str, ...], *, parks: bool, lost_changelog: LostChangelog = LostChangelog.STOP) -> Setup:
    """Give the settings of a program: an app with the simulated actor and these stores."""
    program = App(app.APP, broker="kafka://127.0.0.1:1")

    @program.actor(
        program.topic(app.INPUT),
        name=app.ACTOR,
        stores=[program.store(store, value_type=bytes) for store in stores],
        on_error="park" if parks else "stop",
    )
    def handle(ctx: Context, value: str) -> None:
        """Do nothing: only the declaration is looked at."""

    setup = Setup(program)
    setup.lost_changelog = lost_changelog
    return setup


class SimTopics:
    """The part of `actors._kafka.admin.topics.Topics` that a start needs."""

    def __init__(self, cluster: SimKafka, network: Network) -> None:
        self._cluster = cluster
        self._network = network

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Give those that are there."""
        wanted = list(names)
        found = await answered("topics", lambda: self._network.ask("Metadata", self._find, wanted))
        return dict(found)

    async def ensure(self, partitions: Mapping[str, int], delete_retention_ms: int) -> dict[str, TopicInfo]:
        """Make those that are missing, compacted, and give all."""

        def make() -> dict[str, TopicInfo]:
            for name, count in partitions.items():
                if self._cluster.find_topic(name) is None:
                    self._cluster.make_topic(name, count, is_compacted=True, delete_retention_ms=delete_retention_ms)
            return self._find(partitions)

        return dict(await answered("making topics", lambda: self._network.ask("CreateTopics", make)))

    def _find(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        topics = [topic for topic in map(self._cluster.find_topic, names) if topic is not None]
        return {topic.name: TopicInfo(topic.name, uuid.UUID(topic.topic_id), len(topic.partitions)) for topic in topics}


class SimRegistry(StoreRegistry):
    """The product's check of one start."""

    def __init__(self, setup: Setup, cluster: SimKafka, network: Network, clock: Clock, *, chunk_records: int) -> None:
        logs = FakeLogs(cluster, network, chunk_records=chunk_records)
        self.topics = SimTopics(cluster, network)
        topics: Any = self.topics
        super().__init__(setup, topics, logs, KafkaOwners(setup.owners_topic, logs), clock)
        self._cluster = cluster
        self._network = network

    async def _write(self, records: Mapping[str, StoreRecord]) -> None:
        """Write as a new idempotent producer does."""
        cluster, network = self._cluster, self._network
        target = TopicPartition(self._setup.owners_topic, 0)
        what = f"writing stores into {target.topic}"
        producer = await answered(what, lambda: network.ask("InitProducerId", cluster.new_producer_id))
        for sequence, (store, record) in enumerate(records.items()):
            written = [(RECORD + store.encode(), msgspec.json.encode(record), ())]

            async def send(sequence: int = sequence, written: list[Any] = written) -> int:
                return await network.ask("Produce", cluster.produce_idempotent, producer, sequence, target, written)

            await answered(what, send)


async def start(registry: SimRegistry, partitions: int, delete_retention_ms: int) -> dict[str, TopicInfo]:
    """Do what a worker does before it touches a changelog, in its order; give the changelogs.

    Raises:
        ConfigurationError: the start is refused.
        BrokerUnavailableError: it can't be told.
    """
    await registry.topics.ensure({registry._setup.owners_topic: 1}, delete_retention_ms)
    await registry.check()
    changelogs = dict.fromkeys(registry._changelogs.values(), partitions)
    found = await registry.topics.ensure(changelogs, delete_retention_ms)
    await registry.confirm(found)
    return found


async def answered(what: str, ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer, or for `ANSWER_S`."""
    try:
        return await retried(ask, retry_s=RETRY_S, deadline_s=asyncio.get_running_loop().time() + ANSWER_S)
    except (RefusedError, NoAnswerError) as error:
        raise BrokerUnavailableError(f"{what}: {error!r}") from error
