"""Carries our assignment (`actors._core.group.members`) through the group protocol.

Each member's user data has what it owned, in which generation, whether it still has that, what its disk holds and how
far that lags. The leader sends each member its partitions and, as user data, what it has to hand over and the copies
that it shall keep. It sends no table of all owners: with
one, the group's own record, which Kafka keeps in one message, would grow with members times tasks. The leader registry
has the owners. Members of a rolling upgrade may subscribe to different topics: a topic's tasks go to its subscribers.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from actors._core.group.members import Declared, Member, TaskId, decode_member_data, encode_member_data, words_of
from actors._core.group.placement import Copies, PlacementRules, decode_copies, encode_copies, place
from actors._core.group.programs import Admission, admit, words_of_refusal
from actors._core.logs import escaping
from actors.ports import TopicPartition

logger = escaping(logging.getLogger(__name__))

PROTOCOL_VERSION = 0
MAX_SAID = 500
"""How much of the leader's texts is logged."""
MAX_TOPICS = 10_000
"""The most topics of a member: the leader asks the brokers for each of them."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class ActorAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Made once per worker.

    `on_disk` gives the changelog positions that the worker's disk holds, by task; `lags` what these lack, where it is
    known, None for a member that can't follow changelogs; `actors` the actor of each topic; `declared` what the leader
    compares with other programs; `rules` are what it goes by as the leader; `generation` gives the group's generation
    as the member knows it, and `joins` is called before it joins; both are set by the consumer. `leaving` gives the
    input partitions that are being handed over.

    Attributes:
        copies: what the leader told this member beside its partitions.
        kept: whether this member keeps its tasks while it joins.
        unheard: the tasks that the process before this one had, given to it though its disk has nothing of them, by a
            leader that doesn't know that yet.
        was_refused: whether the process before this one got nothing of a topic, for what its program was.
        contested: the topics of which this member got nothing at some time, because another program had them.
    """

    name = "faust-actors"

    def __init__(
        self,
        *,
        instance_id: str,
        address: str,
        actors: Mapping[str, str],
        on_disk: Callable[[], Mapping[TaskId, int]],
        lags: Callable[[], Mapping[TaskId, int]] | None = None,
        declared: Sequence[Declared] | None = None,
        rules: PlacementRules | None = None,
        leaving: Callable[[], Iterable[TopicPartition]] = tuple,
        transactional_id: str | None = None,
    ) -> None:
        self._instance_id = instance_id
        self._address = address
        # A static member that comes back gets its former assignment without the leader; `seen` in it names the process.
        self._process = secrets.randbelow(2**31 - 1) + 1 if instance_id else 0
        self._is_new = True
        self._actors = actors
        self._on_disk = on_disk
        self._lags = lags
        self._declared = None if declared is None else tuple(declared)
        self._rules = rules or PlacementRules()
        self._leaving = leaving
        self._transactional_id = transactional_id
        self.copies = Copies()
        self.kept = False
        self.unheard: frozenset[TaskId] = frozenset()
        self.was_refused = False
        self.contested: frozenset[str] = frozenset()
        self.generation: Callable[[], int] = lambda: -1
        self.joins: Callable[[], None] = lambda: None
        self._strangers: frozenset[str] = frozenset()
        self._owned: frozenset[TaskId] = frozenset()
        self._owned_generation = -1

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return this member's metadata for the leader; aiokafka calls this before it joins."""
        self.joins()
        leaving = {TaskId(self._actors.get(topic, topic), partition) for topic, partition in self._leaving()}
        member = Member(
            member_id="",
            instance_id=self._instance_id,
            address=self._address,
            generation=self._owned_generation,
            owned=self._owned | leaving,
            on_disk=self._on_disk(),
            lags={} if self._lags is None else self._lags(),
            follows=self._lags is not None,
            process=self._process,
            declared=self._declared,
            kept=self.kept,
            transactional_id=self._transactional_id,
        )
        return ConsumerProtocolMemberMetadata(PROTOCOL_VERSION, sorted(topics), encode_member_data(member))

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assign all partitions; runs on the group's leader."""
        decoded = {member_id: decode_member_data(member_id, data.user_data) for member_id, data in members.items()}
        known = {member_id: data for member_id, data in members.items() if decoded[member_id].is_known}
        admission = admit([decoded[member_id] for member_id in known])
        self._name_strangers(decoded.values(), admission)
        names = {**self._actors, **admission.actors}
        owners: dict[tuple[str, int], Member] = {}
        copies: dict[str, list[Copies]] = defaultdict(list)
        admitted = {
            member_id: admission.topics_of(decoded[member_id], data.subscription) for member_id, data in known.items()
        }
        for topics, subscribers in _by_subscribers(admitted).items():
            # An actor that only members of another version have is called like its topic.
            inputs: dict[str, list[str]] = defaultdict(list)
            for topic in topics:
                inputs[names.get(topic, topic)].append(topic)
            # Of several inputs the partitions that all of them have: members are started with as many of each.
            found = {topic: set(cluster.partitions_for_topic(topic) or ()) for topic in topics}
            tasks = [
                TaskId(actor, partition)
                for actor, of_actor in inputs.items()
                for partition in sorted(set.intersection(*(found[topic] for topic in of_actor)))
            ]
            placement = place([decoded[member_id] for member_id in subscribers], tasks, self._rules)
            for member_id, owned in placement.owners.items():
                member = decoded[member_id]
                owners.update({(topic, task.partition): member for task in owned for topic in inputs[task.actor]})
                copies[member_id].append(placement.copies[member_id])
        may_keep = all(decoded[member_id].kept is not None for member_id in known)
        is_moving = any(part.handed_over for parts in copies.values() for part in parts)
        said = {
            member_id: replace(
                _together(copies.get(member_id, ())),
                acceptable_lag=self._rules.acceptable_lag,
                seen=member.process,
                refused=admission.refused.get(member_id, {}),
                may_keep=may_keep,
                is_moving=is_moving,
            )
            for member_id, member in decoded.items()
        }
        return _encode(members, owners, said)

    @property
    def handed_over(self) -> frozenset[TopicPartition]:
        """The input partitions that this member has to give up before another gets them."""
        return frozenset(
            TopicPartition(topic, task.partition)
            for task in self.copies.handed_over
            for topic, actor in self._actors.items()
            if actor == task.actor
        )

    def _name_strangers(self, members: Iterable[Member], admission: Admission) -> None:
        """Log members that can't be understood or run another program, once while they are in the group."""
        found = {member.member_id: words_of(member) for member in members if member.trouble}
        for member_id, refused in admission.refused.items():
            found[member_id] = words_of_refusal(member_id, refused)
        for member_id in sorted(found.keys() - self._strangers):
            logger.warning("%s", found[member_id])
        self._strangers = frozenset(found)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Keep what this member owns now, for the next rebalance, and its copies."""
        self._owned = frozenset(
            TaskId(self._actors.get(topic, topic), partition) for topic, partition in assignment.partitions()
        )
        self._owned_generation = self.generation()
        before, self.copies = self.copies, decode_copies(assignment.user_data)
        is_of_former = self._is_new and self.copies.seen not in (0, self._process)
        self.was_refused = is_of_former and bool(self.copies.refused)
        if not is_of_former:
            self.contested |= self.copies.refused.keys()
        for topic, why in sorted(self.copies.refused.items()):
            if before.refused.get(topic) != why and not is_of_former:
                logger.error(
                    "this worker gets no partitions of topic %s: other workers of the group run another program under "
                    "this app's id: %s. If the two belong to different apps, stop this worker and give its program an "
                    "id of its own; if this one replaces the other, stop the other's workers",
                    topic[:MAX_SAID],
                    why[:MAX_SAID],
                )
        self.unheard = frozenset()
        if is_of_former:
            held = self._on_disk()
            self.unheard = frozenset(task for task in self._owned if task not in held)
        self._is_new = False


def readable(metadata: bytes) -> bytes:
    """Return a member's metadata, or empty metadata if aiokafka or the assignment couldn't use it.

    aiokafka decodes the metadata of all members before it calls the assignor; an error there would end the leader, and
    then the next one. Metadata that can't be decoded, or has topic names that Kafka doesn't allow, becomes that of a
    member without topics, to which `assign` gives nothing.
    """
    try:
        topics = ConsumerProtocolMemberMetadata.decode(metadata).subscription
    except (ValueError, TypeError):
        topics = None
    if topics is not None and len(topics) <= MAX_TOPICS and all(topic and _TOPIC.fullmatch(topic) for topic in topics):
        return metadata
    return bytes(ConsumerProtocolMemberMetadata(PROTOCOL_VERSION, [], b"").encode())


def readable_assignment(assignment: bytes, topics: Collection[str]) -> bytes:
    """Return the leader's assignment, or an empty one if no leader of this app would assign it.

    The leader may be another program: then this member waits without partitions for another leader.
    """
    try:
        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
        given = decoded.partitions()
    except (ValueError, TypeError):
        trouble = "its message isn't an assignment"
    else:
        # New partitions of its topics may not be known here yet.
        if all(topic in topics and partition >= 0 for topic, partition in given) and len(set(given)) == len(given):
            return assignment
        trouble = "it assigned partitions twice, or of topics that this worker didn't subscribe to"
    logger.error(
        "the leader of the group is another program: %s. This worker has no partitions now: find out what joined",
        trouble,
    )
    return bytes(ConsumerProtocolMemberAssignment(PROTOCOL_VERSION, [], b"").encode())


def _encode(
    members: Iterable[str], owners: Mapping[tuple[str, int], Member], copies: Mapping[str, Copies]
) -> dict[str, ConsumerProtocolMemberAssignment]:
    """Return the assignments; `owners` are those of the partitions of topics."""
    partitions: dict[str, dict[str, list[int]]] = {member_id: defaultdict(list) for member_id in members}
    for (topic, partition), member in sorted(owners.items(), key=lambda pair: pair[0]):
        partitions[member.member_id][topic].append(partition)
    return {
        member_id: ConsumerProtocolMemberAssignment(
            PROTOCOL_VERSION, list(found.items()), encode_copies(copies[member_id])
        )
        for member_id, found in partitions.items()
    }


def _together(parts: Iterable[Copies]) -> Copies:
    parts = list(parts)
    return Copies(
        frozenset().union(*(part.standbys for part in parts)),
        frozenset().union(*(part.warm_ups for part in parts)),
        handed_over=frozenset().union(*(part.handed_over for part in parts)),
    )


def _by_subscribers(topics_of: Mapping[str, Iterable[str]]) -> dict[tuple[str, ...], list[str]]:
    """Group topics that have the same subscribers: {topics: member ids}."""
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member_id in sorted(topics_of):
        # A member that is listed twice would get two shares, and lose one.
        for topic in sorted(set(topics_of[member_id])):
            subscribers[topic].append(member_id)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic, member_ids in sorted(subscribers.items()):
        groups[tuple(member_ids)].append(topic)
    return {tuple(topics): list(member_ids) for member_ids, topics in groups.items()}
