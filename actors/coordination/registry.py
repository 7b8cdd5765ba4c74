"""The shared state of a resource beside its lock: a configuration node, the members of a group, a barrier.

As in `actors.coordination.locks`, each function takes the state, a request and the time, and returns the new
state. A claim names what one request led to: an ephemeral node, a membership, a party. "" as a claim is anybody's.
"""

from __future__ import annotations

import msgspec

MAX_MEMBERS = 1_000
"""Of a group: the state is written again with each sign of life."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A value with a version that grows with each change, deletions included; `data` None: it isn't there.

    An ephemeral node has a `session`, without whose sign of life it is deleted at `expires_ms`.
    """

    version: int = 0
    data: str | None = None
    session: str = ""
    expires_ms: int | None = None
    claim: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, until `expires_ms`; `joined` numbers members in the order in which they came."""

    name: str
    data: str
    joined: int
    expires_ms: int
    claim: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The members in the order in which they joined."""

    members: tuple[Member, ...] = ()
    last_joined: int = 0


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """One who waits at a barrier, at the latest until `deadline_ms`."""

    id: str
    name: str
    deadline_ms: int
    claim: str = ""


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """Those who wait until there are `parties` of them; `generation` counts how often it has opened."""

    parties: int = 0
    waiting: tuple[Party, ...] = ()
    generation: int = 0


def put(
    node: Node, data: str | None, expected: int | None, session: str, expires_ms: int | None, claim: str = ""
) -> Node | None:
    """Write a node, or delete it with data None, if its version is as `expected`: 0 for one that isn't there.

    Returns:
        The node as it is then; None if it is another version. With `expected` None any version will do.
    """
    if expected is not None and expected != (0 if node.data is None else node.version):
        return None
    if data is None:
        return Node(version=node.version + 1)
    return Node(version=node.version + 1, data=data, session=session, expires_ms=expires_ms, claim=claim)


def keep(node: Node, session: str, expires_ms: int) -> Node | None:
    """Move the end of an ephemeral node; None if it is missing or is another session's."""
    if not is_own(node, session) or node.expires_ms is None:
        return None
    return msgspec.structs.replace(node, expires_ms=max(node.expires_ms, expires_ms))


def is_own(node: Node, session: str, claim: str = "") -> bool:
    """Return whether the node exists, and is of that session and claim."""
    return node.data is not None and node.session == session and claim in ("", node.claim)


def join(group: Group, name: str, data: str, expires_ms: int, claim: str = "") -> Group | None:
    """Add a member, or change what it shows: it keeps its place. It is the later claim's then.

    None if there are `MAX_MEMBERS` others already.
    """
    held = next((member for member in group.members if member.name == name), None)
    if held is not None:
        ends_ms = max(held.expires_ms, expires_ms)
        now = msgspec.structs.replace(held, data=data, expires_ms=ends_ms, claim=claim)
        return msgspec.structs.replace(
            group, members=tuple(now if member is held else member for member in group.members)
        )
    if len(group.members) >= MAX_MEMBERS:
        return None
    number = group.last_joined + 1
    member = Member(name=name, data=data, joined=number, expires_ms=expires_ms, claim=claim)
    return Group(members=(*group.members, member), last_joined=number)


def beat(group: Group, name: str, expires_ms: int, claim: str = "") -> Group | None:
    """Move the end of a membership; None if there is no such member (any more), or it is another claim's."""
    held = next((one for one in group.members if one.name == name and claim in ("", one.claim)), None)
    return None if held is None else join(group, name, held.data, expires_ms, held.claim)


def leave(group: Group, name: str, claim: str = "") -> Group:
    """Remove a member, if it is of that claim."""
    still = tuple(one for one in group.members if one.name != name or claim not in ("", one.claim))
    return msgspec.structs.replace(group, members=still)


def withdraw(node: Node, group: Group, barrier: Barrier, claim: str) -> tuple[Node, Group, Barrier, tuple[Party, ...]]:
    """Withdraw all that a claim led to; return the parties that leave the barrier."""
    if node.claim == claim:
        node = Node(version=node.version + 1)
    group = msgspec.structs.replace(group, members=tuple(one for one in group.members if one.claim != claim))
    gone = tuple(party for party in barrier.waiting if party.claim == claim)
    return node, group, _without(barrier, gone), gone


def enter(barrier: Barrier, party: Party, parties: int) -> tuple[Barrier, tuple[Party, ...]] | None:
    """Add a party; when all are there, the barrier opens for the returned ones, and begins again.

    A party that enters again, under the same name, keeps its place. None if the waiting ones expect another number.
    """
    if barrier.waiting and barrier.parties != parties:
        return None
    waiting = (*(one for one in barrier.waiting if one.name != party.name), party)
    if len(waiting) < parties:
        return msgspec.structs.replace(barrier, parties=parties, waiting=waiting), ()
    return Barrier(generation=barrier.generation + 1), waiting


def overdue_node(node: Node, now_ms: int) -> Node:
    """Delete an ephemeral node whose session gave no sign of life."""
    if node.expires_ms is None or node.expires_ms > now_ms:
        return node
    return Node(version=node.version + 1)


def overdue_group(group: Group, now_ms: int) -> Group:
    """Remove members that gave no sign of life."""
    alive = tuple(member for member in group.members if member.expires_ms > now_ms)
    return group if len(alive) == len(group.members) else msgspec.structs.replace(group, members=alive)


def overdue_barrier(barrier: Barrier, now_ms: int) -> tuple[Barrier, tuple[Party, ...]]:
    """Remove the parties whose time at the barrier is over, and return them."""
    late = tuple(party for party in barrier.waiting if party.deadline_ms <= now_ms)
    return _without(barrier, late), late


def _without(barrier: Barrier, gone: tuple[Party, ...]) -> Barrier:
    """Remove parties; when none waits any more, the next ones may agree on another number."""
    still = tuple(party for party in barrier.waiting if party not in gone) if gone else barrier.waiting
    return Barrier(parties=barrier.parties if still else 0, waiting=still, generation=barrier.generation)


def due_ms(node: Node, group: Group, barrier: Barrier) -> int | None:
    """Return the end of the next of them, None if there is none."""
    ends = [member.expires_ms for member in group.members] + [party.deadline_ms for party in barrier.waiting]
    return min(ends if node.expires_ms is None else [*ends, node.expires_ms], default=None)
