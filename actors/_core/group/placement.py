"""The owner and the copies of each task: `assign`, held back by how warm the copies are (KIP-441).

`assign` says where the tasks shall be: balanced, with the fewest moves, where the most is on disk. A member that lacks
more than `acceptable_lag` of a task's changelog would stand still while it reads that, so it doesn't get the task
as long as a better copy is alive:

    wanted owner is warm        it owns the task
    it isn't                    the last owner keeps the task if it is warm, else the copy that lacks the least takes
                                it; the wanted owner gets a warm-up copy, and asks for a rebalance when it is warm

Next time the warm-up copy makes its member the cheapest of those who could relieve the owner, so that `assign` wants
the same again, and each rebalance brings tasks to where they shall be until nothing is left to move. Standbys come
last: each task has so many copies on other members, those first that are warm and follow already.

What a copy lacks its member says itself: an owner that ran lacks nothing, whoever follows a changelog knows its end.
Of other copies it is known how far they are behind the best one. The word of an owner counts only if nobody owned the
task after it. Members of a release that can't follow get tasks as if they were warm, and no copies.

A task moves in two steps (KIP-429): as long as a member has it, no other gets it. That member is told to hand it over,
does so, and joins again without it. What nobody has moves at once. Members of another version give up everything
before they join; so does every member of a group with one of them, because that one could become the leader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from actors._core.group.assign import assign, identity_of, last_owners
from actors._core.group.members import Member, TaskId
from actors._core.outside import MALFORMED

COPIES_VERSION = 1


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The leader's settings.

    Attributes:
        standbys: how many copies of each task are kept beside the owner's.
        acceptable_lag: how many changelog offsets a copy may lack and still count as warm.
        max_warm_ups: how many copies a member warms up at a time.
    """

    standbys: int = 0
    acceptable_lag: int = 10_000
    max_warm_ups: int = 8


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one member, and what else the leader tells it.

    `acceptable_lag` is what the leader goes by; `seen` which process of a static member the leader assigned for, 0 if
    that is unknown; `refused` says, by topic, why the member gets no partitions of it. `handed_over` are the tasks
    that the member has to give up, and that nobody gets before it joins without them; `is_moving` says that some member
    has such, so that another rebalance follows at once. `may_keep` tells it to keep its tasks the next time it joins.
    """

    standbys: frozenset[TaskId] = frozenset()
    warm_ups: frozenset[TaskId] = frozenset()
    acceptable_lag: int = 0
    seen: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    handed_over: frozenset[TaskId] = frozenset()
    may_keep: bool = False
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The tasks that each member owns, in order, and the copies that it keeps, by member id."""

    owners: Mapping[str, tuple[TaskId, ...]] = field(default_factory=dict)
    copies: Mapping[str, Copies] = field(default_factory=dict)


def place(members: Sequence[Member], tasks: Collection[TaskId], rules: PlacementRules) -> Placement:
    """Assign each task an owner and its copies. The same for every order of members and tasks."""
    ordered = sorted(members, key=identity_of)
    if not ordered:
        return Placement()
    return _Placing(ordered, sorted(set(tasks)), rules).place()


class _Placing:
    """One placement. Members are indices; of those that hold nothing of a task all lack the same, `_highest`."""

    def __init__(self, members: Sequence[Member], tasks: Sequence[TaskId], rules: PlacementRules) -> None:
        self._members = members
        self._tasks = tasks
        self._rules = rules
        self._last = last_owners(members)
        self._highest: dict[TaskId, int] = dict.fromkeys(tasks, 0)
        self._lags: dict[TaskId, dict[int, int]] = {task: {} for task in tasks}
        self._note_lags()
        self._limits = {
            task: min((self._highest[task], *self._lags[task].values())) + rules.acceptable_lag for task in tasks
        }
        self._owner: dict[TaskId, int] = {}
        self._warming: dict[TaskId, int] = {}
        self._standbys: dict[int, set[TaskId]] = {index: set() for index in range(len(members))}
        self._leaving: dict[TaskId, int] = {}

    def _note_lags(self) -> None:
        """Find how many offsets each holder lacks, as far as anybody knows."""
        for member in self._members:
            for task, position in member.on_disk.items():
                if position > self._highest.get(task, position):
                    self._highest[task] = position
        newest = max(member.generation for member in self._members)
        for index, member in enumerate(self._members):
            for task in member.on_disk.keys() | member.lags.keys():
                if task in self._lags:
                    behind = self._highest[task] - member.on_disk.get(task, 0)
                    said = member.lags.get(task)
                    is_past_owner = task in member.owned and (
                        self._last.get(task) != index or member.generation < newest
                    )
                    self._lags[task][index] = behind if said is None or is_past_owner else min(said, behind)

    def place(self) -> Placement:
        self._choose_owners()
        for _ in range(self._rules.standbys):
            self._choose_standbys()
        owned = _by_member({task: index for task, index in self._owner.items() if task not in self._leaving})
        warming, leaving = _by_member(self._warming), _by_member(self._leaving)
        return Placement(
            {member.member_id: tuple(sorted(owned[index])) for index, member in enumerate(self._members)},
            {
                member.member_id: Copies(
                    frozenset(self._standbys[index]), frozenset(warming[index]), handed_over=frozenset(leaving[index])
                )
                for index, member in enumerate(self._members)
            },
        )

    def _choose_owners(self) -> None:
        index_of = {member.member_id: index for index, member in enumerate(self._members)}
        wanted = {
            task: index_of[member_id]
            for member_id, theirs in assign(self._members, self._tasks).items()
            for task in theirs
        }
        held_back = []
        for task in self._tasks:
            if self._is_cold(task, wanted[task]):
                held_back.append(task)
            else:
                self._owner[task] = wanted[task]
        counts = [0] * len(self._members)
        for index in self._owner.values():
            counts[index] += 1
        warm_ups = [0] * len(self._members)
        for task in held_back:
            owner = self._owner[task] = self._interim(task, counts)
            counts[owner] += 1
            target = wanted[task]
            if warm_ups[target] < self._rules.max_warm_ups:
                warm_ups[target] += 1
                self._warming[task] = target
        for task, owner in self._owner.items():
            last = self._last.get(task)
            if last is not None and last != owner and self._members[last].kept:
                self._leaving[task] = last
                # Its next owner goes on following.
                if task in self._members[owner].lags:
                    self._standbys[owner].add(task)

    def _is_cold(self, task: TaskId, index: int) -> bool:
        """Return whether a member mustn't get a task yet. One that can't follow would never be warm."""
        return self._members[index].follows and self._lag(task, index) > self._limits[task]

    def _interim(self, task: TaskId, counts: Sequence[int]) -> int:
        """Return the owner of the task until its wanted owner is warm."""
        limit, last = self._limits[task], self._last.get(task)
        if last is not None and self._lag(task, last) <= limit:
            return last
        warm = [index for index in range(len(self._members)) if self._lag(task, index) <= limit]
        return min(warm, key=lambda index: (counts[index], self._lag(task, index), index))

    def _lag(self, task: TaskId, index: int) -> int:
        return self._lags[task].get(index, self._highest[task])

    def _choose_standbys(self) -> None:
        followers = [index for index, member in enumerate(self._members) if member.follows]
        if not followers:
            return
        loads = [len(theirs) for theirs in self._standbys.values()]
        most = -(-(sum(loads) + len(self._tasks)) // len(followers))
        for place, task in enumerate(self._tasks):
            # Copies that nobody has yet are dealt out from one member after the other.
            start = place % len(followers)
            index = self._choose_standby(task, [*followers[start:], *followers[:start]], loads, most)
            if index is not None:
                self._standbys[index].add(task)
                loads[index] += 1

    def _choose_standby(self, task: TaskId, followers: Sequence[int], loads: Sequence[int], most: int) -> int | None:
        """Choose the member for one more copy; the first of `followers` where nothing else decides."""
        busy = {self._owner[task], self._warming.get(task), self._leaving.get(task)}
        free = [index for index in followers if index not in busy and task not in self._standbys[index]]
        holders = self._lags[task]
        # All who hold nothing are alike but for their load.
        strangers = [index for index in free if index not in holders]
        candidates = [index for index in free if index in holders]
        if strangers:
            candidates.append(min(strangers, key=loads.__getitem__))
        return min(candidates, key=lambda index: self._reluctance(task, index, loads[index], most), default=None)

    def _reluctance(self, task: TaskId, index: int, load: int, most: int) -> tuple[bool, int, bool, int]:
        member = self._members[index]
        follows_already = task in member.lags and task not in member.owned
        if self._lag(task, index) <= self._limits[task]:
            warmth = 0
        else:
            warmth = 1 if task in member.on_disk else 2
        return load >= most, warmth, not follows_already, load


def _by_member(indices: Mapping[TaskId, int]) -> dict[int, list[TaskId]]:
    found: dict[int, list[TaskId]] = defaultdict(list)
    for task, index in indices.items():
        found[index].append(task)
    return found


class _CopiesData(msgspec.Struct, array_like=True, frozen=True):
    version: int
    actors: list[tuple[str, list[int], list[int]]]
    acceptable_lag: int
    seen: int
    refused: dict[str, str]
    handed_over: list[tuple[str, list[int]]] = []
    may_keep: bool = False
    is_moving: bool = False


_DECODER = msgspec.msgpack.Decoder(_CopiesData)


def encode_copies(copies: Copies) -> bytes:
    """Return the leader's message to a member beside its partitions: the copies to keep. Empty for none.

    Its own only: the group's record, one message with all members' data, grows with tasks times copies.
    """
    if copies == Copies(acceptable_lag=copies.acceptable_lag):
        return b""
    actors = sorted({task.actor for task in copies.standbys | copies.warm_ups})
    leaving = sorted({task.actor for task in copies.handed_over})
    return msgspec.msgpack.encode(
        _CopiesData(
            COPIES_VERSION,
            [(actor, _partitions(copies.standbys, actor), _partitions(copies.warm_ups, actor)) for actor in actors],
            copies.acceptable_lag,
            copies.seen,
            dict(copies.refused),
            [(actor, _partitions(copies.handed_over, actor)) for actor in leaving],
            copies.may_keep,
            copies.is_moving,
        )
    )


def decode_copies(raw: bytes | None) -> Copies:
    """Read what `encode_copies` wrote; what another release wrote that can't be read means no copies."""
    try:
        data = _DECODER.decode(raw or b"")
    except MALFORMED:
        return Copies()
    if data.version != COPIES_VERSION:
        return Copies()
    return Copies(
        frozenset(TaskId(actor, partition) for actor, standbys, _ in data.actors for partition in standbys),
        frozenset(TaskId(actor, partition) for actor, _, warm_ups in data.actors for partition in warm_ups),
        data.acceptable_lag,
        data.seen,
        data.refused,
        frozenset(TaskId(actor, partition) for actor, leaving in data.handed_over for partition in leaving),
        data.may_keep,
        data.is_moving,
    )


def _partitions(tasks: Iterable[TaskId], actor: str) -> list[int]:
    return sorted(task.partition for task in tasks if task.actor == actor)
