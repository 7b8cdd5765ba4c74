"""What an operator reads in a worker's error: what kind of damage it is about, and what is to be done."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ERRORS = {
    "impostor": r"another program has run under the id \S+:",
    "grow": r"was (given more|re-created with fewer) partitions than|and its key belongs in partition|"
    r"partitions, its actor's input has|was partitioned for \d+, and topic",
    "input": r"the input topic was re-created: the last commit was made on the topic with the id \S+, now the topic "
    r"has the id \S+ ",
    "swap": r"is of store \S+, partition \d+ \(app .* and belongs to store \S+, partition \d+ \(app .*: its folder was "
    r"moved or copied here",
    "changelog": r"the changelog was the topic with the id \S+, and is the topic with the id \S+ now|with the id \S+, "
    r"and was deleted|with the id \S+, isn't on the broker: it was deleted",
    "reset": r"was set by hand or by another program|the group has no committed offset any more|below the state's "
    r"input offset|there is state up to input offset \d+, and no committed offset|is beyond the input's end",
}
"""What an error says, both identities included, by the kind of damage that it is right for."""
PLACES = r"kafka-consumer-groups.sh (--bootstrap-server BROKER --group \S+ --topic \S+ --reset-offsets --execute "
PLACES += r"--to-offset \d+)"
GIVES_UP = r"(?i)(to give the state up as well|if the state is to be given up too), .*?(too$|; otherwise)"
"""The choice that this operator never takes."""


class UnknownErrorError(AssertionError):
    """An error is none of those that a damage of names is to cause, or doesn't say what to do."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What an error offers.

    Attributes:
        damage: the kind of damage that it tells of.
        settings: for one start, by the names that they have in the environment, with the values to choose from.
        tool: arguments of `kafka-consumer-groups.sh`, before a start with MOVED_OFFSET=accept.
        partitions: how many the input has now, if the state is to be carried over; -1 if the error doesn't know.
        anew: whether the input is to be created again with as many partitions as the state has.
        path: the folder to move back or to delete.
        forgets: the offsets from and to which a store may lose what was written, if an older one is restored.
        has_no_copy: another worker is to be started in the place of this one.
        is_own_id: the program is to be given another id.
    """

    damage: str
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tool: tuple[str, ...] = ()
    partitions: int = 0
    anew: bool = False
    path: str = ""
    forgets: tuple[int, int] | None = None
    has_no_copy: bool = False
    is_own_id: bool = False


def read_remedy(text: str) -> Remedy:
    """Read what an error is about, and what it offers.

    Raises:
        UnknownErrorError: it isn't one of the errors of names, or offers nothing.
    """
    damage = next((kind for kind, pattern in ERRORS.items() if re.search(pattern, text)), None)
    if damage is None:
        raise UnknownErrorError(text)
    offered: dict[str, list[str]] = {}
    for name, value in re.findall(r'\b([a-z_]+)="(\w+)"', re.sub(GIVES_UP, "", text)):
        # To accept an offset helps alone if it is there.
        if name.upper() in text and (name != "moved_offset" or "If this is wanted, " in text):
            offered.setdefault(name.upper(), []).append(value)
    tool = re.search(PLACES, text)
    count = re.search(r"carry the state over to (\d+) partitions, with a new input topic and app id", text)
    count = count or re.search(r"its actor's input has (\d+): .* carry the state over", text)
    anew = re.search(r"was partitioned for .* Re-create the input with (\d+) partitions", text)
    path = re.search(r"the database at (\S+) is of .* move the folder back to where it was, or delete it", text)
    forgets = re.search(r"ends at input offset (\d+), and inputs before (\d+) are committed", text)
    remedy = Remedy(
        damage,
        {name: tuple(values) for name, values in offered.items()},
        tool=tuple(tool[1].split()) if tool and "MOVED_OFFSET=accept" in text else (),
        partitions=int(count[1]) if count else -("copy its records into a new topic for a new app id" in text),
        anew=bool(anew),
        path=path[1] if path else "",
        forgets=(int(forgets[1]), int(forgets[2])) if forgets else None,
        has_no_copy="this worker has no copy of it" in text or "another worker may have a newer one" in text,
        is_own_id='give this program an id of its own, App("ID")' in text,
    )
    if remedy == Remedy(damage, has_no_copy=remedy.has_no_copy, forgets=remedy.forgets):
        raise UnknownErrorError(f"it offers nothing: {text}")
    return remedy
