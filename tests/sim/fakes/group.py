"""A consumer group's coordinator with the eager protocol: join, sync, heartbeat, leave; see `GroupOffsets` for offsets.

Static members (KIP-345) come back under a new member id with what they had, and nobody else hears of it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from actors.ports import Committed, TopicPartition
from actors.testing.fakes.cluster import GroupOffsets
from actors.testing.fakes.errors import (
    IllegalGenerationError,
    RebalanceInProgressError,
    RefusedError,
    UnknownMemberError,
)


class CoordinatorMovedError(RefusedError):
    """The coordinator is elsewhere, or is loading its state."""

    is_retriable = True


class FencedInstanceError(RefusedError):
    """Another process joined with the same static identity."""


class GroupNotEmptyError(RefusedError):
    """The group has members: its offsets aren't an operator's to delete."""


class LostMembershipError(Exception):
    """The group doesn't know a worker's static identity any more: the worker has to end."""


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
    client: str
    instance_id: str | None
    info: Any
    session_s: float
    deadline_s: float
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[list[TopicPartition]] | None = None
    assigned: list[TopicPartition] = field(default_factory=list)


class Group(GroupOffsets):
    """One group. Its methods are requests: they act at once, and give a result or a future of it, or raise.

    Attributes:
        generation: goes up with every rebalance.
        is_moving: refuses everything while it is true, as a coordinator does that loads its state.
        on_change: called with ("joins", "returns", "leaves" or "expires", the client) of each member.
    """

    def __init__(self, name: str, *, rebalance_s: float, appended: Callable[[], int]) -> None:
        super().__init__(name)
        self._next_append = appended
        self.state = GroupState.EMPTY
        self.generation = 0
        self.is_moving = False
        self.on_change: list[Callable[[str, str], None]] = []
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

    def join(
        self, member_id: str, client: str, info: Any, session_s: float, instance_id: str | None = None
    ) -> asyncio.Future[Joined]:
        """Join, with an empty id the first time; answered when every member has joined or run out of time.

        A static member that comes back into a stable group is answered at once, in the generation that is.
        """
        self._check_available()
        member = self._members.get(member_id)
        static = self._static(instance_id)
        if static is not None and member_id not in ("", static.member_id):
            raise FencedInstanceError(f"{instance_id} is {static.member_id} now")
        is_back = static is not None and not member_id
        if member is None:
            if member_id:
                raise UnknownMemberError(member_id)
            member = self._add(client, info, session_s, instance_id, static)
        member.info = info
        self._touch(member)
        joining: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        if is_back and self.state is GroupState.STABLE:
            joining.set_result(Joined(member.member_id, self.generation, is_leader=False, members={}))
            return joining
        if member.joining is not None and not member.joining.done():
            member.joining.set_exception(RebalanceInProgressError("joined again"))
        member.joining = joining
        if self.state is not GroupState.PREPARING:
            self.rebalance()
        self._complete_join_if_all()
        return joining

    def _static(self, instance_id: str | None) -> _Member | None:
        if instance_id is None:
            return None
        return next((member for member in self._members.values() if member.instance_id == instance_id), None)

    def _add(
        self, client: str, info: Any, session_s: float, instance_id: str | None, replaced: _Member | None
    ) -> _Member:
        """Make a member, in the place of `replaced` if that was its earlier life."""
        self._ids += 1
        member = _Member(f"{client}-{self._ids}", client, instance_id, info, session_s, 0.0)
        if replaced is not None:
            del self._members[replaced.member_id]
            member.assigned = replaced.assigned
            if self._leader == replaced.member_id:
                self._leader = member.member_id
            for waiting in (replaced.joining, replaced.syncing):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(FencedInstanceError(f"{instance_id} is {member.member_id} now"))
        self._members[member.member_id] = member
        self._call_at(self._touch(member), self._expire, member)
        self._changed("joins" if replaced is None else "returns", client)
        return member

    def sync(
        self, member_id: str, generation: int, assignment: Mapping[str, list[TopicPartition]] | None
    ) -> asyncio.Future[list[TopicPartition]]:
        """Return this member's partitions, when the leader has assigned them with its own sync."""
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
            self._changed("leaves", self._members[member_id].client)
            self._remove(self._members[member_id])

    def check_member(self, member_id: str, generation: int) -> None:
        """Refuse who isn't a member in the current generation; during a rebalance that is still the last one's."""
        if member_id or generation >= 0:
            self._checked(member_id, generation)

    def knows(self, member_id: str) -> bool:
        """Tell whether this is a member, in whatever generation."""
        self._check_available()
        return member_id in self._members

    def transactional_ids(self) -> set[str | None]:
        """Return those of the members; None is in it for one that doesn't say so, or while the group rebalances."""
        self._check_available()
        if self.state is not GroupState.STABLE:
            return {None}
        return {member.info.transactional_id for member in self._members.values()}

    def committed(self, source: TopicPartition) -> Committed | None:
        """Return the committed offset; one of a transaction without its marker is not."""
        self._check_available()
        return super().committed(source)

    def set_offset(self, source: TopicPartition, offset: int) -> None:
        """Commit an offset as an operator's tool does.

        Raises:
            UnknownMemberError: the group has members.
        """
        self._check_available()
        if self.state is not GroupState.EMPTY:
            raise UnknownMemberError("an operator is no member")
        self._write(source, Committed(offset, ""))

    def delete_offset(self, source: TopicPartition) -> None:
        """Delete a committed offset, pending ones included, as an operator's tool does.

        Raises:
            GroupNotEmptyError: the group has members.
        """
        self._check_available()
        if self.state is not GroupState.EMPTY:
            raise GroupNotEmptyError(self.name)
        self._write(source, None)

    def _write(self, source: TopicPartition, committed: Committed | None) -> None:
        self._appended[source] = self._next_append()
        if committed is None:
            self.offsets.pop(source, None)
        else:
            self.offsets[source] = committed

    def _changed(self, what: str, client: str) -> None:
        for observe in self.on_change:
            observe(what, client)

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
            member.assigned = assignment.get(member.member_id, [])
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(member.assigned)
            member.syncing = None

    def _complete_join_late(self, rebalance: int) -> None:
        if rebalance != self._rebalances or self.state is not GroupState.PREPARING:
            return
        missing = [member for member in self._members.values() if member.joining is None]
        for member in missing:
            if member.instance_id is None:
                del self._members[member.member_id]
        joined = [member for member in self._members.values() if member.joining is not None]
        if joined:
            self._complete_join(joined)
        elif self._members:
            now_s = asyncio.get_running_loop().time()
            self._call_at(now_s + self._rebalance_s, self._complete_join_late, rebalance)
        else:
            self.state = GroupState.EMPTY

    def _complete_join_if_all(self) -> None:
        if not self._members or any(member.joining is None for member in self._members.values()):
            return
        self._complete_join(list(self._members.values()))

    def _complete_join(self, joined: list[_Member]) -> None:
        """Begin the next generation. A static member that didn't join yet keeps its place, but doesn't lead."""
        self.generation += 1
        self.state = GroupState.COMPLETING
        if self._leader not in [member.member_id for member in joined]:
            self._leader = joined[0].member_id
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
        self._changed("expires", member.client)
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
