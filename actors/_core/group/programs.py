"""Which members of the group run the same program, as far as it can be told from what they declare.

Partitions are given out per actor, so members are compared per actor. Two of them declare an actor alike if its name,
its input and how producers place the keys are the same, and one of them has all of the stores of the other: a rolling
deploy adds stores, or removes some. Otherwise one of them would handle records that are the other's.

Of declarations that differ, the one stays whose members owned partitions of the actor in the newest generation; before
anybody did, the one of more members. Members of a release that declares nothing take part in everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors._core.group.members import NO_GENERATION, Declared, Member

MAX_SHOWN = 5
"""How many names an explanation has."""
_REFUSED = "in the program that is refused"
_RUNS = "in the one that runs"


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may own what.

    Attributes:
        refused: by member id, the topics of which it gets no partitions, with what differs, in its own words.
        actors: the actor of each topic that is declared.
    """

    refused: Mapping[str, Mapping[str, str]]
    actors: Mapping[str, str]

    def topics_of(self, member: Member, subscription: Iterable[str]) -> list[str]:
        """Give the topics of which a member may own partitions, of those that it subscribes to."""
        refused = self.refused.get(member.member_id, {})
        declared = None if member.declared is None else {one.topic for one in member.declared}
        return [topic for topic in subscription if topic not in refused and (declared is None or topic in declared)]


def admit(members: Sequence[Member]) -> Admission:
    """Compare what the members declare. The same for every order of members."""
    declaring: dict[Declared, list[Member]] = defaultdict(list)
    newest: dict[Declared, int] = {}
    for member in members:
        owned = {task.actor for task in member.owned}
        for one in set(member.declared or ()):
            declaring[one].append(member)
            generation = member.generation if one.actor in owned else NO_GENERATION
            newest[one] = max(newest.get(one, generation), generation)
    by_topic: dict[str, list[Declared]] = defaultdict(list)
    by_actor: dict[str, list[Declared]] = defaultdict(list)
    refused: dict[str, dict[str, str]] = defaultdict(dict)
    for one in sorted(declaring, key=lambda one: (-newest[one], -len(declaring[one]), one)):
        others = (*by_topic[one.topic], *by_actor[one.actor])
        difference = next(filter(None, (_difference(one, other) for other in others)), "")
        if difference:
            for member in declaring[one]:
                refused[member.member_id][one.topic] = difference
        else:
            by_topic[one.topic].append(one)
            by_actor[one.actor].append(one)
    return Admission(dict(refused), {topic: found[0].actor for topic, found in by_topic.items() if found})


def words_of_refusal(member_id: str, refused: Mapping[str, str], host: str = "") -> str:
    """Say for a person which member runs another program, and what follows from it."""
    where = f" on host {host[:200]!a}" if host else ""
    what = "; ".join(refused[topic] for topic in sorted(refused)[:MAX_SHOWN])
    topics = ", ".join(sorted(refused)[:MAX_SHOWN])
    return (
        f"member {member_id[:200]!a} of the group{where} runs another program under the app's id: {what}: it gets no "
        f"partitions of topic {topics}"
    )


def _difference(one: Declared, other: Declared) -> str:
    """Say how a member's declaration differs from the others', "" if it doesn't."""
    if one.actor != other.actor:
        return f"topic {one.topic} is the input of actor {one.actor} {_REFUSED}, and of actor {other.actor} {_RUNS}"
    if one.topic != other.topic:
        return f"the input of actor {one.actor} is topic {one.topic} {_REFUSED}, and topic {other.topic} {_RUNS}"
    if one.partitioner != other.partitioner:
        return f"topic {one.topic} has partitioner {one.partitioner} {_REFUSED}, and {other.partitioner} {_RUNS}"
    mine, theirs = set(one.changelogs), set(other.changelogs)
    if mine <= theirs or theirs <= mine:
        return ""
    return (
        f"actor {one.actor} keeps its state in {_names(mine - theirs)} {_REFUSED}, and in {_names(theirs - mine)} "
        f"{_RUNS}"
    )


def _names(changelogs: set[str]) -> str:
    shown = sorted(changelogs)[:MAX_SHOWN]
    return ", ".join(shown) + (f" and {len(changelogs) - len(shown)} more" if len(changelogs) > len(shown) else "")
