"""The state that the lock service keeps of a name."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.coordination import locks, registry
from actors.coordination import messages as m
from actors.coordination.locks import Lock
from actors.coordination.registry import Barrier, Group, Node
from actors.runtime.message.tools import AnswerLater

MAX_STATE_BYTES = 900_000
"""The largest state of a resource; requests that would exceed it are refused."""
FEW = 100
"""So many who hold, wait or watch, and show no data, can't fill a record."""
_SMALL_BYTES = 1_000


class Watcher(msgspec.Struct):
    """One who waits for a change, at the latest until `deadline_ms`."""

    id: str
    deadline_ms: int


class Resource(msgspec.Struct):
    """All that is kept under one name.

    Attributes:
        clock_ms: the latest time that a request was handled at: time doesn't go back with another owner.
        version: of the `View`.
        timer_ms: what the timer is set to, 0 if it isn't set.
        later: by the id of who waits, how to answer.

    One that is as new in all but its clock is nothing: it isn't kept.
    """

    clock_ms: int = 0
    version: int = 0
    timer_ms: int = 0
    lock: Lock = msgspec.field(default_factory=Lock)
    node: Node = msgspec.field(default_factory=Node)
    group: Group = msgspec.field(default_factory=Group)
    barrier: Barrier = msgspec.field(default_factory=Barrier)
    watchers: list[Watcher] = []
    later: dict[str, AnswerLater] = {}

    def view(self) -> m.View:
        """Return the view of the resource for clients."""
        return m.View(
            version=self.version,
            holders=self.lock.holders,
            waiting=len(self.lock.waiters),
            last_token=self.lock.last_token,
            data=self.node.data,
            data_version=self.node.version,
            members=self.group.members,
        )

    def shows(self) -> tuple[Any, ...]:
        """Return the parts whose changes watchers get: a renewal of a lease or membership isn't one."""
        holders = tuple((holder.owner, holder.token, holder.data) for holder in self.lock.holders)
        members = tuple((member.name, member.data) for member in self.group.members)
        return holders, self.node.version, members

    def is_nothing(self) -> bool:
        """Return whether nothing has to be stored."""
        return msgspec.structs.replace(self, clock_ms=0, timer_ms=0) == Resource()

    def is_crowded(self, more_bytes: int) -> bool:
        """Return whether so much more may not fit."""
        entries = len(self.lock.holders) + 2 * len(self.later) + len(self.group.members)
        if entries < FEW and more_bytes < _SMALL_BYTES and self.node.data is None:
            return False
        return len(m.encode(self)) + more_bytes > MAX_STATE_BYTES

    def due_ms(self) -> int | None:
        """Return when something is over next."""
        ends = [locks.due_ms(self.lock), registry.due_ms(self.node, self.group, self.barrier)]
        ends += [watcher.deadline_ms for watcher in self.watchers]
        return min((end for end in ends if end is not None), default=None)
