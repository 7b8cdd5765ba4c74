"""Who owns which task: a pure function of what the members say about themselves.

The assignment is the cheapest of a flow from the tasks to the members:

    task ─────── owned before: 0; on disk: a move, and the missing log ───────┐
      └── pool of its actor ── not on disk: a move, and the whole log ── (actor, member) ── member ── sink

    (actor, member)   takes the actor's share (tasks of the actor / members) for nothing, one more dearly
    member            takes its share of all tasks for nothing, one more dearly

One more than its share costs more than all moves together, and a move more than all missing log, so the
cheapest flow is balanced first, overall and within each actor, then moves the fewest tasks, then restores the
least. Missing log costs its order of magnitude: with few different costs the search is short.

Everything is brought into one order before the search, tasks by name and members by identity, so that every
leader comes to the same result whatever the order in which the members joined. Who has to warm up before it gets a
task is decided on top of this, in `actors._core.group.placement`.

Source: successive shortest paths with potentials (Ahuja, Magnanti, Orlin, Network Flows, chapter 9).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from actors._core.origins import origin_of
from actors._core.outside import MALFORMED

MEMBER_DATA_VERSION = 1
UNKNOWN = -1
NO_GENERATION = -1
"""The generation of a member that was in no group before."""

_UNREACHED = 1 << 200


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One partition number of an actor's input topics."""

    actor: str
    partition: int


class Declared(msgspec.Struct, array_like=True, frozen=True, order=True):
    """An actor as a program declares it, as far as it matters who else owns partitions of it."""

    actor: str
    topic: str
    partitioner: str
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """What a member of the group says about itself.

    `member_id` is the group's name for this process, `instance_id` the worker's own that outlives a restart
    (may be empty), `address` where the worker answers queries. `owned` are its tasks in `generation`, the
    last one that it took part in. `on_disk` has the sum of the changelog positions of its stores, by task.
    `process` tells the processes of a static member apart, 0 for a dynamic one. `declared` are the actors of its
    program, None if it is of a release that doesn't say so. `trouble` says what of this couldn't be understood; a
    member of which nothing could be isn't `is_known`.
    """

    member_id: str
    instance_id: str = ""
    address: str = ""
    generation: int = NO_GENERATION
    owned: frozenset[TaskId] = frozenset()
    on_disk: Mapping[TaskId, int] = field(default_factory=dict)
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    follows: bool = False
    process: int = 0
    declared: tuple[Declared, ...] | None = None
    trouble: str = ""
    is_known: bool = True


def assign(members: Sequence[Member], tasks: Collection[TaskId]) -> dict[str, tuple[TaskId, ...]]:
    """Give each task to one member.

    The members' numbers of tasks differ by one at most, and so do their numbers of tasks of each actor. Among
    such assignments this is one that takes the fewest tasks from the members that owned them last; what has
    to move goes where the least is to be restored. With equal chances the smaller identity (instance id, or
    member id without one) goes first.

    Returns:
        Each member's tasks in order, by member id; empty without members.
    """
    ordered = sorted(members, key=identity_of)
    if not ordered:
        return {}
    problem = _Problem(ordered, sorted(set(tasks)))
    problem.flow.solve(problem.source, problem.sink)
    assigned: dict[str, list[TaskId]] = {member.member_id: [] for member in ordered}
    for task, index in problem.owners():
        assigned[ordered[index].member_id].append(task)
    return {member_id: tuple(sorted(theirs)) for member_id, theirs in assigned.items()}


def identity_of(member: Member) -> tuple[str, str]:
    """Give what members are ordered by."""
    return member.instance_id or member.member_id, member.member_id


def last_owners(members: Sequence[Member]) -> dict[TaskId, int]:
    """Give the index of each task's last owner: of two that claim it, the one of the newer generation.

    A member that missed a generation still claims what it had before.
    """
    claims: dict[TaskId, tuple[int, int, int]] = {}
    for index, member in enumerate(members):
        for task in member.owned:
            claim = (member.generation, member.on_disk.get(task, 0), -index)
            claims[task] = max(claims.get(task, claim), claim)
    return {task: -negated for task, (_, _, negated) in claims.items()}


def _copies(members: Sequence[Member], tasks: Iterable[TaskId]) -> dict[TaskId, list[tuple[int, int]]]:
    """Give (position, member index) of what is on disk of each task, the highest position first."""
    found: dict[TaskId, list[tuple[int, int]]] = {task: [] for task in tasks}
    for index, member in enumerate(members):
        for task, position in member.on_disk.items():
            if task in found:
                found[task].append((position, index))
    for copies in found.values():
        copies.sort(key=lambda copy: (-copy[0], copy[1]))
    return found


class _Problem:
    """The flow network of one assignment, and how to read its solution."""

    def __init__(self, members: Sequence[Member], tasks: Sequence[TaskId]) -> None:
        self.flow = _Flow()
        self.source = self.flow.add_node()
        self.sink = self.flow.add_node()
        self._members = range(len(members))
        self._tasks = tasks
        self._last = last_owners(members)
        self._disk = _copies(members, tasks)
        highest = max((copies[0][0] for copies in self._disk.values() if copies), default=0)
        dearest_restore = highest.bit_length() + 1
        self._move = (len(tasks) + 1) * dearest_restore
        self._uneven = (len(tasks) + 1) * (self._move + dearest_restore)
        self._member_nodes = [self.flow.add_node() for _ in self._members]
        for node in self._member_nodes:
            self._add_share(node, self.sink, len(tasks))
        self._direct: list[tuple[TaskId, int, int]] = []
        self._pools: list[tuple[list[tuple[TaskId, int]], list[tuple[int, int]]]] = []
        self._add_tasks()

    def _add_share(self, start: int, end: int, tasks: int) -> list[int]:
        """Add the edges by which one member takes its share of `tasks`."""
        share, rest = divmod(tasks, len(self._members))
        edges = []
        if share:
            edges.append(self.flow.add_edge(start, end, capacity=share, cost=0))
        if rest:
            edges.append(self.flow.add_edge(start, end, capacity=1, cost=self._uneven if share else 0))
        return edges

    def _add_tasks(self) -> None:
        by_actor: defaultdict[str, list[TaskId]] = defaultdict(list)
        for task in self._tasks:
            by_actor[task.actor].append(task)
        # Single tasks are even within their actor wherever they go: one pool serves them all, without shares.
        single = [theirs[0] for theirs in by_actor.values() if len(theirs) == 1]
        if single:
            self._add_single(single)
        dealt = len(single)
        for theirs in by_actor.values():
            if len(theirs) > 1:
                self._add_actor(theirs, first=dealt % len(self._members))
                dealt += len(theirs)

    def _add_single(self, tasks: Sequence[TaskId]) -> None:
        pool = self.flow.add_node()
        into_pool = [(task, self._add_task(task, pool, self._member_nodes)) for task in tasks]
        out_of_pool = [
            (index, self.flow.add_edge(pool, node, capacity=len(tasks), cost=0))
            for index, node in enumerate(self._member_nodes)
        ]
        self._pools.append((into_pool, out_of_pool))

    def _add_actor(self, tasks: Sequence[TaskId], first: int) -> None:
        """Add an actor's tasks; those without a history are dealt out from member `first` on.

        Dealing goes on where the actor before stopped: the search then finds a member with room at once.
        """
        pool = self.flow.add_node()
        out_of_pool: list[tuple[int, int]] = []
        # Only a member that had tasks of this actor has a second way in, and needs a node to count both.
        known = {self._last[task] for task in tasks if task in self._last}
        known.update(index for task in tasks for _, index in self._disk[task])
        shares: dict[int, int] = {}
        for index in (*self._members[first:], *self._members[:first]):
            member_node = self._member_nodes[index]
            if index in known:
                shares[index] = self.flow.add_node()
                self._add_share(shares[index], member_node, len(tasks))
                edges = [self.flow.add_edge(pool, shares[index], capacity=len(tasks), cost=0)]
            else:
                edges = self._add_share(pool, member_node, len(tasks))
            out_of_pool.extend((index, edge) for edge in edges)
        self._pools.append(([(task, self._add_task(task, pool, shares)) for task in tasks], out_of_pool))

    def _add_task(self, task: TaskId, pool: int, targets: Mapping[int, int] | Sequence[int]) -> int:
        """Add a task with its edges to members that had it, and give its edge to the pool."""
        node = self.flow.add_node()
        self.flow.add_edge(self.source, node, capacity=1, cost=0)
        last = self._last.get(task)
        if last is not None:
            self._add_direct(task, last, node, targets[last], 0)
        copies = self._disk[task]
        highest = copies[0][0] if copies else 0
        for position, index in copies:
            if index != last:
                missing = (highest - position).bit_length()
                self._add_direct(task, index, node, targets[index], self._move + missing)
        return self.flow.add_edge(node, pool, capacity=1, cost=self._move + highest.bit_length() + 1)

    def _add_direct(self, task: TaskId, index: int, node: int, target: int, cost: int) -> None:
        self._direct.append((task, index, self.flow.add_edge(node, target, capacity=1, cost=cost)))

    def owners(self) -> Iterable[tuple[TaskId, int]]:
        """Give each task with its member's index, once the flow is solved."""
        for task, index, edge in self._direct:
            if self.flow.flow_of(edge):
                yield task, index
        for into_pool, out_of_pool in self._pools:
            pooled = [task for task, edge in into_pool if self.flow.flow_of(edge)]
            takers = (index for index, edge in out_of_pool for _ in range(self.flow.flow_of(edge)))
            yield from zip(pooled, takers, strict=True)


class _Flow:
    """A maximal flow of least cost, where every edge out of the source has capacity 1.

    Edge `e` and its reverse `e ^ 1` are neighbours in the lists.
    """

    def __init__(self) -> None:
        self._edges_of: list[list[int]] = []
        self._target: list[int] = []
        self._capacity: list[int] = []
        self._cost: list[int] = []

    def add_node(self) -> int:
        self._edges_of.append([])
        return len(self._edges_of) - 1

    def add_edge(self, start: int, end: int, *, capacity: int, cost: int) -> int:
        edge = len(self._target)
        self._target += (end, start)
        self._capacity += (capacity, 0)
        self._cost += (cost, -cost)
        self._edges_of[start].append(edge)
        self._edges_of[end].append(edge + 1)
        return edge

    def flow_of(self, edge: int) -> int:
        return self._capacity[edge ^ 1]

    def solve(self, source: int, sink: int) -> None:
        potential = [0] * len(self._edges_of)
        reachable = True
        while reachable:
            self._push_along_cheapest(source, sink, potential)
            reachable = self._raise_potentials(source, sink, potential)

    def _raise_potentials(self, source: int, sink: int, potential: list[int]) -> bool:
        """Make the cheapest paths to the sink cost nothing on top of the potentials; False without a path."""
        distance = self._distances(source, sink, potential)
        limit = distance[sink]
        if limit == _UNREACHED:
            return False
        for node, reached in enumerate(distance):
            potential[node] += min(reached, limit)
        return True

    def _distances(self, source: int, sink: int, potential: Sequence[int]) -> list[int]:
        """Give the distances from the source, exact up to the sink's (Dijkstra)."""
        targets, capacities, costs = self._target, self._capacity, self._cost
        distance = [_UNREACHED] * len(self._edges_of)
        distance[source] = 0
        heap = [(0, source)]
        while heap:
            reached, node = heapq.heappop(heap)
            if node == sink:
                break
            if reached > distance[node]:
                continue
            base = reached + potential[node]
            for edge in self._edges_of[node]:
                if capacities[edge]:
                    end = targets[edge]
                    there = base + costs[edge] - potential[end]
                    if there < distance[end]:
                        distance[end] = there
                        heapq.heappush(heap, (there, end))
        return distance

    def _push_along_cheapest(self, source: int, sink: int, potential: Sequence[int]) -> None:
        """Push units along edges that cost nothing on top of the potentials, while a search finds a way."""
        left = [iter(edges) for edges in self._edges_of]
        seen = bytearray(len(self._edges_of))
        while path := self._find_path(source, sink, potential, left, seen):
            for edge in path:
                self._capacity[edge] -= 1
                self._capacity[edge ^ 1] += 1
                seen[self._target[edge]] = 0

    def _find_path(
        self, source: int, sink: int, potential: Sequence[int], left: list[Any], seen: bytearray
    ) -> list[int]:
        """Give a path as its edges, empty if there is none.

        `left` are the edges not tried yet, by node; `seen` marks nodes on the path and dead ends. Edges are
        tried in the order in which they were added: that decides between paths of equal cost.
        """
        targets = self._target
        path: list[int] = []
        node = source
        while node != sink:
            seen[node] = 1
            edge = self._next_edge(node, potential, left[node], seen)
            if edge is not None:
                path.append(edge)
                node = targets[edge]
            elif path:
                node = targets[path.pop() ^ 1]
            else:
                return []
        # An edge with room for more than this unit was taken off its iterator: begin with it again.
        for edge in path[1:]:
            start = targets[edge ^ 1]
            left[start] = iter(self._edges_of[start])
        return path

    def _next_edge(self, node: int, potential: Sequence[int], left: Any, seen: bytearray) -> int | None:
        targets, capacities, costs = self._target, self._capacity, self._cost
        here = potential[node]
        for edge in left:
            end = targets[edge]
            if capacities[edge] and not seen[end] and costs[edge] + here == potential[end]:
                return int(edge)
        return None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_CountOrNone = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
"""With -1 for none: `UNKNOWN`, `NO_GENERATION`."""


class _Version(msgspec.Struct, array_like=True, frozen=True):
    version: int


class _MemberData(_Version, array_like=True, frozen=True):
    instance_id: str
    address: str
    generation: _CountOrNone
    actors: list[_ActorData]
    follows: bool = False
    process: _Count = 0
    declared: tuple[Declared, ...] | None = None


class _ActorData(msgspec.Struct, array_like=True, frozen=True):
    """One actor's part: `positions` and `lags` belong to `on_disk`, entry by entry; lag -1 is unknown.

    `lags` and `follows` came later: releases without them don't read that far, and don't write them.
    """

    actor: str
    owned: list[_Count]
    on_disk: list[_Count]
    positions: list[_Count]
    lags: list[_CountOrNone] = []


MAX_MEMBER_BYTES = 512 * 1024
"""What a member says: some 30,000 tasks. The group's record, one message, has to hold what all members say."""
_VERSION_DECODER = msgspec.msgpack.Decoder(_Version)
_MEMBER_DECODER = msgspec.msgpack.Decoder(_MemberData)


def encode_member_data(member: Member) -> bytes:
    """Give what a member sends with its JoinGroup; the member id isn't part of it, the group knows it."""
    owned = _partitions_by_actor(member.owned)
    held = {**dict.fromkeys(member.lags, 0), **member.on_disk}
    on_disk = _partitions_by_actor(held)
    actors = [
        _ActorData(
            actor,
            owned.get(actor, []),
            on_disk.get(actor, []),
            [held[TaskId(actor, partition)] for partition in on_disk.get(actor, [])],
            [member.lags.get(TaskId(actor, partition), UNKNOWN) for partition in on_disk.get(actor, [])],
        )
        for actor in sorted(owned.keys() | on_disk.keys())
    ]
    return msgspec.msgpack.encode(
        _MemberData(
            MEMBER_DATA_VERSION,
            member.instance_id,
            member.address,
            member.generation,
            actors,
            member.follows,
            member.process,
            member.declared,
        )
    )


def decode_member_data(member_id: str, raw: bytes | None) -> Member:
    """Read what `encode_member_data` wrote. Nothing that a member says of itself keeps the group from an assignment.

    Data of a newer version makes a member that owned nothing and has nothing on disk, as in a rolling upgrade. Data
    that can't be read makes one that isn't known: another program is in the group.
    """
    raw = raw or b""
    if len(raw) > MAX_MEMBER_BYTES:
        return Member(member_id, trouble=f"it says {len(raw)} bytes of itself", is_known=False)
    try:
        if _VERSION_DECODER.decode(raw).version > MEMBER_DATA_VERSION:
            return Member(member_id)
        data = _MEMBER_DECODER.decode(raw)
    except MALFORMED:
        data = None
    if data is None or data.version != MEMBER_DATA_VERSION:
        return Member(member_id, trouble="what it says of itself isn't what this package's workers say", is_known=False)
    address, trouble = data.address, ""
    try:
        address = origin_of(address) if address else ""
    except ValueError as error:
        address, trouble = "", str(error)
    return Member(
        member_id,
        instance_id=data.instance_id,
        address=address,
        generation=data.generation,
        owned=frozenset(TaskId(part.actor, partition) for part in data.actors for partition in set(part.owned)),
        on_disk={
            TaskId(part.actor, partition): position
            for part in data.actors
            for partition, position in zip(part.on_disk, part.positions, strict=False)
        },
        lags={
            TaskId(part.actor, partition): lag
            for part in data.actors
            for partition, lag in zip(part.on_disk, part.lags, strict=False)
            if lag != UNKNOWN
        },
        follows=data.follows,
        process=data.process,
        declared=data.declared,
        trouble=trouble,
    )


def words_of(member: Member, host: str = "") -> str:
    """Say for a person which member of the group can't be understood, and what follows from it."""
    where = f" on host {host[:200]!a}" if host else ""
    outcome = "other workers don't ask it" if member.is_known else "it gets no partitions"
    return f"member {member.member_id[:200]!a} of the group{where}: {member.trouble}: {outcome}"


def _partitions_by_actor(tasks: Iterable[TaskId]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for task in sorted(tasks):
        found.setdefault(task.actor, []).append(task.partition)
    return found
