"""The oracles here try every assignment of small groups: they share nothing with the flow that they judge."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors._core.group.assign import assign
from actors._core.group.members import Member, TaskId, decode_member_data, encode_member_data
from actors._kafka.consume.assignor import ActorAssignor
from tests.examples import examples

Assignment = Mapping[str, Collection[TaskId]]


def tasks_of(**partitions: int) -> list[TaskId]:
    return [TaskId(actor, partition) for actor, count in partitions.items() for partition in range(count)]


def owners_of(assignment: Assignment) -> dict[TaskId, str]:
    return {task: member_id for member_id, tasks in assignment.items() for task in tasks}


def carry_on(
    assignment: Assignment, members: Sequence[Member], generation: int, *, position: int | None = None
) -> list[Member]:
    """Give the members as they are after they worked with `assignment` up to `position` in each changelog."""
    reached = generation * 1000 if position is None else position
    return [
        replace(
            member,
            generation=generation,
            owned=frozenset(assignment[member.member_id]),
            on_disk={**member.on_disk, **dict.fromkeys(assignment[member.member_id], reached)},
        )
        for member in members
    ]


def is_balanced(assignment: Assignment, tasks: Collection[TaskId]) -> bool:
    groups = [
        set(tasks),
        *({task for task in tasks if task.actor == actor} for actor in {t.actor for t in tasks}),
    ]
    for group in groups:
        counts = [len(group.intersection(owned)) for owned in assignment.values()]
        if max(counts) - min(counts) > 1:
            return False
    return True


def check_complete(assignment: Assignment, members: Sequence[Member], tasks: Collection[TaskId]) -> None:
    assert set(assignment) == {member.member_id for member in members}
    assert Counter(task for owned in assignment.values() for task in owned) == Counter(set(tasks))
    assert is_balanced(assignment, tasks)


def newest_claims(members: Sequence[Member]) -> dict[TaskId, str]:
    claims: dict[TaskId, Member] = {}
    for member in members:
        for task in member.owned:
            if task not in claims or claims[task].generation < member.generation:
                claims[task] = member
    return {task: member.member_id for task, member in claims.items()}


def price(owners: Mapping[TaskId, str], members: Sequence[Member]) -> tuple[int, int]:
    """Give (tasks moved, magnitudes of the log to restore)."""
    last = newest_claims(members)
    moved = sum(1 for task, member_id in owners.items() if last.get(task, member_id) != member_id)
    by_id = {member.member_id: member for member in members}
    restore = 0
    for task, member_id in owners.items():
        if last.get(task) != member_id:
            highest = max((member.on_disk[task] for member in members if task in member.on_disk), default=0)
            here = by_id[member_id].on_disk.get(task)
            restore += highest.bit_length() + 1 if here is None else (highest - here).bit_length()
    return moved, restore


def best_price(members: Sequence[Member], tasks: Sequence[TaskId]) -> tuple[int, int]:
    ids = [member.member_id for member in members]
    prices = []
    for choice in itertools.product(ids, repeat=len(tasks)):
        owners = dict(zip(tasks, choice, strict=True))
        split = {member_id: [task for task in tasks if owners[task] == member_id] for member_id in ids}
        if is_balanced(split, tasks):
            prices.append(price(owners, members))
    return min(prices)


@st.composite
def groups(
    draw: st.DrawFn, max_members: int, max_actors: int, max_partitions: int
) -> tuple[list[Member], list[TaskId]]:
    shape = draw(st.lists(st.integers(1, max_partitions), min_size=1, max_size=max_actors))
    tasks = [TaskId(f"actor{index}", partition) for index, count in enumerate(shape) for partition in range(count)]
    count = draw(st.integers(1, max_members))
    members = []
    generations = draw(st.permutations(range(count)))
    for index in range(count):
        owned = draw(st.frozensets(st.sampled_from(tasks)))
        on_disk = draw(st.dictionaries(st.sampled_from(tasks), st.integers(0, 2000), max_size=6))
        members.append(
            Member(
                f"m{index}",
                instance_id=draw(st.sampled_from(["", f"i{9 - index}"])),
                generation=generations[index],
                owned=owned,
                on_disk=on_disk,
            )
        )
    return members, tasks


@given(groups(max_members=8, max_actors=4, max_partitions=9))
def test_each_task_has_one_owner_and_the_load_is_even(group: tuple[list[Member], list[TaskId]]) -> None:
    members, tasks = group
    check_complete(assign(members, tasks), members, tasks)


@given(groups(max_members=6, max_actors=3, max_partitions=6), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    group: tuple[list[Member], list[TaskId]], shuffler: random.Random
) -> None:
    members, tasks = group
    expected = assign(members, tasks)
    shuffled = [replace(member, on_disk=_shuffled(member.on_disk, shuffler)) for member in members]
    shuffler.shuffle(shuffled)
    shuffler.shuffle(tasks)
    assert assign(shuffled, tasks) == expected


def _shuffled(on_disk: Mapping[TaskId, int], shuffler: random.Random) -> dict[TaskId, int]:
    entries = list(on_disk.items())
    shuffler.shuffle(entries)
    return dict(entries)


@settings(deadline=None, max_examples=examples(150))
@given(groups(max_members=3, max_actors=3, max_partitions=3).filter(lambda group: len(group[1]) <= 7))
def test_moves_and_restores_no_more_than_any_balanced_assignment(
    group: tuple[list[Member], list[TaskId]],
) -> None:
    members, tasks = group
    assert price(owners_of(assign(members, tasks)), members) == best_price(members, tasks)


def test_the_oracles_see_damage() -> None:
    tasks = tasks_of(a=4)
    members = [Member("m0", generation=1, owned=frozenset(tasks[:2])), Member("m1", generation=1)]
    swapped = {"m0": tasks[2:], "m1": tasks[:2]}
    assert is_balanced(swapped, tasks)
    assert price(owners_of(swapped), members)[0] == 2 > best_price(members, tasks)[0]
    assert not is_balanced({"m0": tasks, "m1": []}, tasks)
    with pytest.raises(AssertionError):
        check_complete({"m0": tasks[:2], "m1": tasks[1:]}, members, tasks)


def test_nothing_to_do() -> None:
    assert assign([], tasks_of(a=2)) == {}
    assert assign([Member("m0")], []) == {"m0": ()}


def test_tasks_that_are_gone_are_forgotten() -> None:
    gone = TaskId("old", 0)
    member = Member("m0", generation=3, owned=frozenset({gone}), on_disk={gone: 5})
    assert assign([member], tasks_of(a=1)) == {"m0": (TaskId("a", 0),)}


@pytest.mark.parametrize("partitions", [2, 8, 31])
def test_a_clean_restart_of_one_of_two_gets_the_same_partitions_back(partitions: int) -> None:
    tasks = tasks_of(a=partitions, b=partitions)
    workers = [Member("m0", instance_id="w0"), Member("m1", instance_id="w1")]
    first = assign(workers, tasks)
    workers = carry_on(first, workers, 1)
    for restarted, other in ((0, 1), (1, 0)):
        away = [workers[other]]
        alone = carry_on(assign(away, tasks), away, 2)
        for name in ("a-new-id", "z-new-id"):
            back = Member(name, instance_id=workers[restarted].instance_id, on_disk=workers[restarted].on_disk)
            second = assign([*alone, back], tasks)
            assert set(second[name]) == set(first[workers[restarted].member_id])


def test_a_restart_without_a_rebalance_in_between_swaps_nothing() -> None:
    tasks = tasks_of(a=8)
    workers = carry_on(assign([Member("m0"), Member("m1")], tasks), [Member("m0"), Member("m1")], 1)
    back = Member("a-first-in-order", on_disk=workers[1].on_disk)
    second = assign([workers[0], back], tasks)
    assert set(second["m0"]) == workers[0].owned


def test_a_restart_of_all_swaps_nothing_although_stale_copies_lie_around() -> None:
    tasks = tasks_of(a=8)
    alone = [Member("m0", instance_id="w0")]
    alone = carry_on(assign(alone, tasks), alone, 1)
    both = [*alone, Member("m1", instance_id="w1")]
    first = assign(both, tasks)
    both = carry_on(first, both, 2, position=1000)
    restarted = [
        Member(f"new{9 - index}", member.instance_id, on_disk=member.on_disk) for index, member in enumerate(both)
    ]
    second = assign(restarted, tasks)
    assert [set(second[member.member_id]) for member in restarted] == [set(owned) for owned in first.values()]


def test_an_orphan_goes_to_the_highest_position() -> None:
    task = TaskId("a", 0)
    members = [
        Member("m0", on_disk={task: 900}),
        Member("m1", on_disk={task: 901}),
        Member("m2", on_disk={task: 10}),
    ]
    assert owners_of(assign(members, [task])) == {task: "m1"}


def test_equal_positions_are_decided_by_identity() -> None:
    task = TaskId("a", 0)
    members = [Member("a", "w2", on_disk={task: 7}), Member("z", "w1", on_disk={task: 7})]
    assert owners_of(assign(members, [task])) == {task: "z"}
    assert owners_of(assign([replace(member, instance_id="") for member in members], [task])) == {task: "a"}


def test_the_newest_claim_wins() -> None:
    task = TaskId("a", 0)
    zombie = Member("m0", generation=4, owned=frozenset({task}), on_disk={task: 10_000})
    owner = Member("m1", generation=5, owned=frozenset({task}), on_disk={task: 3})
    assert owners_of(assign([zombie, owner], [task])) == {task: "m1"}


@given(groups(max_members=6, max_actors=3, max_partitions=8))
def test_a_second_round_moves_nothing(group: tuple[list[Member], list[TaskId]]) -> None:
    members, tasks = group
    first = assign(members, tasks)
    assert assign(carry_on(first, members, 100), tasks) == first


@given(st.integers(2, 7), st.integers(1, 30))
def test_a_join_or_leave_moves_what_it_has_to(count: int, partitions: int) -> None:
    tasks = tasks_of(a=partitions)
    members = [Member(f"m{index}") for index in range(count)]
    members = carry_on(assign(members, tasks), members, 1)
    before = newest_claims(members)

    after_leave = owners_of(assign(members[1:], tasks))
    assert all(after_leave[task] == owner for task, owner in before.items() if owner != "m0")

    after_join = owners_of(assign([*members, Member("new")], tasks))
    moved = {task for task, owner in before.items() if after_join[task] != owner}
    assert {after_join[task] for task in moved} <= {"new"}
    assert len(moved) == partitions // (count + 1)


class Group(RuleBasedStateMachine):
    """Workers join, leave, crash and restart, and sometimes miss a generation."""

    @initialize(shape=st.lists(st.integers(1, 7), min_size=1, max_size=3))
    def begin(self, shape: list[int]) -> None:
        self.tasks = [TaskId(f"a{index}", number) for index, count in enumerate(shape) for number in range(count)]
        self.generation = 0
        self.born = 0
        self.members: list[Member] = []
        self.assignment: dict[str, tuple[TaskId, ...]] = {}
        self.join()

    def _name(self) -> str:
        self.born += 1
        # Later members come in front of and behind the earlier ones.
        return f"{'az'[self.born % 2]}{self.born}"

    def _rebalance(self, members: list[Member]) -> None:
        self.generation += 1
        self.assignment = assign(members, self.tasks)
        check_complete(self.assignment, members, self.tasks)
        self.members = carry_on(self.assignment, members, self.generation)

    @rule()
    def join(self) -> None:
        name = self._name()
        self._rebalance([*self.members, Member(name, instance_id=f"w-{name}")])

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.members))
        self._rebalance([member for member in self.members if member is not leaver])

    @precondition(lambda self: len(self.members) > 0)
    @rule(data=st.data())
    def restart_at_once(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.members))
        before = {member.instance_id: frozenset(self.assignment[member.member_id]) for member in self.members}
        back = Member(self._name(), instance_id=leaver.instance_id, on_disk=leaver.on_disk)
        self._rebalance([back if member is leaver else member for member in self.members])
        assert {member.instance_id: member.owned for member in self.members} == before

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def restart_after_a_rebalance(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.members))
        self._rebalance([member for member in self.members if member is not leaver])
        back = Member(self._name(), instance_id=leaver.instance_id, on_disk=leaver.on_disk)
        self._rebalance([*self.members, back])

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def miss_a_generation(self, data: st.DataObject) -> None:
        zombie = data.draw(st.sampled_from(self.members))
        self._rebalance([member for member in self.members if member is not zombie])
        held = newest_claims(self.members)
        self._rebalance([*self.members, zombie])
        moved = {task for task, owner in owners_of(self.assignment).items() if held[task] != owner}
        assert {owners_of(self.assignment)[task] for task in moved} <= {zombie.member_id}

    @invariant()
    def nothing_moves_without_a_reason(self) -> None:
        assert assign(list(reversed(self.members)), self.tasks) == self.assignment


TestGroup = Group.TestCase
TestGroup.settings = settings(deadline=None, max_examples=examples(60), stateful_step_count=12)


def lines_run(function: Callable[[], object]) -> int:
    """Count the lines that a function runs, with those that it calls: the same on a slow machine."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def test_five_hundred_tasks_of_a_hundred_members_take_few_steps() -> None:
    tasks = [TaskId(f"actor{actor}", number) for actor in range(10) for number in range(50)]
    rand = random.Random(1)
    members = [
        Member(f"m{index:03}", on_disk={task: rand.randrange(10**9) for task in rand.sample(tasks, 30)})
        for index in range(100)
    ]
    assignment: dict[str, tuple[TaskId, ...]] = {}
    assert lines_run(lambda: assignment.update(assign(members, tasks))) < 1_500_000
    check_complete(assignment, members, tasks)


@given(groups(max_members=3, max_actors=3, max_partitions=6))
def test_member_data_survives_the_trip(group: tuple[list[Member], list[TaskId]]) -> None:
    for member in group[0]:
        sent = replace(member, address="http://10.0.0.1:6066", transactional_id="app:worker:w1")
        assert decode_member_data(member.member_id, encode_member_data(sent)) == sent


@pytest.mark.parametrize(
    "raw",
    [msgspec.msgpack.encode([2, "w0", "http://x", 1, []]), msgspec.msgpack.encode([2, {"of": "another shape"}])],
)
def test_member_data_of_a_newer_version_is_a_member_without_a_history(raw: bytes) -> None:
    assert decode_member_data("m0", raw) == Member("m0")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"\xff\xff",
        b"not msgpack",
        msgspec.msgpack.encode([1, "w0"]),
        msgspec.msgpack.encode([1, "w0", "", 1, []]).replace(b"w0", b"\xff0"),
        msgspec.msgpack.encode([1, ["a0"], {"x": {0: [1]}}]).replace(b"a0", b"\xff0"),
    ],
)
def test_member_data_that_cant_be_read_is_a_member_that_isnt_known(raw: bytes | None) -> None:
    found = decode_member_data("m0", raw)
    assert found == Member("m0", trouble=found.trouble, is_known=False)
    assert found.trouble


def test_member_data_stays_small() -> None:
    tasks = tasks_of(orders=5, **{"a-second-actor": 5})
    member = Member("m0", "worker-17", "http://10.0.0.17:6066", 12, frozenset(tasks), dict.fromkeys(tasks, 10**9))
    assert len(encode_member_data(member)) < 154


def test_a_large_group_fits_into_one_kafka_record() -> None:
    """Kafka keeps a group, with every member's data and assignment, in one record of 1 MB at most."""
    members, partitions = 200, 1_000
    assignors = {
        f"member-{number:03}-{'x' * 40}": ActorAssignor(
            instance_id=f"worker-{number}",
            address=f"http://10.0.0.{number}:6066",
            actors={"input": "actor"},
            on_disk=lambda first=number: {TaskId("actor", first * 5 + place): 10**9 for place in range(5)},
        )
        for number in range(members)
    }
    told = {member: assignor.metadata(["input"]) for member, assignor in assignors.items()}
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(partitions)))
    answers = next(iter(assignors.values())).assign(cluster, told)
    sizes = [len(part.encode()) for part in (*told.values(), *answers.values())]
    assert len(answers) == members
    assert sum(sizes) < 100_000
