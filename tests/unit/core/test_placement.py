"""Owners and copies: a world of logs that grow and copies that catch up judges what the leader decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from actors._core.group.assign import assign
from actors._core.group.members import Member, TaskId, decode_member_data, encode_member_data
from actors._core.group.placement import Copies, Placement, PlacementRules, decode_copies, encode_copies, place
from actors._kafka.consume.assignor import ActorAssignor
from tests.examples import examples
from tests.unit.core.test_assign import is_balanced, lines_run, tasks_of

ACCEPTABLE = 100
RULES = PlacementRules(standbys=1, acceptable_lag=ACCEPTABLE, max_warm_ups=2)


@dataclass
class Node:
    """A worker: what it holds of each task is the truth, from which follows what it says."""

    name: str
    follows: bool = True
    held: dict[TaskId, int] = field(default_factory=dict)
    owned: frozenset[TaskId] = frozenset()
    copies: frozenset[TaskId] = frozenset()
    generation: int = -1


class World:
    """The changelogs' ends, and the workers that are alive."""

    def __init__(self, tasks: Sequence[TaskId], rules: PlacementRules, end: int) -> None:
        self.tasks, self.rules = list(tasks), rules
        self.ends = dict.fromkeys(tasks, end)
        self.nodes: dict[str, Node] = {}
        self.generation = 0
        self.placement = Placement()

    def members(self) -> list[Member]:
        found = []
        for node in self.nodes.values():
            known = {task for task in node.held if task in node.owned or task in node.copies}
            lags = {task: self.ends[task] - node.held[task] for task in known} if node.follows else {}
            found.append(
                Member(
                    node.name,
                    generation=node.generation,
                    owned=node.owned,
                    on_disk=dict(node.held),
                    lags=lags,
                    follows=node.follows,
                )
            )
        return found

    def rebalance(self) -> Placement:
        members = self.members()
        placement = place(members, self.tasks, self.rules)
        self.check(placement)
        shuffled = [replace(member, on_disk=dict(reversed(member.on_disk.items()))) for member in reversed(members)]
        assert place(shuffled, list(reversed(self.tasks)), self.rules) == placement
        self.generation += 1
        for node in self.nodes.values():
            node.generation = self.generation
            node.owned = frozenset(placement.owners[node.name])
            copies = placement.copies[node.name]
            node.copies = copies.standbys | copies.warm_ups
            for task in node.owned:
                node.held[task] = self.ends[task]
        self.placement = placement
        return placement

    def check(self, placement: Placement) -> None:
        assert sorted(task for owned in placement.owners.values() for task in owned) == sorted(self.tasks)
        owner = {task: name for name, owned in placement.owners.items() for task in owned}
        count = dict.fromkeys(self.tasks, 0)
        for name, copies in placement.copies.items():
            assert len(copies.warm_ups) <= self.rules.max_warm_ups
            assert not copies.standbys & copies.warm_ups
            for task in copies.standbys | copies.warm_ups:
                assert owner[task] != name
                assert self.nodes[name].follows
            for task in copies.standbys:
                count[task] += 1
        followers = sum(node.follows for node in self.nodes.values())
        for task, name in owner.items():
            assert count[task] <= self.rules.standbys
            others = followers - self.nodes[name].follows
            warming = any(task in copies.warm_ups for copies in placement.copies.values())
            assert count[task] == min(self.rules.standbys, others - warming)
            self.check_warm(task, self.nodes[name])

    def check_warm(self, task: TaskId, owner: Node) -> None:
        """A worker that follows gets a task only if nobody has a copy that is much better."""
        lacks = {node.name: self.ends[task] - node.held.get(task, 0) for node in self.nodes.values()}
        if owner.follows:
            assert lacks[owner.name] <= min(lacks.values()) + self.rules.acceptable_lag

    def write(self, rand: random.Random, most: int) -> None:
        for task in self.tasks:
            self.ends[task] += rand.randrange(most + 1)
        for node in self.nodes.values():
            node.held.update({task: self.ends[task] for task in node.owned})

    def catch_up(self, rand: random.Random | None = None) -> None:
        for node in self.nodes.values():
            for task in node.copies:
                lacks = self.ends[task] - node.held.get(task, 0)
                node.held[task] = self.ends[task] - (rand.randrange(lacks + 1) if rand and lacks else 0)

    def settle(self) -> int:
        """Rebalance as the workers ask for it, until nobody warms up; give how often."""
        for rounds in range(1, 200):
            placement = self.rebalance()
            self.catch_up()
            if not any(copies.warm_ups for copies in placement.copies.values()):
                return rounds
        raise AssertionError("it never settles")

    def check_settled(self) -> None:
        assert is_balanced(self.placement.owners, self.tasks)
        before = self.placement
        self.rebalance()
        assert self.placement.owners == before.owners
        assert not any(copies.warm_ups for copies in self.placement.copies.values())


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([0, 50, 5_000]),
    st.lists(st.sampled_from(["join", "join old", "kill", "restart", "work", "wait"]), max_size=12),
    st.randoms(use_true_random=False),
)
def test_workers_come_and_go_and_in_the_end_all_is_even(
    shape: list[int], standbys: int, warm_ups: int, end: int, events: list[str], rand: random.Random
) -> None:
    tasks = [TaskId(f"a{index}", number) for index, count in enumerate(shape) for number in range(count)]
    world = World(tasks, PlacementRules(standbys, ACCEPTABLE, warm_ups), end)
    world.nodes["n0"] = Node("n0")
    world.rebalance()
    for number, event in enumerate(events, 1):
        if event.startswith("join"):
            world.nodes[f"n{number}"] = Node(f"n{number}", follows=event == "join")
        elif event == "kill" and len(world.nodes) > 1:
            del world.nodes[rand.choice(sorted(world.nodes))]
        elif event == "restart":
            name = rand.choice(sorted(world.nodes))
            world.nodes[name] = Node(name, held=world.nodes[name].held)
        elif event == "work":
            world.write(rand, 1_000)
            world.catch_up(rand)
        world.rebalance()
    world.settle()
    world.check_settled()


class Handovers:
    """Members that keep their tasks, beside some of an earlier release; who has what is the truth."""

    def __init__(self, tasks: Sequence[TaskId]) -> None:
        self.tasks = tasks
        self.has: dict[str, frozenset[TaskId]] = {}
        self.earlier: set[str] = set()
        self.generation = 0

    def rebalance(self, *, slow: frozenset[TaskId] = frozenset()) -> Placement:
        """Have all members join; tasks that are `slow` aren't handed over before the next time."""
        members = [
            Member(
                name,
                generation=self.generation,
                owned=theirs,
                kept=None if name in self.earlier else True,
            )
            for name, theirs in self.has.items()
        ]
        placement, before = place(members, self.tasks, PlacementRules()), self.has
        kept = {task: name for name, theirs in before.items() if name not in self.earlier for task in theirs}
        given = [(task, name) for name, theirs in placement.owners.items() for task in theirs]
        assert len({task for task, _ in given}) == len(given)
        assert all(kept.get(task, name) == name for task, name in given)
        for name, copies in placement.copies.items():
            assert all(kept[task] == name for task in copies.handed_over)
            self.has[name] = frozenset(placement.owners[name]) | (copies.handed_over & slow)
        nobodys = set(self.tasks) - {task for task, _ in given}
        assert nobodys == set().union(*(copies.handed_over for copies in placement.copies.values()))
        self.generation += 1
        return placement


@settings(deadline=None, max_examples=examples(200))
@given(
    st.integers(1, 12),
    st.lists(st.sampled_from(["join", "join earlier", "leave", "again"]), max_size=12),
    st.randoms(use_true_random=False),
)
def test_what_a_member_has_is_given_to_nobody_else_and_in_the_end_all_is_even(
    count: int, events: list[str], rand: random.Random
) -> None:
    group = Handovers(tasks_of(a=count))
    for number, event in enumerate(["join", *events]):
        if event.startswith("join"):
            group.has[f"n{number}"] = frozenset()
            if event == "join earlier":
                group.earlier.add(f"n{number}")
        elif event == "leave" and len(group.has) > 1:
            group.has.pop(rand.choice(sorted(group.has)))
        group.rebalance(slow=frozenset(task for task in group.tasks if rand.random() < 0.2))
    group.rebalance()
    placement = group.rebalance()
    assert is_balanced(placement.owners, group.tasks)
    assert group.rebalance().owners == placement.owners


def test_what_a_dead_member_had_and_an_older_claim_move_at_once() -> None:
    task, other = tasks_of(a=2)
    past = Member("m0", generation=4, owned=frozenset({task}), kept=True)
    owner = Member("m1", generation=5, owned=frozenset({task}), kept=True)
    placement = place([past, owner], [task, other], PlacementRules())
    assert placement.owners == {"m0": (other,), "m1": (task,)}
    assert not any(copies.handed_over for copies in placement.copies.values())


def test_a_cold_worker_gets_nothing_until_it_is_warm_and_then_its_share() -> None:
    world = World(tasks_of(a=8), RULES, 1_000_000)
    world.nodes["n0"] = Node("n0")
    world.rebalance()
    world.nodes["n1"], world.nodes["n2"] = Node("n1"), Node("n2")
    placement = world.rebalance()
    assert len(placement.owners["n0"]) == 8
    assert [len(placement.copies[name].warm_ups) for name in ("n1", "n2")] == [2, 2]
    assert world.settle() <= 3
    assert sorted(len(owned) for owned in world.placement.owners.values()) == [2, 3, 3]
    world.check_settled()


def test_a_dead_owners_tasks_go_to_their_standbys_and_to_nobody_else() -> None:
    world = World(tasks_of(a=9), RULES, 1_000_000)
    world.nodes.update({name: Node(name) for name in ("n0", "n1", "n2")})
    world.settle()
    copies = {name: one.standbys for name, one in world.placement.copies.items()}
    dead = set(world.placement.owners["n0"])
    kept = {name: set(world.placement.owners[name]) for name in ("n1", "n2")}
    del world.nodes["n0"]
    placement = world.rebalance()
    for name in ("n1", "n2"):
        assert set(placement.owners[name]) == kept[name] | (dead & copies[name])


def test_standbys_are_spread() -> None:
    world = World(tasks_of(a=12), PlacementRules(2, ACCEPTABLE, 8), 5_000)
    world.nodes.update({f"n{number}": Node(f"n{number}") for number in range(4)})
    world.settle()
    assert [len(one.standbys) for one in world.placement.copies.values()] == [6, 6, 6, 6]
    before = world.placement
    world.rebalance()
    assert world.placement.copies == before.copies


def test_who_owned_a_task_once_isnt_believed() -> None:
    task = TaskId("a", 0)
    gone = Member("m0", generation=4, owned=frozenset({task}), on_disk={task: 10}, lags={task: 0}, follows=True)
    owner = Member("m1", generation=5, owned=frozenset({task}), on_disk={task: 900}, lags={task: 0}, follows=True)
    other = replace(owner, owned=frozenset({task, TaskId("a", 1)}))
    placement = place([gone, other], [task, TaskId("a", 1)], RULES)
    assert task in placement.owners["m1"]


def test_who_missed_a_generation_isnt_believed_though_the_owner_after_it_is_dead() -> None:
    task = TaskId("a", 0)
    past = Member("m0", generation=5, owned=frozenset({task}), on_disk={task: 10**6}, lags={task: 0}, follows=True)
    copy = Member("m1", generation=7, on_disk={task: 6 * 10**6}, lags={task: 0}, follows=True)
    assert place([past, copy], [task], RULES).owners == {"m0": (), "m1": (task,)}


def test_what_a_copy_says_of_itself_counts_though_the_owner_wrote_on() -> None:
    task, own = TaskId("a", 0), TaskId("a", 1)
    owner = Member("m0", generation=5, owned=frozenset({task, own}), on_disk={task: 10**6, own: 10**6}, follows=True)
    copy = Member("m1", generation=5, on_disk={task: 10**6 - 5_000}, lags={task: 3}, follows=True)
    assert place([owner, copy], [task, own], RULES).owners == {"m0": (own,), "m1": (task,)}


def test_the_judge_sees_an_assignment_that_ignores_warmth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors._core.group.placement._Placing._is_cold", lambda self, task, index: False)
    with pytest.raises(AssertionError):
        test_a_cold_worker_gets_nothing_until_it_is_warm_and_then_its_share()
    world = World(tasks_of(a=8), RULES, 1_000_000)
    world.nodes["n0"] = Node("n0")
    world.rebalance()
    world.nodes["n1"] = Node("n1")
    with pytest.raises(AssertionError):
        world.rebalance()


def test_five_hundred_tasks_of_a_hundred_members_take_few_steps() -> None:
    tasks = [TaskId(f"actor{actor}", number) for actor in range(10) for number in range(50)]
    rand = random.Random(1)
    members = [
        Member(f"m{index:03}", on_disk={task: rand.randrange(10**9) for task in rand.sample(tasks, 30)}, follows=True)
        for index in range(100)
    ]
    assert lines_run(lambda: place(members, tasks, PlacementRules(standbys=1))) < 2_500_000


def test_nobody_is_there() -> None:
    assert place([], tasks_of(a=2), RULES) == Placement()


def test_the_data_survives_the_trip_and_older_releases_read_what_they_know() -> None:
    task, other = TaskId("a", 0), TaskId("b", 3)
    member = Member(
        "m0", "w0", "http://x:1", 3, frozenset({task}), {task: 7, other: 9}, {task: 0}, follows=True, process=5
    )
    sent = encode_member_data(member)
    assert decode_member_data("m0", sent) == member
    version, instance, address, generation, actors, *_ = msgspec.msgpack.decode(sent)
    old = msgspec.msgpack.encode([version, instance, address, generation, [actor[:4] for actor in actors]])
    assert decode_member_data("m0", old) == replace(member, lags={}, follows=False, process=0)
    copies = Copies(frozenset({task, other}), frozenset({TaskId("b", 1)}), acceptable_lag=7, seen=5)
    for kept in (True, False, None):
        assert decode_member_data("m0", encode_member_data(replace(member, kept=kept))).kept is kept
    told = replace(copies, handed_over=frozenset({other}), may_keep=True, is_moving=True)
    assert decode_copies(encode_copies(told)) == told
    assert decode_copies(msgspec.msgpack.encode(msgspec.msgpack.decode(encode_copies(told))[:5])) == copies
    assert decode_copies(encode_copies(copies)) == copies
    assert decode_copies(encode_copies(Copies(seen=5))) == Copies(seen=5)
    for nothing in (None, b"", b"\xff", msgspec.msgpack.encode([2, []]), encode_copies(Copies())):
        assert decode_copies(nothing) == Copies()


def test_an_older_member_gets_tasks_at_once_and_no_copies() -> None:
    world = World(tasks_of(a=4), RULES, 1_000_000)
    world.nodes["n0"] = Node("n0")
    world.rebalance()
    world.nodes["old"] = Node("old", follows=False)
    placement = world.rebalance()
    assert len(placement.owners["old"]) == 2
    assert placement.copies["old"] == Copies()


def member_of(positions: dict[TaskId, int], name: str = "", rules: PlacementRules = RULES) -> ActorAssignor:
    return ActorAssignor(
        instance_id=name, address="", actors={"in": "a"}, on_disk=lambda: positions, rules=rules, lags=lambda: {}
    )


CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: set(range(4)))


def test_the_assignor_tells_each_member_its_copies() -> None:
    first, second = member_of(dict.fromkeys(tasks_of(a=4), 10**6), "w0"), member_of({}, "w1")
    answers = first.assign(CLUSTER, {"m0": first.metadata(["in"]), "m1": second.metadata(["in"])})
    second.on_assignment(answers["m1"])
    assert answers["m0"].partitions()
    assert not answers["m1"].partitions()
    assert len(second.copies.warm_ups) == 2
    assert len(second.copies.standbys) == 2
    assert second.copies.acceptable_lag == ACCEPTABLE
    assert assign([Member("m0"), Member("m1")], tasks_of(a=4))["m1"], "without regard to warmth it had its share"


@pytest.mark.parametrize("name", ["w0", ""])
def test_a_static_member_that_lost_its_disk_is_cold_once_the_leader_knows(name: str) -> None:
    everything = dict.fromkeys(tasks_of(a=4), 10**6)
    first, leader = member_of(everything, name), member_of(everything, "w1" if name else "")
    joined = leader.assign(CLUSTER, {"m0": first.metadata(["in"]), "m1": leader.metadata(["in"])})
    first.on_assignment(joined["m0"])
    leader.on_assignment(joined["m1"])
    assert not first.unheard
    with_disk, without = member_of(everything, name), member_of({}, name)
    for again in (with_disk, without):
        # The coordinator gives a static member what the one before it had.
        again.metadata(["in"])
        again.on_assignment(joined["m0"])
    assert not with_disk.unheard
    assert len(without.unheard) == (2 if name else 0)
    heard = leader.assign(CLUSTER, {"m0": without.metadata(["in"]), "m1": leader.metadata(["in"])})
    without.on_assignment(heard["m0"])
    assert not without.unheard, "it asks once"
    assert not heard["m0"].partitions(), "the other has all of it"
    assert len(without.copies.warm_ups) == 2


def test_a_static_group_that_begins_asks_for_nothing() -> None:
    members = {f"m{number}": member_of({}, f"w{number}") for number in range(3)}
    said = {name: member.metadata(["in"]) for name, member in members.items()}
    for name, answer in members["m0"].assign(CLUSTER, said).items():
        members[name].on_assignment(answer)
        assert not members[name].unheard
