"""Questions to coordinators and partition leaders, asked over a connection of their own.

aiokafka's own calls look at less than is answered: `committed()` gives None while a coordinator moves, heartbeats are
folded into the consumer's state. A takeover decides from these answers, so every error code is looked at here and a
missing answer is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    IllegalGenerationError,
    KafkaError,
    NoError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.offset import OffsetRequest

from actors._core.task.takeover import LogBounds
from actors._kafka.connection import Connection, words_of
from actors._kafka.permissions import UNAUTHORIZED, lacking
from actors._kafka.protocol import NO_TOPIC_ID, TopicIdsRequest
from actors._kafka.reaching import reaching
from actors.errors import BrokerUnavailableError
from actors.ports import Committed, Identity, TopicIdentity, TopicPartition

T = TypeVar("T")

ANSWER_S = 30.0
"""How long one question is asked again, over moving coordinators and leaders, before the caller is told."""
RETRY_S = 0.05
AGREE_S = 5.0
"""How long brokers that are asked side by side may take."""
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED = 0
_FENCED_INSTANCE_ID = 82
_REPLICAS = 4
"""Where a partition's replicas are in an answer about its topic."""
_UNKNOWN_OPERATIONS = -(2**31)
"""What a broker answers that wasn't asked, or doesn't know."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker has it; `replicas` are those of the partition with the fewest, 0 where nobody asked."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    replicas: int = 0


class ControlPlane:
    """Asks the cluster. One per worker; made by `open`."""

    def __init__(self, client: AIOKafkaClient, group: str, connection: Connection) -> None:
        self._client = client
        self._group = group
        self.connection = connection
        self._coordinator: int | None = None
        self._named: set[str] = set()
        self._identities: dict[str, TopicIdentity] = {}
        self._refused: dict[str, KafkaError] = {}
        self._identities_lock = asyncio.Lock()
        self._asked = 0
        self._covered = 0

    @classmethod
    async def open(cls, connection: Connection, group: str) -> ControlPlane:
        """Connect.

        Raises:
            BrokerRefusedError: the password isn't taken, or the broker's certificate isn't trusted.
            BrokerUnavailableError: no broker of the list answers.
        """
        client = AIOKafkaClient(**connection.arguments("control"))
        connection.outages.watch(client)
        try:
            async with reaching(connection):
                await client.bootstrap()
        except BaseException:
            await client.close()
            raise
        return cls(client, group, connection)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, connection: Connection, group: str) -> AsyncIterator[ControlPlane]:
        """Connect for the time of the block; else as `open`."""
        control = await cls.open(connection, group)
        try:
            yield control
        finally:
            await control.close()

    @property
    def broker_count(self) -> int:
        """How many brokers the cluster is known to have."""
        return len(self._client.cluster.brokers())

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._client.close()

    async def is_member(self, identity: Identity) -> bool:
        """Tell whether the group still knows this member in this generation; a rebalance to come doesn't end that."""

        async def ask() -> bool:
            response = await self.ask_coordinator(
                HeartbeatRequest(self._group, identity.generation, identity.member_id)
            )
            if response.error_code == _FENCED_INSTANCE_ID:
                return False
            error = for_code(response.error_code)
            if error in (NoError, RebalanceInProgressError):
                return True
            if error in (IllegalGenerationError, UnknownMemberIdError):
                return False
            raise self._moved(error)

        return await self._answered(f"is {identity.member_id} in group {self._group}", ask)

    async def confirms(self, identity: Identity) -> bool:
        """Tell whether this member is in the group's current generation, and no rebalance has begun. Asks once."""
        response = await self.ask_coordinator(HeartbeatRequest(self._group, identity.generation, identity.member_id))
        error = for_code(response.error_code)
        if error in (RebalanceInProgressError, IllegalGenerationError, UnknownMemberIdError):
            return False
        if response.error_code == _FENCED_INSTANCE_ID:
            return False
        self.check(response.error_code)
        return True

    async def committed(self, source: TopicPartition) -> Committed | None:
        """Give the group's committed offset, None only where the coordinator says that there is none."""

        async def ask() -> Committed | None:
            request = OffsetFetchRequest(self._group, [(source.topic, [source.partition])])
            response = await self.ask_coordinator(request)
            self.check(response.error_code)
            for topic, partitions in response.topics:
                for partition, offset, metadata, code in partitions:
                    if (topic, partition) == source:
                        self.check(code, topic)
                        return None if offset == -1 else Committed(offset, metadata or "")
            raise UnknownTopicOrPartitionError(f"{source} is missing from the answer")

        return await self._answered(f"committed offset of {source} in group {self._group}", ask)

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Give the partition's start and its high watermark (not the last stable offset), as its leader says."""
        start = await self._offset(partition, _EARLIEST)
        return LogBounds(start, await self._offset(partition, _LATEST))

    async def cluster_id(self) -> str:
        """Give the cluster's id, "" where its brokers have none."""

        async def ask() -> str:
            response = await self._client.send(self._any_node(), TopicIdsRequest([]))
            return response.cluster_id or ""

        return await self._answered("the cluster's id", ask)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Give those of the topics that exist."""
        wanted = sorted(set(names))
        if not wanted:
            return {}

        async def ask() -> dict[str, TopicInfo]:
            found, refused = await self._describe(wanted)
            for error in refused.values():
                raise error
            return found

        return await self._answered(f"topics {', '.join(wanted)}", ask)

    async def granted(self, names: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """Give what this user may do with topics, as bits by Kafka's codes, and whether they are there.

        One that the user can't even describe has no bits, and may be there. A broker that doesn't say grants all.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}

        async def ask() -> dict[str, tuple[int, bool]]:
            response = await self._client.send(self._any_node(), TopicIdsRequest(wanted, operations=True))
            found = {}
            for code, name, _, _, _, operations, _ in response.topics:
                error = for_code(code)
                if error is TopicAuthorizationFailedError:
                    found[name] = 0, True
                elif error in (NoError, UnknownTopicOrPartitionError):
                    bits = -1 if operations == _UNKNOWN_OPERATIONS else operations
                    found[name] = bits, error is NoError
                else:
                    raise error(name)
            return found

        return await self._answered(f"permissions for topics {', '.join(wanted)}", ask)

    async def ask_any(self, request: Any) -> Any:
        """Send a request to some broker, again while none answers."""
        return await self._answered(type(request).__name__, lambda: self._client.send(self._any_node(), request))

    async def _describe(
        self, names: Iterable[str], node: int | None = None
    ) -> tuple[dict[str, TopicInfo], dict[str, KafkaError]]:
        """Ask once. Return the topics that exist, and the errors of the topics that the broker refuses to describe."""
        node = self._any_node() if node is None else node
        response = await self._client.send(node, TopicIdsRequest(sorted(names)))
        found, refused = {}, {}
        for code, name, topic_id, _, partitions, _, _ in response.topics:
            error = for_code(code)
            if error is NoError:
                replicas = min((len(partition[_REPLICAS]) for partition in partitions), default=0)
                found[name] = TopicInfo(name, topic_id, len(partitions), replicas)
            elif error is not UnknownTopicOrPartitionError:
                refused[name] = error(name)
        return found, refused

    async def topic_ids(self, names: Iterable[str]) -> dict[str, TopicIdentity]:
        """Return the identities of those of the topics that exist now.

        Tasks that ask at the same time share one request: each is about all topics that were ever asked for here. A
        topic that the brokers say nothing of fails the calls that ask for it.

        Raises:
            BrokerUnavailableError: no broker answers, or not for one of the topics.
        """
        wanted = set(names)
        self._named |= wanted
        self._asked += 1
        ticket = self._asked
        async with self._identities_lock:
            if ticket > self._covered:
                covered = self._asked
                found, self._refused = await self._answered("the topics' ids", lambda: self._describe(self._named))
                self._identities = {
                    name: TopicIdentity("" if info.topic_id == NO_TOPIC_ID else str(info.topic_id), info.partitions)
                    for name, info in found.items()
                }
                self._covered = covered
            for name in sorted(wanted & self._refused.keys()):
                raise self._unavailable(f"topic {name}", self._refused[name]) from self._refused[name]
            return {name: self._identities[name] for name in wanted if name in self._identities}

    async def require_agreement(self, names: Iterable[str]) -> None:
        """See `actors.ports.GroupView.require_agreement`. Brokers that don't answer soon don't count.

        Raises:
            BrokerUnavailableError: also if a broker doesn't let this user describe one of the topics.
        """
        wanted = set(names)

        async def ask(node: int) -> tuple[dict[str, TopicInfo], dict[str, KafkaError]]:
            try:
                async with asyncio.timeout(AGREE_S):
                    return await self._describe(wanted, node)
            except (KafkaError, OSError, TimeoutError):
                return {}, dict.fromkeys(wanted, KafkaError())

        answers = await asyncio.gather(*(ask(broker.nodeId) for broker in self._client.cluster.brokers()))
        for name in sorted(wanted):
            for _, refused in answers:
                if isinstance(refused.get(name), UNAUTHORIZED):
                    raise self._unavailable(f"topic {name}", refused[name]) from refused[name]
            said = [found.get(name) for found, refused in answers if name not in refused]
            # Replicas don't count: they change while partitions are moved.
            words = sorted(
                {
                    "none" if one is None else f"{one.topic_id} of {one.partitions}"
                    for one in said
                    if one is None or one.topic_id != NO_TOPIC_ID
                }
            )
            if len(words) > 1:
                raise BrokerUnavailableError(
                    f"topic {name}: the brokers don't agree which topic of how many partitions it is, they say "
                    f"{' and '.join(words)}: one of them is behind"
                )

    async def _offset(self, partition: TopicPartition, timestamp: int) -> int:
        async def ask() -> int:
            await self._client._wait_on_metadata(partition.topic)
            leader = self._client.cluster.leader_for_partition(partition)
            if leader is None or leader == -1:
                raise await self._stale(f"{partition} has no leader")
            request = OffsetRequest(-1, _READ_UNCOMMITTED, [(partition.topic, [(partition.partition, timestamp)])])
            response = await self._client.send(leader, request)
            for topic, answers in response.topics:
                for number, code, _, offset in answers:
                    if (topic, number) != partition:
                        continue
                    error = for_code(code)
                    if error in UNAUTHORIZED:
                        raise error(topic)
                    if error is not NoError:
                        raise await self._stale(f"{partition}: {error.__name__}")
                    return int(offset)
            raise UnknownTopicOrPartitionError(f"{partition} is missing from the answer")

        return await self._answered(f"offsets of {partition}", ask)

    async def _stale(self, why: str) -> KafkaError:
        await self._client.force_metadata_update()
        return UnknownTopicOrPartitionError(why)

    async def ask_coordinator(self, request: Any) -> Any:
        """Send a request to the group's coordinator, once; a transport error makes the next call look it up again."""
        if self._coordinator is None:
            self._coordinator = await self._client.coordinator_lookup(CoordinationType.GROUP, self._group)
        try:
            return await self._client.send(self._coordinator, request, group=ConnectionGroup.COORDINATION)
        except KafkaError:
            self._coordinator = None
            raise

    def check(self, code: int, topic: str = "") -> None:
        """Raise what an error code of the coordinator stands for, about the group or one of its topics."""
        error = for_code(code)
        if error is not NoError:
            raise self._moved(error, topic)

    def _moved(self, error: type[KafkaError], topic: str = "") -> KafkaError:
        if error in (
            NotCoordinatorForGroupError,
            GroupCoordinatorNotAvailableError,
            GroupLoadInProgressError,
        ):
            self._coordinator = None
        return error(topic) if topic else error()

    def _why(self, error: Exception) -> str:
        """Give an error with the brokers that don't answer: the client's errors are often empty."""
        away = ", ".join(self.connection.outages.away)
        said = words_of(error)
        return f"{said}; no answer from broker {away}" if away else said

    def _unavailable(self, what: str, error: Exception) -> BrokerUnavailableError:
        """Return the error for a question that the brokers don't answer; it names the permission if that is missing."""
        missing = lacking(error, self.connection.principal, name=self._group)
        return BrokerUnavailableError(f"{what}: {missing or self._why(error)}", missing=missing)

    def _any_node(self) -> int:
        node = self._client.get_random_node()
        if node is None:
            raise GroupCoordinatorNotAvailableError("no broker is known")
        return int(node)

    async def _answered(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer or `ANSWER_S` is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ANSWER_S
        while True:
            try:
                return await ask()
            except (KafkaError, OSError, TimeoutError) as error:
                retriable = getattr(error, "retriable", True) or isinstance(error, UnknownTopicOrPartitionError)
                if not retriable or loop.time() >= deadline_s:
                    raise self._unavailable(what, error) from error
                if getattr(error, "invalid_metadata", False) or not isinstance(error, KafkaError):
                    await self._client.force_metadata_update()
            await asyncio.sleep(RETRY_S)
