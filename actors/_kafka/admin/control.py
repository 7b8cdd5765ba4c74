"""Questions to coordinators and partition leaders, over a connection of their own.

aiokafka's own calls ignore parts of the answers: `committed()` returns None while a coordinator moves, and heartbeats
only change the consumer's state. A takeover depends on these answers, so every error code is checked here, and a
missing answer is an error.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    IllegalGenerationError,
    KafkaError,
    NoError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import ApiVersionRequest, DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.offset import OffsetRequest

from actors._core.group.members import decode_member_data, left_open
from actors._core.task.takeover import LogBounds
from actors._kafka.admin.asking import BrokerClient, SharedRead
from actors._kafka.client import Client
from actors._kafka.codes import FENCED_INSTANCE_ID, UNSTABLE_OFFSET_COMMIT
from actors._kafka.connection import Connection
from actors._kafka.permissions import UNAUTHORIZED
from actors._kafka.protocol import NO_TOPIC_ID, TopicIdsRequest, by_topic
from actors._kafka.transaction_requests import REQUIRED, EndsRequest, ListTransactionsRequest, OffsetsRequest
from actors.errors import BrokerUnavailableError, ConfigurationError, UnstableOffsetError
from actors.ports import Committed, Identity, LookAnswer, TopicIdentity, TopicPartition

UPGRADE = "Workers need Kafka 2.8 or later: upgrade the brokers, or keep the release of faust-actors that ran with them"
AGREE_S = 5.0
"""How long brokers may take that are asked side by side."""
LIST_S = 1.0
"""How long they may take for their open transactions, while a takeover waits."""
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_NO_GENERATION = -2
_STABLE = "Stable"
_NOT_A_MEMBER = (IllegalGenerationError, UnknownMemberIdError)
_REPLICAS = 4
"""Where a partition's replicas are in an answer about its topic."""
_UNKNOWN_OPERATIONS = -(2**31)
"""A broker's answer where the operations weren't requested, or are unknown to it."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker has it; `replicas` are those of the partition with the fewest, 0 where nobody asked."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    replicas: int = 0


class ControlPlane(BrokerClient):
    """Asks the cluster. One per worker; made by `open`."""

    def __init__(self, client: Client, group: str, connection: Connection) -> None:
        super().__init__(client, group, connection)
        self._named: set[str] = set()
        self._identities: dict[str, TopicIdentity] = {}
        self._refused: dict[str, KafkaError] = {}
        self._read_identities = SharedRead(self._describe_named)
        self._open: tuple[set[str], set[str | None]] = set(), {None}
        self._read_open = SharedRead(self._list_open)

    async def require_versions(self) -> None:
        """Refuse brokers that lack a request which a worker sends.

        Raises:
            ConfigurationError: naming what is missing.
            BrokerUnavailableError: no broker answers.
        """
        if why := await self.why_too_old():
            raise ConfigurationError(f"{why}. {UPGRADE}")

    async def why_too_old(self) -> str:
        """Return the worker's requests that the brokers lack, "" if they have all."""
        known = {key: highest for key, _, highest in (await self.ask_any(ApiVersionRequest())).api_versions}
        missing = [
            f"{name} {kind.API_VERSION} (it has {known.get(kind.API_KEY, 'none')})"
            for name, kind in REQUIRED.items()
            if known.get(kind.API_KEY, -1) < kind.API_VERSION
        ]
        if not missing:
            return ""
        return (
            f"a broker of {', '.join(self.connection.bootstrap)} is too old: it lacks the requests {', '.join(missing)}"
        )

    async def is_member(self, identity: Identity) -> bool:
        """Return whether the group still knows this member in this generation, also while it prepares a rebalance."""

        async def ask() -> bool:
            return await self._heartbeat(identity) not in _NOT_A_MEMBER

        return await self._answered(f"is {identity.member_id} in group {self._group}", ask)

    async def confirms(self, identity: Identity) -> bool:
        """Return whether this member is in the group's current generation, and no rebalance has begun. Asks once."""
        return await self._heartbeat(identity) is NoError

    async def _heartbeat(self, identity: Identity) -> type[KafkaError]:
        """Return the coordinator's answer to a heartbeat, as far as it is about the member."""
        response = await self.ask_coordinator(HeartbeatRequest(self._group, identity.generation, identity.member_id))
        is_fenced = response.error_code == FENCED_INSTANCE_ID
        error: type[KafkaError] = UnknownMemberIdError if is_fenced else for_code(response.error_code)
        if error not in (NoError, RebalanceInProgressError, *_NOT_A_MEMBER):
            raise self._moved(error)
        return error

    async def committed(self, source: TopicPartition) -> Committed | None:
        """Return the group's committed offset, None only if the coordinator answers that there is none."""
        return await self._offset_of(source, require_stable=False)

    async def stable_offset(self, source: TopicPartition) -> Committed | None:
        return await self._offset_of(source, require_stable=True)

    async def _offset_of(self, source: TopicPartition, *, require_stable: bool) -> Committed | None:
        async def ask() -> Committed | None:
            return (await self._commits([source], require_stable=require_stable)).get(source)

        return await self._answered(f"committed offset of {source} in group {self._group}", ask)

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets for a group that has no members, all with one request.

        Raises:
            ConfigurationError: the group has members.
            BrokerUnavailableError: they may be committed, or not.
        """
        parts = ((source.topic, (source.partition, each.offset, each.metadata)) for source, each in offsets.items())
        request = OffsetCommitRequest(self._group, -1, "", -1, by_topic(parts))

        async def ask() -> None:
            response = await self.ask_coordinator(request)
            for topic, partitions in response.topics:
                for _, code in partitions:
                    if for_code(code) in (*_NOT_A_MEMBER, RebalanceInProgressError):
                        raise ConfigurationError(
                            f"a worker joined group {self._group} meanwhile, and the offsets weren't committed: stop "
                            "all workers of the app, and run this again"
                        )
                    self.check(code, topic)

        await self._answered(f"committing offsets of group {self._group}", ask)

    async def knows(self, member_id: str) -> bool:
        """Return whether the group has this member, in whatever generation. This doesn't keep its session alive."""

        async def ask() -> bool:
            return await self._heartbeat(Identity(member_id, _NO_GENERATION)) is not UnknownMemberIdError

        return await self._answered(f"is {member_id} in group {self._group}", ask)

    async def left_open(self, own_id: str) -> set[str]:
        """Return transactional ids with open transactions; brokers that don't answer soon are left out."""
        await self._read_open()
        return left_open(*self._open, own_id)

    async def _list_open(self) -> None:
        async def listed(node: int) -> set[str]:
            try:
                async with asyncio.timeout(LIST_S):
                    answer = await self._client.send(node, ListTransactionsRequest())
            except (KafkaError, OSError, TimeoutError):
                return set()
            return {one for one, *_ in answer.transactions}

        async def members() -> set[str | None]:
            response = await self.ask_coordinator(DescribeGroupsRequest([self._group]))
            code, _, state, _, _, found, *_ = response.groups[0]
            self.check(code)
            # Else they say nothing of themselves.
            return {_transactional_id(metadata) for _, _, _, metadata, _ in found} if state == _STABLE else {None}

        # In this order: what is open of a worker that begins meanwhile isn't listed, or the worker is a member.
        opened = set[str]().union(*await asyncio.gather(*map(listed, self._nodes())))
        self._open = opened, await self._answered(f"the members of group {self._group}", members)

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Return the partition's start and its high watermark (not the last stable offset), from its leader."""
        start = await self._offset(partition, _EARLIEST)
        return LogBounds(start, await self._offset(partition, _LATEST))

    async def last_stable(self, partition: TopicPartition) -> int:
        """Return the offset of the partition's oldest open transaction, or its end, from its leader."""
        return await self._offset(partition, _LATEST, _READ_COMMITTED)

    async def offset_at(self, partition: TopicPartition, at_ms: int) -> int | None:
        """Return the offset of the first record at this time, Unix milliseconds, or after it; None if there is none."""
        found = await self._offset(partition, at_ms)
        return None if found < 0 else found

    async def cluster_id(self) -> str:
        """Return the cluster's id, "" where its brokers have none."""

        async def ask() -> str:
            response = await self._client.send(self._any_node(), TopicIdsRequest([]))
            return response.cluster_id or ""

        return await self._answered("the cluster's id", ask)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        wanted = sorted(set(names))
        if not wanted:
            return {}

        return await self._answered(f"topics {', '.join(wanted)}", lambda: self._described(wanted))

    async def granted(self, names: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """Return this user's operations on topics, as bits by Kafka's codes, and whether the topics exist.

        A topic that the user may not describe has no bits, and may exist. A broker without an answer grants all.
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
        await self._read_identities()
        for name in sorted(wanted & self._refused.keys()):
            raise self._unavailable(f"topic {name}", self._refused[name]) from self._refused[name]
        return {name: self._identities[name] for name in wanted if name in self._identities}

    async def _describe_named(self) -> None:
        found, self._refused = await self._answered("the topics' ids", lambda: self._describe(self._named))
        self._identities = {name: _identity(info) for name, info in found.items()}

    async def look(
        self, commits: Collection[TopicPartition], ends: Collection[TopicPartition], topics: Collection[str]
    ) -> LookAnswer:
        try:
            committed = await self._commits(commits, require_stable=False) if commits else {}
            logs, infos = await asyncio.gather(self._ends(ends), self._described(topics))
        except (KafkaError, OSError, TimeoutError) as error:
            if getattr(error, "invalid_metadata", False) or not isinstance(error, KafkaError):
                await self._client.force_metadata_update()
            raise self._unavailable("a look at the inputs", error) from error
        return LookAnswer(committed, logs, {name: _identity(info) for name, info in infos.items()})

    async def _commits(
        self, wanted: Collection[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, Committed]:
        response = await self.ask_coordinator(OffsetsRequest(self._group, wanted, require_stable=require_stable))
        self.check(response.error_code)
        found, answered = {}, set()
        for topic, partitions, _ in response.topics:
            for partition, offset, _, metadata, code, _ in partitions:
                source = TopicPartition(topic, partition)
                if code == UNSTABLE_OFFSET_COMMIT:
                    raise UnstableOffsetError(f"{source}: an open transaction may change the committed offset")
                self.check(code, topic)
                answered.add(source)
                if offset != -1:
                    found[source] = Committed(offset, metadata or "")
        if missing := set(wanted) - answered:
            raise UnknownTopicOrPartitionError(f"{min(missing)} is missing from the answer")
        return found

    async def _ends(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in wanted:
            by_leader[await self._leader_of(partition)].append(partition)
        responses = await asyncio.gather(*(self._client.send(node, EndsRequest(of)) for node, of in by_leader.items()))
        found = {}
        for response in responses:
            for topic, partitions in response.topics:
                for number, code, _, offset, epoch in partitions:
                    if for_code(code) is not NoError:
                        raise await self._stale(f"{topic}[{number}]: {for_code(code).__name__}")
                    found[TopicPartition(topic, number)] = offset, epoch
        if missing := set(wanted) - found.keys():
            raise UnknownTopicOrPartitionError(f"{min(missing)} is missing from the answer")
        return found

    async def _leader_of(self, partition: TopicPartition) -> int:
        await self._client.partitions_of(partition.topic)
        leader = self._client.cluster.leader_for_partition(partition)
        if leader is None or leader == -1:
            raise await self._stale(f"{partition} has no leader")
        return int(leader)

    async def _described(self, names: Collection[str]) -> dict[str, TopicInfo]:
        infos, refused = await self._describe(names) if names else ({}, {})
        for error in refused.values():
            raise error
        return infos

    async def require_agreement(self, names: Iterable[str]) -> None:
        """Raise unless the brokers that answer soon have the same topics, of as many partitions, under these names.

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

        answers = await asyncio.gather(*map(ask, self._nodes()))
        for name in sorted(wanted):
            for _, refused in answers:
                if isinstance(refused.get(name), UNAUTHORIZED):
                    raise self._unavailable(f"topic {name}", refused[name]) from refused[name]
            said = {_shown(found.get(name)) for found, refused in answers if name not in refused} - {""}
            if len(said) > 1:
                raise BrokerUnavailableError(
                    f"topic {name}: the brokers don't agree which topic of how many partitions it is, they say "
                    f"{' and '.join(sorted(said))}: one of them is behind"
                )

    def _nodes(self) -> list[int]:
        return [broker.nodeId for broker in self._client.cluster.brokers()]

    async def _offset(self, partition: TopicPartition, timestamp: int, isolation: int = _READ_UNCOMMITTED) -> int:
        async def ask() -> int:
            leader = await self._leader_of(partition)
            request = OffsetRequest(-1, isolation, [(partition.topic, [(partition.partition, timestamp)])])
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


def _transactional_id(metadata: bytes) -> str | None:
    """Return the transactional id that a member commits with, None if it doesn't say."""
    try:
        data = ConsumerProtocolMemberMetadata.decode(metadata).user_data
    except (ValueError, TypeError):
        return None
    return decode_member_data("", data).transactional_id


def _identity(info: TopicInfo) -> TopicIdentity:
    return TopicIdentity("" if info.topic_id == NO_TOPIC_ID else str(info.topic_id), info.partitions)


def _shown(topic: TopicInfo | None) -> str:
    """Return a topic's id and partitions, "" if the broker has no ids. Replicas change while partitions move."""
    if topic is None:
        return "none"
    return "" if topic.topic_id == NO_TOPIC_ID else f"{topic.topic_id} of {topic.partitions}"
