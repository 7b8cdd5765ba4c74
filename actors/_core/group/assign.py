"""The owner of each task: a pure function of the members' metadata.

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
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from actors._core.group.flow import Flow
from actors._core.group.members import Member, TaskId


def assign(members: Sequence[Member], tasks: Collection[TaskId]) -> dict[str, tuple[TaskId, ...]]:
    """Assign each task to one member.

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
    """Return the sort key of members."""
    return member.instance_id or member.member_id, member.member_id


def last_owners(members: Sequence[Member]) -> dict[TaskId, int]:
    """Return the index of each task's last owner: of two that claim it, the one of the newer generation.

    A member that missed a generation still claims what it had before.
    """
    claims: dict[TaskId, tuple[int, int, int]] = {}
    for index, member in enumerate(members):
        for task in member.owned:
            claim = (member.generation, member.on_disk.get(task, 0), -index)
            claims[task] = max(claims.get(task, claim), claim)
    return {task: -negated for task, (_, _, negated) in claims.items()}


def _copies(members: Sequence[Member], tasks: Iterable[TaskId]) -> dict[TaskId, list[tuple[int, int]]]:
    """Return (position, member index) of what is on disk of each task, the highest position first."""
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
        self.flow = Flow()
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
        """Return each task with its member's index, once the flow is solved."""
        for task, index, edge in self._direct:
            if self.flow.flow_of(edge):
                yield task, index
        for into_pool, out_of_pool in self._pools:
            pooled = [task for task, edge in into_pool if self.flow.flow_of(edge)]
            takers = (index for index, edge in out_of_pool for _ in range(self.flow.flow_of(edge)))
            yield from zip(pooled, takers, strict=True)
