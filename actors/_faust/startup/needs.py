"""An app's needs of its cluster: topics, with partitions and settings, and permissions. They follow from the program.

`faust -A APP topics` shows it; a worker's start compares it with what there is, and names all that is missing at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from actors._core.logs import escaping
from actors._faust.inputs import REPARTITION_CONFIG, repartitions
from actors._kafka.admin.broker_time import BROKER_TIME_CONFIG
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.grants import allows, missing_permissions
from actors._kafka.admin.topics import Topics
from actors._kafka.permissions import PRINCIPAL, Operation, Permission, Resource, acl_commands, on_topic
from actors.declare.host import table_changelog
from actors.declare.publishing import published_stores, topic_config_of
from actors.errors import ConfigurationError
from actors.runtime.requests.requests import REPLY_CONFIG, REPLY_PARTITIONS
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors._faust.setup import Setup

logger = escaping(logging.getLogger(__name__))

_READ, _WRITE, _CONFIGS = Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS
FAUSTS = "of Faust's agents and tables"
"""The role of topics that Faust itself makes."""
GIVEN_PARTITIONS = 8
"""The partition count that is printed for inputs and outputs unless another one is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNeed:
    """A topic that an app needs.

    Attributes:
        name: the topic's.
        roles: what the app has it for, for people.
        operations: what the workers' user has to be allowed to do with it.
        partitions: how many it has; None where that is up to the operator, or as many as `like` has.
        like: the topic that has as many partitions; "" where it is free.
        kept_like: a changelog that goes before `like` once it is there: state keeps its partitions, and the source of a
            repartition topic may have got more.
        config: the settings that it is made with.
        is_made: whether a worker makes it if it is missing.
        is_output: whether it is declared, and nothing else is known of its use.
        optional: those of the operations that only handlers need which ask questions.
        has_timers: whether timers may use its records' timestamps.
        keeps: whether workers keep state or the registry in it: its number of partitions matters.
    """

    name: str
    roles: tuple[str, ...]
    operations: frozenset[Operation]
    partitions: int | None = None
    like: str = ""
    kept_like: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    is_made: bool = False
    is_output: bool = False
    optional: frozenset[Operation] = frozenset()
    has_timers: bool = False
    keeps: bool = False


class _Needs(dict[str, TopicNeed]):
    """Needs by topic; a topic with several uses has the needs of all."""

    def add(self, name: str, role: str, *operations: Operation, **more: Any) -> None:
        allowed = frozenset(operations)
        before = self.get(name)
        if before is None:
            self[name] = TopicNeed(name=name, roles=(role,), operations=allowed, **more)
        else:
            self[name] = replace(before, roles=(*before.roles, role), operations=before.operations | allowed, **more)


def topic_needs(setup: Setup) -> list[TopicNeed]:
    """Return the topics that an app needs: inputs, what is made for it, and what else it declares."""
    needs = _Needs()
    for definition in setup.app.actors.values():
        for name in definition.topic_names:
            has_timers = definition.timers is not None
            needs.add(name, f"input of actor {definition.name}", _READ, _CONFIGS, has_timers=has_timers)
    owners = {made: actor for actor in setup.app.actors.values() for made in actor.sources}
    for name, like in repartitions(setup.app).items():
        kept = [setup.changelog_topic(store.name) for store in owners[name].stores[:1]]
        made = {"like": like, "kept_like": "".join(kept), "config": REPARTITION_CONFIG, "is_made": True}
        needs.add(name, "records by their new key", _WRITE, Operation.DELETE, **made)
    _add_own(setup, needs)
    for name, extension in setup.app.extensions.items():
        for topic in extension.reads.values():
            needs.add(topic, f"read by {name}", _READ, _CONFIGS)
    _add_declared(setup, needs)
    return list(needs.values())


def _add_own(setup: Setup, needs: _Needs) -> None:
    app, kept, windowed = setup.app, setup.changelog_settings.topic_config(), setup.kept_ms()
    for definition in app.actors.values():
        for store in definition.stores:
            role, like = f"changelog of store {store.name}", definition.topic_name
            changelog = setup.changelog_topic(store.name)
            config = setup.changelog_settings.topic_config(windowed.get(changelog))
            needs.add(changelog, role, _READ, _WRITE, _CONFIGS, like=like, config=config, is_made=True, keeps=True)
    if app.actors:
        config = {**kept, **BROKER_TIME_CONFIG}
        owners = "leader registry"
        more = {"partitions": 1, "config": config, "is_made": True, "keeps": True}
        needs.add(setup.owners_topic, owners, _READ, _WRITE, _CONFIGS, **more)
    for name, (store, definition) in published_stores(app).items():
        size = {"partitions": store.publish.partitions} if store.publish.partitions else {"like": definition.topic_name}
        config = topic_config_of(setup.changelog_settings, store)
        needs.add(name, f"read model of store {store.name}", _WRITE, _CONFIGS, config=config, is_made=True, **size)
    first = {app.actors[name].topic_name for name in app.first_messages}
    for name, partitions in setup.plain().items():
        is_letters = name == setup.dead_letter_topic
        role, allowed = ("dead letters", [_WRITE, _CONFIGS]) if is_letters else ("made for its actor", [])
        if name in first:
            allowed = [_WRITE]
        needs.add(name, role, *allowed, partitions=partitions, is_made=True)
    if setup.answers:
        replies = setup.reply_topic
        more = {"partitions": REPLY_PARTITIONS, "config": REPLY_CONFIG, "optional": frozenset((_READ,))}
        needs.add(replies, "answers to questions", _READ, _WRITE, _CONFIGS, is_made=True, **more)
        for definition in app.actors.values():
            if definition.answers is not None:
                needs.add(definition.topic_name, "questions to it", _WRITE, optional=frozenset((_WRITE,)))


def _add_declared(setup: Setup, needs: _Needs) -> None:
    app = setup.app
    for view in app.views:
        compact = {} if view.topic in needs else {"config": {"cleanup.policy": "compact"}}
        needs.add(view.topic, "read by a view", _READ, _CONFIGS, **compact)
    of_faust = {str(name) for agent in app.agents.values() for name in getattr(agent.channel, "topics", None) or ()}
    of_faust |= {table_changelog(app, table) for table in app.tables}
    for topic in app.declared_topics:
        if len(topic.topics) != 1:
            continue
        name = str(topic.get_topic_name())
        if name in of_faust:
            needs.add(name, FAUSTS, _READ, _CONFIGS)
        elif name not in needs:
            needs.add(name, "output", _WRITE, _CONFIGS, is_output=True)
        elif _CONFIGS not in needs[name].operations:
            needs.add(name, "output", _CONFIGS)


def counts(
    needs: Iterable[TopicNeed], free: int = GIVEN_PARTITIONS, existing: Mapping[str, TopicInfo] | None = None
) -> dict[str, int]:
    """Return how many partitions each topic is made with, where those that are free have so many."""
    known, found = {need.name: need for need in needs}, existing or {}

    def count(need: TopicNeed) -> int:
        like = next((topic for topic in (need.kept_like, need.like) if topic in found), "")
        if need.partitions or like:
            return need.partitions or found[like].partitions
        return count(known[need.like]) if need.like in known else free

    return {name: count(need) for name, need in known.items()}


async def ensure_repartitions(
    topics: Topics, needs: Iterable[TopicNeed], replication_factor: int
) -> dict[str, TopicInfo]:
    """Make the missing repartition topics whose sources are there, and return all."""
    made = [need for need in needs if need.config is REPARTITION_CONFIG]
    found = await topics.existing({topic for need in made for topic in (need.like, need.kept_like) if topic})
    wanted = counts((need for need in made if need.like in found), existing=found)
    return await topics.ensure_plain(wanted, replication_factor, REPARTITION_CONFIG)


def permissions(setup: Setup, needs: Iterable[TopicNeed]) -> list[Permission]:
    found = [one for need in needs for one in on_topic(need.name, *need.operations)]
    groups = [group for extension in setup.app.extensions.values() for group in extension.reads]
    found.extend(Permission(Resource.GROUP.value, group, _READ) for group in groups)
    if setup.app.actors:
        found.append(Permission(Resource.GROUP.value, setup.group, _READ))
        found.append(Permission(Resource.TRANSACTIONAL_ID.value, f"{setup.app.conf.id}:", _WRITE))
    return sorted(found)


def principal_of(setup: Setup) -> str:
    """Return the workers' user as access lists name it, as far as the settings have it."""
    # Commands that are pasted must not grant anything to everybody: settings without credentials name nobody.
    return (setup.connection.principal if setup.connection.security else "") or PRINCIPAL


async def check_needs(setup: Setup, control: ControlPlane, topics: Topics, needs: Sequence[TopicNeed]) -> None:
    """Compare what the app needs with what it has, before anything is used.

    Raises:
        ConfigurationError: permissions are missing, or topics that no worker may make; all of them are named.
        BrokerUnavailableError: no broker answers.
    """
    problems = []
    lacks = await missing_needs(setup, control, topics, needs)
    missing, absent = lacks.permissions, lacks.topics
    if lacks.spared:
        logger.warning("%s", spared_text(lacks.spared))
    if missing:
        commands = acl_commands(missing, bootstrap=setup.connection.bootstrap[0], principal=principal_of(setup))
        problems.append(
            f"the workers' user ({principal_of(setup)}) lacks {len(missing)} permissions: "
            f"{', '.join(map(str, missing))}. Grant them: {'; '.join(commands)}"
        )
    if absent and not setup.app.actor_options.create_topics:
        named = ", ".join(f"{need.name} ({'; '.join(need.roles)})" for need in absent)
        # In front: the commands go on to the end of the line.
        problems.insert(
            0,
            f"create_topics=False, and the broker lacks {counted(len(absent), 'topic')}: {named}. `faust -A APP topics "
            "--format kafka-topics` prints the commands that create them",
        )
    if problems:
        raise ConfigurationError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """The needs that the cluster doesn't meet.

    Attributes:
        permissions: those without which it can't run.
        spared: those that only some handlers need.
        topics: the topics that aren't on the broker.
    """

    permissions: Sequence[Permission]
    spared: Sequence[Permission]
    topics: Sequence[TopicNeed]


def spared_text(spared: Iterable[Permission]) -> str:
    """Return a line about permissions without which only some handlers fail."""
    return f"the workers' user lacks {', '.join(map(str, spared))}: a handler that sends or asks there would fail"


async def missing_needs(setup: Setup, control: ControlPlane, topics: Topics, needs: Sequence[TopicNeed]) -> Lacks:
    """Return the needs that the cluster doesn't meet. Changes nothing.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    ids = [f"{setup.app.conf.id}:{actor}:0" for actor in setup.app.actors]
    wanted = permissions(setup, needs)
    missing, granted = await missing_permissions(control, wanted, group=setup.group, transactional_ids=ids)
    dispensable = {
        one for need in needs for one in on_topic(need.name, *need.optional, *([_WRITE] * _is_only_read(need, granted)))
    }
    spared = [one for one in missing if one in dispensable]
    missing = [one for one in missing if one not in dispensable]
    absent = [need for need in needs if not granted.get(need.name, (0, True))[1]]
    made = [need.name for need in absent if need.is_made]
    if made and setup.app.actor_options.create_topics:
        denied = await topics.denied(made)
        missing += [one for name in denied for one in on_topic(name, Operation.CREATE)]
    return Lacks(permissions=missing, spared=spared, topics=absent)


def _is_only_read(need: TopicNeed, granted: Mapping[str, tuple[int, bool]]) -> bool:
    """Return whether a declared topic may be there for other code to read."""
    return need.is_output and allows(granted, need.name, _READ)
