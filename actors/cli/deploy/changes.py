"""The changes that a deploy of this program would make: topics, their settings, stores, versions of state, windows.

It compares the program with the brokers and with what the leader registry has of the programs before, and changes
nothing. What a worker of the program would refuse is told in the words of the worker.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors._core.shapes import Shape, misfits
from actors._faust.startup.needs import FAUSTS, GIVEN_PARTITIONS, TopicNeed, counts, topic_needs
from actors._faust.startup.programs import windows_of
from actors._faust.startup.registry import StoreFacts, StoreRegistry
from actors._faust.startup.topic_settings import POLICY, command, misshapen
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.errors import ConfigurationError, LostChangelogError
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors._faust.setup import Setup


class Action(enum.Enum):
    """The action on a topic or a store; REFUSE: a worker of this program wouldn't start."""

    CREATE = "create"
    CONFIGURE = "configure"
    ADD = "add"
    REMOVE = "remove"
    CHANGE = "change"
    REFUSE = "refuse"


_SIGNS = {Action.CREATE: "+", Action.ADD: "+", Action.REMOVE: "-", Action.REFUSE: "!"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        action: what happens.
        kind: "topic", "store", "schema", or "app".
        name: the name of the topic, store, subject or app.
        text: what the change is.
        remedy: who makes it, or what to do; "" where the text says it.
        partitions, config: of a topic that is to be created.
    """

    action: Action
    kind: str
    name: str
    text: str
    remedy: str = ""
    partitions: int = 0
    config: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        sign = _SIGNS.get(self.action, "~")
        return f"{sign} {self.kind} {self.name}: {self.text}{f'. {self.remedy}' if self.remedy else ''}"


class _NoOwners(KafkaOwners):
    """The registry of an app that never ran: its topic isn't there."""

    async def _read_to_end(self) -> None:
        """Read nothing."""


def exit_code(changes: Sequence[Change]) -> int:
    """Return 0 if nothing is to be done, 2 if there are changes, 1 if a worker would refuse the program."""
    if any(change.action is Action.REFUSE for change in changes):
        return 1
    return 2 if changes else 0


async def plan(setup: Setup, control: ControlPlane, free: int = GIVEN_PARTITIONS) -> list[Change]:
    """Return the changes of a deploy; `free` is the partition count of new topics that may have any.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    topics, needs = Topics(setup.connection, control), topic_needs(setup)
    found = await topics.existing(need.name for need in needs)
    logs, is_known = KafkaLogs(setup.connection, control), setup.owners_topic in found
    owners = (KafkaOwners if is_known else _NoOwners)(setup.owners_topic, logs)
    known = await owners.stores()
    changes: list[Change] = []
    configs = await topics.configs(found)
    for need in needs:
        if need.name in found:
            changes += _settings(setup, need, found, configs[need.name])
        elif FAUSTS not in need.roles and not _was_deleted(setup, need.name, known):
            changes.append(_created(setup, need, needs, found, free))
    changes += _stores(setup, known)
    try:
        await StoreRegistry(setup, topics, logs, owners, setup.app.actor_clock).check()
        if all(name in found for one in setup.app.actors.values() for name in one.topic_names):
            await setup.check_topics(topics)
    except (ConfigurationError, LostChangelogError) as error:
        changes.append(Change(action=Action.REFUSE, kind="app", name=str(setup.app.conf.id), text=str(error)))
    return changes


def _was_deleted(setup: Setup, topic: str, known: Mapping[str, StoreRecord]) -> bool:
    """Return whether it is a changelog that had state: whether to begin without is an operator's choice at a start."""
    names = {setup.changelog_topic(store.name) for one in setup.app.actors.values() for store in one.stores}
    return topic in names and any(record.changelog == topic and not record.is_given_up for record in known.values())


def _created(
    setup: Setup, need: TopicNeed, needs: Sequence[TopicNeed], found: Mapping[str, TopicInfo], free: int
) -> Change:
    partitions = counts(needs, free, found)[need.name]
    settings = " ".join(f"{key}={value}" for key, value in need.config.items())
    is_workers = need.is_made and setup.app.actor_options.create_topics
    return Change(
        action=Action.CREATE,
        kind="topic",
        name=need.name,
        text=f"{counted(partitions, 'partition')}{f', {settings}' if settings else ''} ({'; '.join(need.roles)})",
        remedy="A worker makes it, or `topics create`" if is_workers else "`topics create` makes it",
        partitions=partitions,
        config=need.config,
    )


def _settings(
    setup: Setup, need: TopicNeed, found: Mapping[str, TopicInfo], config: Mapping[str, str]
) -> Iterator[Change]:
    faults = misshapen(need, found, config)
    for fault in faults if need.keeps else ():
        text = f"{fault.what}: {fault.why}"
        yield Change(action=Action.REFUSE, kind="topic", name=need.name, text=text, remedy=fault.remedy)
    is_other = bool(faults) and not need.keeps
    differing = {
        key: value for key, value in need.config.items() if (is_other if key == POLICY else config.get(key) != value)
    }
    if differing:
        change = ",".join(f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in differing.items())
        yield Change(
            action=Action.CONFIGURE,
            kind="topic",
            name=need.name,
            text="; ".join(f"{key} is {config.get(key, 'not set')}, not {value}" for key, value in differing.items()),
            remedy=f"No worker changes it: {command(setup.connection.bootstrap[0], change, [need.name])}",
        )


def _stores(setup: Setup, known: Mapping[str, StoreRecord]) -> Iterator[Change]:
    windows, used = windows_of(setup.app), set()
    for definition in setup.app.actors.values():
        for store in definition.stores:
            topic = setup.changelog_topic(store.name)
            used.add(topic)
            record = StoreFacts.of(known, store.name, topic, None).record
            if record is None:
                text = f"new, of actor {definition.name}: it begins empty, in topic {topic}"
                yield Change(action=Action.ADD, kind="store", name=store.name, text=text)
                continue
            yield from _renamed(store.name, topic, record)
            yield from _values(setup, store.name, record)
            now = windows.get(store.name, "")
            if record.windows and record.windows != now:
                text = f"windows: {record.windows} become {now or 'a store without windows'}"
                yield _change(store.name, text, "Windows that are closed stay closed")
    for name, record in known.items():
        if record.changelog not in used and not record.is_given_up:
            text = f"no actor of this program has it; its state stays in topic {record.changelog}"
            remedy = f"If nobody needs it: `faust -A APP state forget {name}`"
            yield Change(action=Action.REMOVE, kind="store", name=name, text=text, remedy=remedy)


def _change(store: str, text: str, remedy: str = "") -> Change:
    return Change(action=Action.CHANGE, kind="store", name=store, text=text, remedy=remedy)


def _renamed(store: str, topic: str, record: StoreRecord) -> Iterator[Change]:
    if record.changelog != topic:
        yield _change(store, f"its changelog becomes {topic}, and was {record.changelog}")
    elif record.store != store:
        yield _change(store, f"renamed, it was {record.store}; the changelog stays {topic}")


def _values(setup: Setup, store: str, record: StoreRecord) -> Iterator[Change]:
    """Compare versions and shapes. Shapes that don't fit are refused by the registry's own check."""
    value = setup.app.value_types[store]
    if record.version < value.version:
        yield _change(
            store,
            f"version {record.version} of its values becomes {value.version}: they are upgraded when they are read",
            f"A program of version {record.version} stops at what this one writes",
        )
    elif record.version > value.version:
        text = f"a program has written version {record.version} of its values, this one knows up to {value.version}"
        yield _change(store, text, "A partition stops where it meets one")
    elif _is_wider(value.shape(), record.shapes):
        yield _change(store, f"the type of its values (version {value.version}) has further fields, or is wider")


def _is_wider(shape: Shape | None, kept: Sequence[Shape]) -> bool:
    return shape is not None and bool(kept) and shape not in kept and not misfits(kept[-1], shape)
