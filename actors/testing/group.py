"""A consumer group's coordinator with the eager protocol: join, sync, heartbeat, leave, committed offsets."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from actors.ports import Committed, TopicPartition
from actors.testing.errors import (
    CoordinatorMovedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberError,
)


class GroupState(enum.Enum):
    """Where a group is."""

    EMPTY = "empty"
    PREPARING = "members have to join"
    COMPLETING = "the leader assigns"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join. `members` has what each member said of itself, for the leader only."""

    member_id: str
    generation: int
    is_leader: bool
    members: Mapping[str, Any]


@dataclass(slots=True)
class _Member:
    member_id: str
    info: Any
    session_s: float
    deadline_s: float
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[list[TopicPartition]] | None = None
    assigned: list[TopicPartition] = field(default_factory=list)


class Group:
    """One group. Its methods are requests: they act at once, and give a result or a future of it, or raise.

    Attributes:
        generation: goes up with every rebalance.
        is_moving: refuses everything while it is true, as a coordinator does that loads its state.
        offsets: the committed offsets, pending ones not.
    """

    def __init__(self, name: str, *, rebalance_s: float) -> None:
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.is_moving = False
        self.offsets: dict[TopicPartition, Committed] = {}
        self._rebalance_s = rebalance_s
        self._members: dict[str, _Member] = {}
        self._leader = ""
        self._ids = 0
        self._rebalances = 0
        self._context = Context()

    @property
    def members(self) -> list[str]:
        """The member ids, in the order in which they joined."""
        return list(self._members)

    def join(self, member_id: str, client: str, info: Any, session_s: float) -> asyncio.Future[Joined]:
        """Join, with an empty id the first time; answered when every member has joined or run out of time."""
        self._check_available()
        member = self._members.get(member_id)
        if member is None:
            if member_id:
                raise UnknownMemberError(member_id)
            self._ids += 1
            member_id = f"{client}-{self._ids}"
            member = self._members[member_id] = _Member(member_id, info, session_s, 0.0)
            self._call_at(self._touch(member), self._expire, member)
        member.info = info
        self._touch(member)
        joining: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        if member.joining is not None and not member.joining.done():
            member.joining.set_exception(RebalanceInProgressError("joined again"))
        member.joining = joining
        if self.state is not GroupState.PREPARING:
            self.rebalance()
        self._complete_join_if_all()
        return joining

    def sync(
        self, member_id: str, generation: int, assignment: Mapping[str, list[TopicPartition]] | None
    ) -> asyncio.Future[list[TopicPartition]]:
        """Give this member's partitions, when the leader has assigned them with its own sync."""
        member = self._checked(member_id, generation)
        self._touch(member)
        if self.state is GroupState.PREPARING:
            raise RebalanceInProgressError(self.name)
        syncing: asyncio.Future[list[TopicPartition]] = asyncio.get_running_loop().create_future()
        if self.state is GroupState.STABLE:
            syncing.set_result(member.assigned)
            return syncing
        member.syncing = syncing
        if assignment is not None and member_id == self._leader:
            self._assign(assignment)
        return syncing

    def heartbeat(self, member_id: str, generation: int) -> None:
        """Keep the session alive; raises when the member has to join, or isn't one any more."""
        member = self._checked(member_id, generation)
        self._touch(member)
        if self.state is GroupState.PREPARING:
            raise RebalanceInProgressError(self.name)

    def leave(self, member_id: str) -> None:
        """Leave at once."""
        self._check_available()
        if member_id in self._members:
            self._remove(self._members[member_id])

    def committed(self, source: TopicPartition) -> Committed | None:
        """Give the committed offset; one of a transaction without its marker is not."""
        self._check_available()
        return self.offsets.get(source)

    def rebalance(self) -> None:
        """Have all members join again."""
        if not self._members:
            self.state = GroupState.EMPTY
            return
        self.state = GroupState.PREPARING
        for member in self._members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(RebalanceInProgressError(self.name))
            member.syncing = None
        self._rebalances += 1
        now_s = asyncio.get_running_loop().time()
        self._call_at(now_s + self._rebalance_s, self._complete_join_late, self._rebalances)

    def _assign(self, assignment: Mapping[str, list[TopicPartition]]) -> None:
        self.state = GroupState.STABLE
        for member in self._members.values():
            member.assigned = list(assignment.get(member.member_id, ()))
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(member.assigned)
            member.syncing = None

    def _complete_join_late(self, rebalance: int) -> None:
        if rebalance != self._rebalances or self.state is not GroupState.PREPARING:
            return
        for member in [member for member in self._members.values() if member.joining is None]:
            del self._members[member.member_id]
        self._complete_join_if_all()
        if not self._members:
            self.state = GroupState.EMPTY

    def _complete_join_if_all(self) -> None:
        if not self._members or any(member.joining is None for member in self._members.values()):
            return
        self.generation += 1
        self.state = GroupState.COMPLETING
        if self._leader not in self._members:
            self._leader = next(iter(self._members))
        infos = {member.member_id: member.info for member in self._members.values()}
        for member in self._members.values():
            self._touch(member)
            is_leader = member.member_id == self._leader
            answer = Joined(member.member_id, self.generation, is_leader, infos if is_leader else {})
            joining, member.joining = member.joining, None
            if joining is not None and not joining.done():
                joining.set_result(answer)

    def _checked(self, member_id: str, generation: int) -> _Member:
        self._check_available()
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberError(member_id)
        if generation != self.generation:
            raise IllegalGenerationError(f"{generation}, the group is in {self.generation}")
        return member

    def _check_available(self) -> None:
        if self.is_moving:
            raise CoordinatorMovedError(f"the coordinator of {self.name} is loading")

    def _touch(self, member: _Member) -> float:
        member.deadline_s = asyncio.get_running_loop().time() + member.session_s
        return member.deadline_s

    def _expire(self, member: _Member) -> None:
        """Remove a member that was silent for a session. One that waits for its join to be answered isn't."""
        if self._members.get(member.member_id) is not member:
            return
        now_s = asyncio.get_running_loop().time()
        if self.is_moving or member.joining is not None:
            self._touch(member)
        if member.deadline_s > now_s:
            self._call_at(member.deadline_s, self._expire, member)
            return
        self._remove(member)

    def _remove(self, member: _Member) -> None:
        del self._members[member.member_id]
        for waiting in (member.joining, member.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(UnknownMemberError(member.member_id))
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all()
            if not self._members:
                self.state = GroupState.EMPTY
        else:
            self.rebalance()

    def _call_at(self, when_s: float, function: Any, *args: Any) -> None:
        asyncio.get_running_loop().call_at(when_s, function, *args, context=self._context)
