"""Which members of the group run the same program, judged by their declarations.

Partitions are assigned per actor, so members are compared per actor. Two declarations of an actor match if its name,
its input and the partitioner of its keys are the same, and one has all stores of the other: a rolling deploy adds
stores, or removes some. Members whose declarations don't match would handle each other's records.

Of declarations that don't match, the one counts whose members owned partitions of the actor in the newest generation;
if no member did, the one of more members. Members of a release that declares nothing take part in everything.
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
    """The topics that each member may own.

    Attributes:
        refused: by member id, the topics of which it gets no partitions, with what differs, in its own words.
        actors: the actor of each topic that is declared.
    """

    refused: Mapping[str, Mapping[str, str]]
    actors: Mapping[str, str]

    def topics_of(self, member: Member, subscription: Iterable[str]) -> list[str]:
        """Return the topics of which a member may own partitions, of those that it subscribes to."""
        refused = self.refused.get(member.member_id, {})
        declared = None if member.declared is None else {topic for one in member.declared for topic in one.topics}
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
        others = (*(other for topic in one.topics for other in by_topic[topic]), *by_actor[one.actor])
        difference = next(filter(None, (_difference(one, other) for other in others)), "")
        if difference:
            for member in declaring[one]:
                refused[member.member_id].update(dict.fromkeys(one.topics, difference))
        else:
            for topic in one.topics:
                by_topic[topic].append(one)
            by_actor[one.actor].append(one)
    return Admission(dict(refused), {topic: found[0].actor for topic, found in by_topic.items() if found})


def words_of_refusal(member_id: str, refused: Mapping[str, str], host: str = "") -> str:
    """Return, for people, which member runs another program, and what follows from it."""
    where = f" on host {host[:200]!a}" if host else ""
    what = "; ".join(refused[topic] for topic in sorted(refused)[:MAX_SHOWN])
    topics = ", ".join(sorted(refused)[:MAX_SHOWN])
    return (
        f"member {member_id[:200]!a} of the group{where} runs another program under the app's id: {what}: it gets no "
        f"partitions of topic {topics}"
    )


def _difference(one: Declared, other: Declared) -> str:
    """Return the difference of a member's declaration from the others', "" if there is none."""
    if one.actor != other.actor:
        topic = next(iter(set(one.topics) & set(other.topics)), one.topic)
        return f"topic {topic} is the input of actor {one.actor} {_REFUSED}, and of actor {other.actor} {_RUNS}"
    if one.topics != other.topics:
        mine, theirs = ", ".join(one.topics[:MAX_SHOWN]), ", ".join(other.topics[:MAX_SHOWN])
        return f"the input of actor {one.actor} is topic {mine} {_REFUSED}, and topic {theirs} {_RUNS}"
    if one.partitioner != other.partitioner:
        return f"topic {one.topic} has partitioner {one.partitioner} {_REFUSED}, and {other.partitioner} {_RUNS}"
    ours, others = set(one.changelogs), set(other.changelogs)
    if ours <= others or others <= ours:
        return ""
    return (
        f"actor {one.actor} keeps its state in {_names(ours - others)} {_REFUSED}, and in {_names(others - ours)} "
        f"{_RUNS}"
    )


def _names(changelogs: set[str]) -> str:
    shown = sorted(changelogs)[:MAX_SHOWN]
    return ", ".join(shown) + (f" and {len(changelogs) - len(shown)} more" if len(changelogs) > len(shown) else "")
