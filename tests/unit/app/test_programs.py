"""Two programs in one group: the leader keeps out whichever declares an actor otherwise, and both say so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from hypothesis import given
from hypothesis import strategies as st

from actors._core.group.members import Declared, Member, TaskId, decode_member_data, encode_member_data
from actors._core.group.placement import Copies, decode_copies, encode_copies
from actors._core.group.programs import admit
from actors._faust.disk import ask_if_unheard
from actors._kafka.consume.assignor import ActorAssignor

CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: set(range(4)))
COUNTER = Declared("counter", "in", "murmur2", ("shop--counts-changelog",))
GROWN = Declared("counter", "in", "murmur2", ("shop--counts-changelog", "shop--names-changelog"))
RENAMED = Declared("counter", "in", "murmur2", ("shop--numbers-changelog",))
COPIER = Declared("copier", "in", "murmur2", ())
OTHER = Declared("other", "other-in", "murmur2", ())


class Group:
    """Workers of several programs that join one after the other; the first of them leads."""

    def __init__(self) -> None:
        self.generation = 0
        self.workers: dict[str, ActorAssignor] = {}
        self.owners: dict[tuple[str, int], str] = {}

    def join(self, name: str, *declared: Declared, is_older: bool = False) -> dict[str, list[str]]:
        actors = {one.topic: one.actor for one in declared}
        self.workers[name] = ActorAssignor(
            instance_id="", address="", actors=actors, on_disk=dict, declared=None if is_older else declared
        )
        return self.rebalance()

    def leave(self, name: str) -> dict[str, list[str]]:
        del self.workers[name]
        return self.rebalance()

    def rebalance(self, leader: str = "") -> dict[str, list[str]]:
        """Give each worker's topics."""
        self.generation += 1
        said = {name: worker.metadata(worker._actors) for name, worker in self.workers.items()}
        answers = self.workers[leader or next(iter(self.workers))].assign(CLUSTER, said)
        self.owners = {}
        for name, worker in self.workers.items():
            worker.generation = lambda: self.generation
            answer = ConsumerProtocolMemberAssignment.decode(answers[name].encode())
            assert not self.owners.keys() & set(answer.partitions())
            self.owners.update(dict.fromkeys(answer.partitions(), name))
            worker.on_assignment(answer)
        return {name: sorted({topic for (topic, _), owner in self.owners.items() if owner == name}) for name in said}


def test_a_program_that_gives_the_input_to_another_actor_gets_nothing_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group()
    group.join("ours", COUNTER)
    assert group.join("foreign", COPIER) == {"ours": ["in"], "foreign": []}
    assert len(group.owners) == 4
    leader, told = (record.getMessage() for record in caplog.records)
    assert "member 'foreign' of the group" in leader
    difference = "topic in is the input of actor copier in the program that is refused, and of actor counter in the one"
    assert difference in leader
    assert difference in told
    assert "this worker gets no partitions of topic in" in told
    assert "id of its own" in told
    for _ in range(3):
        group.rebalance()
    assert len(caplog.records) == 2, "each says it once"


@pytest.mark.parametrize("leader", ["ours", "foreign"])
def test_whoever_leads_the_program_that_owns_partitions_stays(leader: str) -> None:
    group = Group()
    group.join("ours", COUNTER)
    group.join("foreign", COPIER)
    group.join("foreign-2", COPIER)
    assert group.rebalance(leader) == {"ours": ["in"], "foreign": [], "foreign-2": []}
    # A worker more of ours takes part, though it has owned nothing.
    assert group.join("more", COUNTER)["more"] == ["in"]


def test_an_actor_with_another_input_or_partitioner_is_another_one() -> None:
    for foreign in (Declared("counter", "in2", "murmur2", COUNTER.changelogs), Declared("counter", "in", "crc32", ())):
        group = Group()
        group.join("ours", COUNTER)
        assert group.join("foreign", foreign)["foreign"] == []


def test_actors_that_both_declare_alike_are_shared() -> None:
    group = Group()
    group.join("ours", COUNTER, OTHER)
    assert group.join("foreign", COPIER, OTHER) == {"ours": ["in", "other-in"], "foreign": ["other-in"]}


def test_a_rolling_deploy_that_adds_a_store_or_an_actor_goes_on() -> None:
    group = Group()
    group.join("old-1", COUNTER)
    group.join("old-2", COUNTER)
    assert group.join("new-1", GROWN, OTHER) == {"old-1": ["in"], "old-2": ["in"], "new-1": ["in", "other-in"]}
    assert group.leave("old-1")["new-1"] == ["in", "other-in"]
    assert group.join("new-2", GROWN, OTHER)["new-2"] == ["in", "other-in"]
    assert group.leave("old-2") == {"new-1": ["in", "other-in"], "new-2": ["in", "other-in"]}
    # And back, as in one that removes a store.
    assert group.join("old-3", COUNTER)["old-3"] == ["in"]


def test_a_program_with_another_store_in_the_place_of_one_waits_until_the_former_has_gone() -> None:
    group = Group()
    group.join("old", COUNTER)
    assert group.join("new", RENAMED) == {"old": ["in"], "new": []}
    assert group.leave("old") == {"new": ["in"]}
    # Its start didn't compare it with this program, which came to the group later or at the same time.
    assert group.workers["new"].contested == {"in"}


def test_a_static_member_that_comes_back_with_the_right_program_asks_for_a_rebalance() -> None:
    def static(declared: Declared) -> ActorAssignor:
        return ActorAssignor(
            instance_id="w1", address="", actors={"in": declared.actor}, on_disk=dict, declared=[declared]
        )

    group = Group()
    group.join("ours", COUNTER)
    foreign = group.workers["w1"] = static(COPIER)
    assert group.rebalance()["w1"] == []
    asked: list[str] = []
    ask_if_unheard([], foreign, lambda: asked.append("foreign"))
    # The group gives it what the process before it was given, without the leader.
    mended = static(COUNTER)
    mended.on_assignment(ConsumerProtocolMemberAssignment(0, [], encode_copies(foreign.copies)))
    ask_if_unheard([], mended, lambda: asked.append("mended"))
    assert asked == ["mended"]
    group.workers["w1"] = mended
    assert group.rebalance()["w1"] == ["in"]


def test_a_worker_of_an_earlier_release_takes_part() -> None:
    group = Group()
    group.join("old", COUNTER, is_older=True)
    assert group.join("new", GROWN) == {"old": ["in"], "new": ["in"]}
    assert group.rebalance("new") == {"old": ["in"], "new": ["in"]}
    assert group.join("older", COUNTER, is_older=True)["older"] == ["in"]


def test_before_anybody_owns_the_larger_program_goes_first() -> None:
    members = [
        Member(name, declared=(declared,)) for name, declared in zip("abc", (COPIER, COUNTER, COUNTER), strict=True)
    ]
    assert admit(members).refused.keys() == {"a"}
    members = [Member(name, declared=(declared,)) for name, declared in zip("ab", (COUNTER, COPIER), strict=True)]
    assert admit(members).refused.keys() == {"a"}, "of equal ones the first by name"
    assert admit(members[::-1]).refused.keys() == {"a"}


DECLARED = st.builds(
    Declared,
    st.sampled_from("ab"),
    st.sampled_from("xy"),
    st.sampled_from(["murmur2", "crc32"]),
    st.lists(st.sampled_from(["s", "t"]), unique=True).map(lambda names: tuple(sorted(names))),
)


@given(
    st.lists(
        st.tuples(st.lists(DECLARED, unique_by=(lambda one: one.actor, lambda one: one.topic)), st.integers(-1, 3)),
        max_size=5,
    )
)
def test_those_that_are_admitted_agree_and_each_topic_has_somebody(found: list[tuple[list[Declared], int]]) -> None:
    members = [
        Member(
            str(number),
            generation=generation,
            owned=frozenset(TaskId(one.actor, 0) for one in declared),
            declared=tuple(declared),
        )
        for number, (declared, generation) in enumerate(found)
    ]
    admission = admit(members)
    actors: dict[str, set[str]] = {}
    topics: dict[str, set[str]] = {}
    for member in members:
        for one in member.declared or ():
            if one.topic not in admission.refused.get(member.member_id, {}):
                assert admission.actors[one.topic] == one.actor
                actors.setdefault(one.topic, set()).add(one.actor)
                topics.setdefault(one.actor, set()).add(one.topic)
    assert all(len(names) == 1 for names in (*actors.values(), *topics.values()))
    if any(member.declared for member in members):
        assert actors
    assert admit(members[::-1]) == admission


def test_what_a_member_declares_and_is_told_goes_through_the_protocol() -> None:
    said = Member("m", declared=(GROWN, OTHER))
    assert decode_member_data("m", encode_member_data(said)) == said
    assert decode_member_data("m", encode_member_data(Member("m"))).declared is None
    told = Copies(refused={"in": "why"})
    assert decode_copies(encode_copies(told)) == told
