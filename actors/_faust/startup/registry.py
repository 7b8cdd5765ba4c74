"""An app's records of its stores, and the comparison with them before a worker touches a changelog.

An app has its records in its own leader registry. A worker compares them with its program and with the topics that
exist (`check`), makes the missing changelogs, and records its stores with the ids of their topics (`confirm`). A
changelog that was re-created is refused, as is another program under the app's id, or one that would leave state
behind. No other app has a changelog of the same name: see `actors.declare.names`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from actors._core.keys import split_sized
from actors._core.logs import escaping
from actors._core.shapes import Shape, misfits
from actors._core.task.takeover import LostChangelog, why_replaced
from actors._faust.startup.programs import (
    check_contents,
    check_counts,
    check_program,
    contents_of,
    windows_of,
)
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord, write_stores
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import is_denied
from actors.declare.host import table_changelog
from actors.declare.names import OPTION_STORES, cron_topic, own_prefix, plain_name
from actors.declare.values.versions import refusal
from actors.errors import BrokerUnavailableError, ConfigurationError, LostChangelogError
from actors.ports import Clock, Logs, OwnerRecord, TopicPartition
from actors.runtime.state.restore import choice
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors._faust.setup import Setup

logger = escaping(logging.getLogger(__name__))

_Denied = Callable[[str, BrokerUnavailableError], None]

KEPT_SHAPES = 20
SEEN_S = 5.0
"""How long a start looks for a changelog that its app has recorded, before it counts as deleted."""
LOOK_S = 0.25
MAX_READERS = 8


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store of the program, what is recorded of it, and the topic that exists.

    Attributes:
        name: the store's.
        changelog: its topic.
        record: that of the store, or of the one that had its changelog under another name.
        topic_id: the topic's id, "" if it doesn't exist.
        partitions: how many the topic has.
    """

    name: str
    changelog: str
    record: StoreRecord | None
    topic_id: str
    partitions: int

    @classmethod
    def of(cls, known: Mapping[str, StoreRecord], name: str, changelog: str, topic: TopicInfo | None) -> StoreFacts:
        """Gather them; `known` are the app's records."""
        record = known.get(name) or next((one for one in known.values() if one.changelog == changelog), None)
        return cls(name, changelog, record, *(("", 0) if topic is None else (str(topic.topic_id), topic.partitions)))

    @property
    def is_same(self) -> bool:
        return self.record is not None and self.record.topic_id == self.topic_id

    @property
    def recorded_id(self) -> str:
        """The id of the topic that has the store's state, "" if there is no state that would be missed."""
        record = self.record
        return "" if record is None or record.changelog != self.changelog or record.is_given_up else record.topic_id

    @property
    def lost(self) -> str | None:
        """Why the store would begin without its state, None if it wouldn't."""
        if self.recorded_id in ("", self.topic_id):
            return None
        if self.topic_id:
            return why_replaced(self.recorded_id, self.topic_id)
        return f"it was the changelog of store {self.name}, with the id {self.recorded_id}, and was deleted"


class StoreRegistry:
    """The records of an app's stores, for the start of one worker: `check`, make the changelogs, `confirm`."""

    def __init__(self, setup: Setup, topics: Topics, logs: Logs, owners: KafkaOwners, clock: Clock) -> None:
        self._setup = setup
        self._app = setup.app
        self._topics = topics
        self._logs = logs
        self._owners = owners
        self._clock = clock
        self._windows, self._contents = windows_of(setup.app), contents_of(setup.app)
        self._changelogs = {
            store.name: setup.changelog_topic(store.name)
            for definition in setup.app.actors.values()
            for store in definition.stores
        }

    async def check(self) -> None:
        """Compare the program with all that is recorded of the app; write nothing.

        Raises:
            ConfigurationError: this is another program than the one that has run under the app's id; values have
                another shape than those that are kept; a store is gone, or parked messages, timers or effects wait for
                an actor that isn't declared with them any more.
            LostChangelogError: a changelog was deleted, and created again or not, and no operator has chosen.
        """
        self._check_names()
        known = await self._owners.stores()
        owners = await self._owners.all()
        check_program(self._app, owners)
        stores = await self._facts(known)
        for store in stores:
            if store.record is not None and store.is_same:
                check_contents(store.record, self._contents[store.name])
                self._shapes(store.name, store.record)
                self._warn_older(store.name, store.record)
                if store.record.is_given_up:
                    text = "store %s was given up with `faust state forget`: a later program without it isn't refused"
                    logger.warning(text, store.name)
        await self._check_stranded(known)
        await self._check_gone(known, owners)
        await check_counts(self._setup, self._topics, {store.name: store.record for store in stores})
        for store in stores:
            if store.lost is not None and not self._has_choice:
                raise LostChangelogError(choice(f"topic {store.changelog}", store.lost))

    async def _facts(self, known: Mapping[str, StoreRecord]) -> list[StoreFacts]:
        """Return the program's stores that exist. A changelog that is recorded may not be seen for a moment."""
        deadline_s = asyncio.get_running_loop().time() + SEEN_S
        while True:
            topics = await self._topics.existing(self._changelogs.values())
            stores = [StoreFacts.of(known, *names, topics.get(names[1])) for names in self._changelogs.items()]
            is_missing = any(store.recorded_id and not store.topic_id for store in stores)
            if not is_missing or self._has_choice or asyncio.get_running_loop().time() >= deadline_s:
                return stores
            await asyncio.sleep(LOOK_S)

    @property
    def _has_choice(self) -> bool:
        return self._setup.lost_changelog is not LostChangelog.STOP

    async def confirm(self, changelogs: Mapping[str, TopicInfo]) -> None:
        """Record the stores with the ids of their changelogs.

        Raises:
            ConfigurationError: a topic was replaced since `check`; values have another shape than those that are kept.
        """
        known = await self._owners.stores()
        topics = sorted({*(one.changelog for one in known.values()), *(one.topic for one in await self._owners.all())})
        records = {}
        for name, topic in self._changelogs.items():
            store = StoreFacts.of(known, name, topic, changelogs[topic])
            if store.lost is not None and not self._has_choice:
                raise ConfigurationError(
                    f"store {name}: topic {topic} was replaced while this worker started: start the worker again"
                )
            record, former = self._record(store, topics), known.get(name)
            if former is None or msgspec.structs.replace(former, at_ms=record.at_ms) != record:
                records[name] = record
        if records:
            await self._write(records)
        self._setup.recorded = {**known, **records}

    def _record(self, store: StoreFacts, topics: Sequence[str]) -> StoreRecord:
        """Return the record of a store that uses a changelog; `topics` are those that the app has used so far."""
        name, value = store.name, self._app.value_types[store.name]
        before = None if store.record is None or store.record.changelog != store.changelog else store.record
        version, shapes, former = value.version, _newest(value.shape()), dict[int, list[Any]]()
        if before is not None and (store.is_same or self._setup.lost_changelog.restores):
            # What is written back to another topic are values of those shapes.
            version, former, shapes = max(before.version, version), before.former, self._shapes(name, before)
            if version > before.version:
                former = {**former, before.version: before.shapes}
            if version > value.version and value.type is not bytes:
                # Before a write of any key, its value is looked at: it may be of the newer version.
                self._app.stores[name].refuse_newer = refusal(value.version, f"store {name}")
        return StoreRecord(
            store=name,
            changelog=store.changelog,
            at_ms=self._clock.wall_ms(),
            topic_id=store.topic_id,
            version=version,
            shapes=shapes,
            former=former,
            came_after=[*topics] if before is None else before.came_after,
            is_given_up=before is not None and store.is_same and before.is_given_up,
            partitions=store.partitions,
            windows=self._windows.get(name, ""),
            contents=self._contents[name],
        )

    async def _write(self, records: Mapping[str, StoreRecord]) -> None:
        await write_stores(self._setup.connection, self._setup.owners_topic, records)

    def _check_names(self) -> None:
        app, named = self._app.conf.id, self._app.actor_options.changelogs
        for store, topic in named.items():
            if store not in self._app.stores:
                raise ConfigurationError(f"changelogs={{{store!r}: …}}: the app has no store of that name")
            if not topic.startswith(own_prefix(app)):
                raise ConfigurationError(
                    f"changelogs={{{store!r}: {topic!r}}}: the name has to begin with {own_prefix(app)}, so that no "
                    f"other app has it: write {{{store!r}: {own_prefix(app) + topic!r}}}"
                )
        changelogs, declared = [*self._changelogs.values()], self._app.declared_topics
        # A program may read a changelog, as a view; its actors may not.
        topics = {name for topic in declared for name in topic.topics}.difference(changelogs)
        topics |= {name for definition in self._app.actors.values() for name in definition.topic_names}
        tables = (table_changelog(self._app, table) for table in self._app.tables)
        uses = Counter(map(plain_name, [*changelogs, *tables, *topics]))
        for store, topic in self._changelogs.items():
            if uses[plain_name(topic)] > 1:
                raise ConfigurationError(
                    f"store {store}: its changelog {topic} is another topic of this app too, or differs from one only "
                    "in dots and underscores, and Kafka doesn't make both: give it another name with "
                    f"App(..., changelogs={{{store!r}: {f'{own_prefix(app)}{store}-state'!r}}})"
                )

    def _shapes(self, store: str, record: StoreRecord) -> list[Shape]:
        """Return the shapes that are to be recorded.

        Raises:
            ConfigurationError: values of the recorded shape would lose something, or can't be read.
        """
        value = self._app.value_types[store]
        shape, kept = value.shape(), record.shapes
        if record.version > value.version:
            # A program that was rolled back, or one that was made from it.
            kept = record.former.get(value.version, [])
        elif record.version < value.version:
            return _newest(shape) or kept
        if shape is not None and kept and shape not in kept:
            found = misfits(kept[-1], shape)
            if found:
                raise self._misfit(store, value.version, record, found)
        if shape is None or shape in kept or record.version > value.version:
            return record.shapes
        return [*record.shapes, shape][-KEPT_SHAPES:]

    def _warn_older(self, store: str, record: StoreRecord) -> None:
        value = self._app.value_types[store]
        shape = value.shape()
        if record.version > value.version:
            logger.warning(
                "store %s: a newer program has written values of version %d, this one knows up to %d: a partition "
                "where it meets one is stopped",
                store,
                record.version,
                value.version,
            )
        elif shape is not None and record.version == value.version and shape in record.shapes[:-1]:
            logger.warning(
                "store %s: a newer program has run on this state. Compared with it: %s. What this program writes "
                "doesn't have that",
                store,
                "; ".join(misfits(record.shapes[-1], shape)) or "the type is narrower",
            )

    def _misfit(self, store: str, version: int, record: StoreRecord, found: list[str]) -> ConfigurationError:
        is_state = any(isinstance(one.declared, type) and one.name == store for one in self._app.actors.values())
        version_of, upgrades = ("state_version", "state_upgrades") if is_state else ("version", "upgrades")
        remedy = (
            f"Set {version_of} to {version + 1} and give {upgrades} a function for {version} that turns the old data "
            "into the new, or undo the change of the type"
        )
        if store in self._windows or " aggregate" in self._contents[store]:
            remedy = "Undo the change of the type, or give the store another name"
        return ConfigurationError(
            f"store {store}: the type of its values doesn't fit those that are kept in topic {record.changelog}, and "
            f"its version is {version} as before: {'; '.join(found)}. The next write of a key would lose that for "
            f"good. {remedy}"
        )

    async def _check_gone(self, known: Mapping[str, StoreRecord], owners: Sequence[OwnerRecord]) -> None:
        """Refuse to begin with empty state where the changelog of a store that isn't declared any more has some.

        The timer of a cron that was removed isn't missed: nothing of it lasts but the next time.
        """
        used = set(self._changelogs.values())
        inputs = {name for one in self._app.actors.values() for name in one.topic_names}
        id = self._app.app_id
        crons = {f"{owner.actor}-timers" for owner in owners if owner.topic == cron_topic(id, owner.actor)}
        gone = {
            store: record
            for store, record in known.items()
            if self._app.actors
            and store not in crons
            and record.changelog not in used
            and not record.is_given_up
            and not self._is_option(store)
        }
        changelogs = {record.changelog: store for store, record in gone.items()}
        found = await _visible(self._topics, changelogs, _required(changelogs)) if gone else {}
        ran = {owner.actor for owner in owners}
        for store, record in gone.items():
            topic = record.changelog
            is_there = topic in found and str(found[topic].topic_id) == record.topic_id
            if not is_there or not await self._has_state(store, topic, found[topic].partitions, ran):
                continue
            if not {*used, *inputs} <= set(record.came_after):
                raise self._gone(store, topic)
            logger.warning(
                "store %s: another program of this app has it, and this one doesn't: what this one handles leaves no "
                "trace there. Its state stays in topic %s; if nobody needs it, give it up with "
                "`faust -A … state forget %s`",
                store,
                topic,
                store,
            )

    def _is_option(self, store: str) -> bool:
        """Return whether a store keeps what an actor of this program has an option for."""
        return any(store == f"{actor}-{suffix}" for actor in self._app.actors for suffix in OPTION_STORES)

    async def _has_state(self, store: str, topic: str, partitions: int, ran: Iterable[str]) -> bool:
        """Return whether a store would be missed: of an actor's timers and the like only what still waits."""
        for left in _LEFT:
            if any(store == f"{actor}-{left.suffix}" for actor in ran):
                return bool(await self._live(topic, partitions, left.letter))
        for partition in range(partitions):
            bounds = await self._logs.bounds(TopicPartition(topic, partition))
            if bounds.end > bounds.start:
                return True
        return False

    def _gone(self, store: str, topic: str) -> ConfigurationError:
        if store in self._changelogs:
            return ConfigurationError(
                f"store {store}: its state is in topic {topic}, and this program keeps it in topic "
                f"{self._changelogs[store]}: it would begin empty, and handle repeats again. Name that "
                f"topic with App(..., changelogs={{{store!r}: {topic!r}}}), or give the state up with "
                f"`faust -A … state forget {store}`"
            )
        return ConfigurationError(
            f"store {store}: no actor of this program has it any more, and its state is in topic {topic}. If it was "
            f'renamed, declare it with app.store("NEW NAME", ..., renamed_from="{store}"), or keep the name of its '
            f'actor with @app.actor(..., name="{store}") where it is the state of a class: else the program would '
            "begin with empty state, and handle repeats again. If nobody needs the state, give it up with "
            f"`faust -A … state forget {store}`, and start the worker again"
        )

    async def _check_stranded(self, known: Mapping[str, StoreRecord]) -> None:
        """Refuse to leave behind what waits in a store that an actor isn't declared with any more.

        A topic that may not be described is another app's, or nobody's, unless this app has recorded it.
        """
        gone = [
            (definition, left, self._setup.changelog_topic(f"{definition.name}-{left.suffix}"))
            for definition in self._app.actors.values()
            for left in _LEFT
            if f"{definition.name}-{left.suffix}" not in self._app.stores
        ]
        recorded = {record.changelog: store for store, record in known.items()}
        found = await _visible(self._topics, (topic for _, _, topic in gone), _required(recorded))
        for definition, left, topic in gone:
            if topic in found and (keys := await self._live(topic, found[topic].partitions, left.letter)):
                actor, count, messages = definition.name, len(keys), Counter(keys)
                raise ConfigurationError(
                    f"actor {actor}: {counted(count, left.what)} of {counted(len(messages), 'key')} "
                    f"{'waits' if count == 1 else 'wait'} in topic {topic}, and the "
                    f"actor is declared without {left.declared}: {left.harm}. Start the workers with "
                    f"{left.declared} again and "
                    f"{left.remedy.format(actor=actor)}; or give them up: stop the workers and delete the topic with "
                    f"kafka-topics.sh --bootstrap-server BROKER --delete --topic {topic}"
                )

    async def _live(self, topic: str, partitions: int, letter: bytes) -> list[bytes]:
        """Return the message key of each entry that is there, reading the whole changelog."""
        readers = asyncio.Semaphore(MAX_READERS)

        async def read(partition: int) -> list[bytes]:
            source = TopicPartition(topic, partition)
            held: set[bytes] = set()
            async with readers:
                bounds = await self._logs.bounds(source)
                async for records, _ in self._logs.read(source, bounds.start, bounds.end):
                    for record in records:
                        if record.key is not None and record.key.startswith(letter):
                            (held.discard if record.value is None else held.add)(record.key)
            return [split_sized(key[len(letter) :])[0] for key in held]

        found = await asyncio.gather(*map(read, range(partitions)))
        return [key for keys in found for key in keys]


@dataclass(frozen=True, slots=True)
class _Left:
    """Entries that may wait in an actor's own store: the store's suffix, their first letter, and words for them."""

    suffix: str
    letter: bytes
    what: str
    declared: str
    harm: str
    remedy: str


_LEFT = (
    _Left(
        "parked",
        b"p",
        "parked message",
        'on_error="park"',
        "nothing would deliver them, and later messages of their keys would overtake them",
        "resolve them with `faust -A … parked retry {actor} KEY` or `faust -A … parked drop {actor} KEY --all`",
    ),
    _Left(
        "timers",
        b"n",
        "timer",
        "timers=True",
        "none of them would fire",
        "let them fire, or cancel them with ctx.cancel",
    ),
    _Left(
        "effects",
        b"e",
        "effect",
        "its effects",
        "none of them would be called",
        "let them be called, or remove them with `faust -A … parked drop {actor} KEY --all`",
    ),
)


def _newest(shape: Shape | None) -> list[Shape]:
    return [] if shape is None else [shape]


async def _visible(topics: Topics, names: Iterable[str], denied: _Denied) -> dict[str, TopicInfo]:
    """Return the topics that exist; `denied` is called for each that this user may not describe.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    names = list(names)
    try:
        return await topics.existing(names)
    except BrokerUnavailableError as error:
        if not is_denied(error):
            raise
    found: dict[str, TopicInfo] = {}
    for name in names:
        try:
            found |= await topics.existing([name])
        except BrokerUnavailableError as error:
            if not is_denied(error):
                raise
            denied(name, error)
    return found


def _required(stores: Mapping[str, str]) -> _Denied:
    """Return a callback that refuses the start if a changelog may not be described; `stores` maps topics to stores.

    Other topics that may not be described are ignored: they aren't this app's.
    """

    def refuse(topic: str, error: BrokerUnavailableError) -> None:
        if topic in stores:
            raise ConfigurationError(
                f"topic {topic}, the changelog of store {stores[topic]}, which this program doesn't have any more, "
                "can't be read, so whether it has state is unknown. Let the workers' user describe and "
                f"read it, or give it up with `faust state forget {stores[topic]}`"
            ) from error

    return refuse
