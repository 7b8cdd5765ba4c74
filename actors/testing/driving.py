"""What the test driver gives the worker and the set-up beside the fakes of the ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from actors._faust.setup import Setup
from actors._kafka.admin.control import TopicInfo
from actors.declare.publishing import published_stores
from actors.ports import TopicPartition
from actors.runtime.requests.requests import REPLY_PARTITIONS
from actors.runtime.state.stores import StoreCache
from actors.runtime.worker import WorkerSettings
from actors.testing.fakes.cluster import MemoryKafka
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.errors import OffsetOutOfRangeError
from stores.memory import MemoryStore

IDLE_S = 3600.0
BUSY_S = 0.05
_POLLED_RECORDS = 50
_TOPIC_CONFIG = {"max.message.bytes": "1048588", "delete.retention.ms": "86400000", "cleanup.policy": "delete"}


@dataclass(frozen=True)
class PatientSettings(WorkerSettings):
    """A worker's settings with long polls once there is nothing left to do: a takeover doesn't end one."""

    is_settled: Callable[[], bool] = bool

    def __getattribute__(self, name: str) -> Any:
        if name == "poll_s":
            return IDLE_S if self.is_settled() else BUSY_S
        return super().__getattribute__(name)


class DiskStore(MemoryStore):
    """A partition of a store, whose content outlives its process."""

    def __init__(self, store: str, partition: int) -> None:
        super().__init__()
        self.store = store
        self._partition = partition

    @property
    def path(self) -> Path:
        """A name as that of a folder; there is no such folder."""
        return Path(f"{self.store}-{self._partition}")

    @property
    def data(self) -> dict[bytes, bytes]:
        """What it holds, also while it is closed."""
        return self._data

    def open(self) -> Self:
        """Open it. What was written without a position counts for nothing."""
        self._closed = False
        if self.position() is None:
            self.wipe()
        return self


class Disk:
    """The stores of the worker's machine."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], DiskStore] = {}

    def files(self) -> list[DiskStore]:
        """Return all that is on the disk."""
        return list(self._files.values())

    def cache(self) -> StoreCache:
        """Return the stores of a process; that of an earlier one is dead."""
        return StoreCache(self._open, self._delete)

    def erase(self) -> None:
        """Lose everything."""
        self._files.clear()

    def _delete(self, store: str, partition: int) -> None:
        self._files.pop((store, partition), None)

    def _open(self, store: str, partition: int) -> DiskStore:
        return self._files.setdefault((store, partition), DiskStore(store, partition)).open()


class LoneSource:
    """`actors.ports.Source` of a group's only member, which has all partitions."""

    def __init__(
        self,
        cluster: MemoryKafka,
        topics: Iterable[str],
        *,
        network: DirectNetwork,
        reads_committed: bool,
        room: Callable[[], None],
        lost: Callable[[TopicPartition, str], None],
    ) -> None:
        self.partitions = sorted(log.name for topic in topics for log in cluster.topic(topic).partitions)
        self._cluster = cluster
        self._network = network
        self._reads_committed = reads_committed
        self._room = room
        self._lost = lost
        self._positions: dict[TopicPartition, int] = {}

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """See `actors.ports.Source.poll`."""
        asked = {source: self._positions[source] for source in wanted if source in self._positions}
        if not asked:
            await asyncio.sleep(timeout_s)
            return {}
        poll = partial(self._cluster.poll, committed=self._reads_committed)
        try:
            found = await self._network.ask("Fetch", poll, asked, _POLLED_RECORDS, timeout_s)
        except OffsetOutOfRangeError as error:
            self._lost(error.partition, f"the input doesn't have offset {error.offset} any more")
            return {}
        taken = {source: one for source, one in found.items() if self._positions.get(source) == asked[source]}
        self._positions |= {source: reached for source, (_, reached) in taken.items()}
        return {source: records for source, (records, _) in taken.items() if records}

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """See `actors.ports.TaskSink.start_from`."""
        self._positions[source] = offset
        self._room()

    def stop_delivery(self, source: TopicPartition) -> None:
        """See `actors.ports.TaskSink.stop_delivery`."""
        self._positions.pop(source, None)

    def has_room(self) -> None:
        """See `actors.ports.TaskSink.has_room`."""
        self._room()

    def position(self, source: TopicPartition) -> int | None:
        """See `actors.ports.TaskSink.position`."""
        return self._positions.get(source)

    def end_offset(self, source: TopicPartition) -> int | None:
        """See `actors.ports.Source.end_offset`."""
        return self._cluster.log(source).end

    def stable_offset(self, source: TopicPartition) -> int | None:
        """See `actors.ports.TaskSink.stable_offset`."""
        log = self._cluster.log(source)
        return log.last_stable if self._reads_committed else log.end

    def check(self) -> None:
        """See `actors.ports.Source.check`: it can always go on."""


class SimTopics:
    """What `Setup` asks of `actors._kafka.admin.topics.Topics`, from the simulated cluster."""

    def __init__(self, cluster: MemoryKafka) -> None:
        self._cluster = cluster

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return those of the topics that exist."""
        found = {}
        for name in names:
            with contextlib.suppress(KeyError):
                topic = self._cluster.topic(name)
                found[name] = TopicInfo(name, UUID(topic.topic_id), len(topic.partitions))
        return found

    async def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each."""
        return {name: dict(_TOPIC_CONFIG) for name in names}


def make_topics(cluster: MemoryKafka, setup: Setup, partitions: int) -> None:
    """Make the topics of an app that aren't there, each with so many partitions."""

    def make(name: str, count: int = partitions, *, is_compacted: bool = False) -> None:
        if cluster.find_topic(name) is None:
            cluster.make_topic(name, count, is_compacted=is_compacted)

    app = setup.app
    inputs = {name for definition in app.actors.values() for name in definition.topic_names}
    names = {str(topic.get_topic_name()) for topic in app.declared_topics if topic.topics}
    compacted = {view.topic for view in app.views} | published_stores(setup).keys()
    for name in sorted(names | inputs):
        make(name, is_compacted=name in compacted)
    for name, count in setup.plain().items():
        make(name, count)
    if setup.answers:
        make(setup.reply_topic, REPLY_PARTITIONS)
    make(setup.owners_topic, 1, is_compacted=True)
    for definition in app.actors.values():
        for store in definition.stores:
            make(setup.changelog_topic(store.name), is_compacted=True)
