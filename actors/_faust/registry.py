"""What an app records of its stores, and what a worker compares with it before it touches a changelog.

Each app has its records in its own leader registry. Two apps may come to the same changelog (app `shop` with store
`eu-orders`, app `shop-eu` with store `orders`). So a worker first claims the changelogs that its app hasn't recorded
yet, then looks whether the registry of another app claims one of them, and only then uses them: of two apps that start
at the same time at least one sees the other. A claim counts as long as its topic exists: the records have the topic's
id.

A process that dies between claim and confirmation leaves a claim without a topic's id. It counts, and the app's next
start confirms it or takes it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from actors._core.claims import possible_owners, store_of
from actors._core.keys import split_sized
from actors._core.logs import escaping
from actors._core.shapes import Shape, misfits
from actors._faust.shapes import shape_of
from actors._faust.versions import refusal
from actors._kafka.control import TopicInfo
from actors._kafka.owners import KafkaOwners, StoreRecord, write_stores
from actors._kafka.topics import Topics
from actors.errors import BrokerUnavailableError, ConfigurationError
from actors.ports import Clock, Logs, TopicPartition

if TYPE_CHECKING:
    from actors._faust.definition import ActorDefinition
    from actors._faust.setup import Setup

logger = escaping(logging.getLogger(__name__))

KEPT_SHAPES = 20
MAX_READERS = 8


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a store's values are, and their version; `type` is bytes where they aren't kept as JSON."""

    type: Any
    version: int

    def shape(self) -> Shape | None:
        """Give the values' shape, None where the type says nothing of it."""
        return None if self.type is bytes else shape_of(self.type)


class StoreRegistry:
    """The records of an app's stores, for the start of one worker: `claim`, make the changelogs, `confirm`."""

    def __init__(self, setup: Setup, topics: Topics, logs: Logs, owners: KafkaOwners, clock: Clock) -> None:
        self._setup = setup
        self._app = setup.app
        self._topics = topics
        self._logs = logs
        self._owners = owners
        self._clock = clock
        self._changelogs = {
            store.name: setup.changelog_topic(store.name)
            for definition in setup.app.actors.values()
            for store in definition.stores
        }

    async def claim(self) -> None:
        """Check all that is recorded of the stores, and claim those that aren't recorded yet.

        Raises:
            ConfigurationError: another app uses a changelog; values have another shape than those that are kept; parked
                messages, timers or effects wait for an actor that isn't declared with them any more.
        """
        self._check_names()
        known, found = await self._owners.stores(), await self._topics.existing(self._changelogs.values())
        current = {store: str(found[topic].topic_id) for store, topic in self._changelogs.items() if topic in found}
        for store, record in known.items():
            if store in current and current[store] in (record.topic_id, record.last_id):
                self._shapes(store, record)
        await self._check_stranded()
        claims = {
            store: _claimed(store, topic, self._clock.wall_ms(), known.get(store))
            for store, topic in self._changelogs.items()
            if not _is_confirmed(known.get(store), topic, current.get(store))
        }
        if not claims:
            return
        await self._write(claims)
        try:
            await self._check_rivals(claims, current)
        except ConfigurationError:
            # A claim that stays counts until the app's next start: the refusal is what matters now.
            with contextlib.suppress(BrokerUnavailableError):
                await self._take_back(claims, known)
            raise

    async def confirm(self, changelogs: Mapping[str, TopicInfo]) -> None:
        """Record the stores as they are now, with the ids of their topics."""
        known = await self._owners.stores()
        records = {}
        for store, topic in self._changelogs.items():
            before, topic_id = known.get(store), str(changelogs[topic].topic_id)
            value = self._app.value_types[store]
            version, shapes, former = value.version, _newest(value.shape()), dict[int, list[Any]]()
            if before is not None and before.changelog == topic and topic_id in (before.topic_id, before.last_id):
                version, shapes, former = max(before.version, version), self._shapes(store, before), before.former
                if version > before.version:
                    former = {**former, before.version: before.shapes}
            record = StoreRecord(
                store=store,
                changelog=topic,
                at_ms=self._clock.wall_ms(),
                topic_id=topic_id,
                version=version,
                shapes=shapes,
                former=former,
            )
            if before is None or msgspec.structs.replace(before, at_ms=record.at_ms) != record:
                records[store] = record
        if records:
            await self._write(records)

    async def _write(self, records: Mapping[str, StoreRecord | None]) -> None:
        await write_stores(self._setup.connection, self._setup.owners_topic, records)

    # --- names -----------------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        app, named = self._app.conf.id, self._app.actor_options.changelogs
        for store, topic in named.items():
            if store not in self._app.stores:
                raise ConfigurationError(f"changelogs={{{store!r}: …}}: the app has no store of that name")
            if not topic.startswith(f"{app}-"):
                raise ConfigurationError(
                    f"changelogs={{{store!r}: {topic!r}}}: the name has to begin with {app}-, so that apps can tell "
                    "whose changelog it is"
                )
        ours = [self._setup.owners_topic, self._setup.dead_letter_topic, self._setup.reply_topic]
        uses = Counter([*self._changelogs.values(), *ours, *map(self._setup.changelog_topic, self._app.tables)])
        uses.update(definition.topic_name for definition in self._app.actors.values())
        for store, topic in self._changelogs.items():
            if uses[topic] > 1:
                raise ConfigurationError(
                    f"store {store}: its changelog {topic} is another topic of this app too: give it another name with "
                    f"App(..., changelogs={{{store!r}: {_free_name(app, store)!r}}})"
                )

    # --- other apps ------------------------------------------------------------------------------------------------

    async def _check_rivals(self, claims: Mapping[str, StoreRecord], current: Mapping[str, str]) -> None:
        app = self._app.conf.id
        by_owner: dict[str, list[StoreRecord]] = {}
        for record in claims.values():
            for other in possible_owners(record.changelog, app):
                by_owner.setdefault(other, []).append(record)
        for other in await self._with_registry(by_owner):
            registry = KafkaOwners(_registry_of(other), self._logs)
            try:
                theirs, has_run = await registry.stores(), await registry.all()
            except BrokerUnavailableError as error:
                _warn_unread(other, error)
                continue
            for record in by_owner[other]:
                self._check_rival(record, current.get(record.store), other, theirs)
                if not theirs and has_run:
                    await self._check_old_rival(record, record.store in current, other)

    def _check_rival(
        self, ours: StoreRecord, topic_id: str | None, other: str, theirs: Mapping[str, StoreRecord]
    ) -> None:
        for record in theirs.values():
            if record.changelog == ours.changelog and record.topic_id in ("", topic_id):
                since = "claimed it and hasn't finished its start" if not record.topic_id else "uses it"
                raise self._shared(ours, other, record.store, since)

    async def _check_old_rival(self, ours: StoreRecord, is_there: bool, other: str) -> None:
        """Look at an app whose release records no stores: only a topic that was there before us may be its."""
        store = store_of(ours.changelog, other)
        if store is None or not is_there or ours.store in self._app.actor_options.changelogs:
            return
        ran = {owner.actor for owner in await self._owners.all()}
        if not any(owner.name in ran for owner in self._owners_of(ours.store)):
            raise self._shared(
                ours,
                other,
                store,
                "may use it: the topic was there before this app ever ran, and that app's "
                "release records no stores (upgrade it first, and its records tell)",
            )
        logger.warning(
            "topic %s, the changelog of store %s, would be the changelog of a store %s of app %s too, and that app's "
            "release doesn't record its stores: upgrade it to have it checked",
            ours.changelog,
            ours.store,
            store,
            other,
        )

    def _owners_of(self, store: str) -> Iterable[ActorDefinition]:
        for definition in self._app.actors.values():
            if any(held.name == store for held in definition.stores):
                yield definition

    def _shared(self, ours: StoreRecord, other: str, their_store: str, what: str) -> ConfigurationError:
        app = self._app.conf.id
        return ConfigurationError(
            f"topic {ours.changelog} is the changelog of store {ours.store} of app {app}, and of store {their_store} "
            f"of app {other}, which {what}. Each would restore the other's state. Give one of them another changelog, "
            f"here with App(..., changelogs={{{ours.store!r}: {_free_name(app, ours.store)!r}}}); state that this "
            f"app has in the topic is copied with `faust -A … state adopt {ours.store} --from {ours.changelog}`"
        )

    async def _with_registry(self, others: Iterable[str]) -> list[str]:
        """Give the apps that have a registry. One that may not be looked at is passed over with a warning."""
        names = sorted(others)
        try:
            found = await self._topics.existing(map(_registry_of, names))
        except BrokerUnavailableError:
            found = {}
            for other in names:
                try:
                    found |= await self._topics.existing([_registry_of(other)])
                except BrokerUnavailableError as error:
                    _warn_unread(other, error)
        return [other for other in names if _registry_of(other) in found]

    async def _take_back(self, claims: Mapping[str, StoreRecord], before: Mapping[str, StoreRecord]) -> None:
        """Take back what this start claimed, unless another worker of the app has claimed or confirmed it meanwhile.

        A claim that was there before is of a process that was killed, and goes too: else two apps with such claims
        would refuse each other for ever.
        """
        now = await self._owners.stores()
        confirmed = {store: record for store, record in before.items() if record.topic_id}
        back = {store: confirmed.get(store) for store, claim in claims.items() if now.get(store) == claim}
        await self._write(back)

    # --- shapes ----------------------------------------------------------------------------------------------------

    def _shapes(self, store: str, record: StoreRecord) -> list[Shape]:
        """Give the shapes that are to be recorded.

        Raises:
            ConfigurationError: values of the recorded shape would lose something, or can't be read.
        """
        value = self._app.value_types[store]
        shape = value.shape()
        if record.version > value.version:
            # Before a write of any key, its value is looked at: it may be of the newer version.
            if value.type is not bytes:
                self._app.stores[store].refuse_newer = refusal(value.version, f"store {store}")
            # A program that was rolled back, or one that was made from it.
            former = record.former.get(value.version, [])
            if shape is not None and former and shape not in former and (found := misfits(former[-1], shape)):
                raise self._misfit(store, value.version, record, found)
            logger.warning(
                "store %s: a newer program has written values of version %d, this one knows up to %d: a partition "
                "where it meets one is stopped",
                store,
                record.version,
                value.version,
            )
            return record.shapes
        if record.version < value.version or shape is None or not record.shapes:
            return _newest(shape) or record.shapes
        if shape in record.shapes:
            if shape != record.shapes[-1]:
                lost = "; ".join(misfits(record.shapes[-1], shape))
                logger.warning(
                    "store %s: a newer program has run on this state. Compared with it: %s. What this program writes "
                    "doesn't have that",
                    store,
                    lost or "the type is narrower",
                )
            return record.shapes
        found = misfits(record.shapes[-1], shape)
        if found:
            raise self._misfit(store, value.version, record, found)
        return [*record.shapes, shape][-KEPT_SHAPES:]

    def _misfit(self, store: str, version: int, record: StoreRecord, found: list[str]) -> ConfigurationError:
        is_state = any(isinstance(one.declared, type) and one.name == store for one in self._app.actors.values())
        version_of, upgrades = ("state_version", "state_upgrades") if is_state else ("version", "upgrades")
        return ConfigurationError(
            f"store {store}: the type of its values doesn't fit those that are kept in topic {record.changelog}, and "
            f"its version is {version} as before: {'; '.join(found)}. The next write of a key would lose that for "
            f"good. Set {version_of} to {version + 1} and give {upgrades} a function for {version} that turns the old "
            "data into the new, or undo the change of the type"
        )

    # --- what waits ------------------------------------------------------------------------------------------------

    async def _check_stranded(self) -> None:
        """Refuse to leave behind what waits in a store that an actor isn't declared with any more."""
        gone = [
            (definition, left, self._setup.changelog_topic(f"{definition.name}-{left.suffix}"))
            for definition in self._app.actors.values()
            for left in _LEFT
            if f"{definition.name}-{left.suffix}" not in self._app.stores
        ]
        found = await self._topics.existing(topic for _, _, topic in gone)
        for definition, left, topic in gone:
            if topic in found and (keys := await self._live(topic, found[topic].partitions, left.letter)):
                actor, count, messages = definition.name, len(keys), Counter(keys)
                raise ConfigurationError(
                    f"actor {actor}: {count} {left.what} of {len(messages)} keys wait in topic {topic}, and the "
                    f"actor is declared without {left.declared}: {left.harm}. Start the workers with "
                    f"{left.declared} again and "
                    f"{left.remedy.format(actor=actor)}; or give them up: stop the workers and delete the topic with "
                    f"kafka-topics.sh --bootstrap-server BROKER --delete --topic {topic}"
                )

    async def _live(self, topic: str, partitions: int, letter: bytes) -> list[bytes]:
        """Give the message key of each entry that is there, reading the whole changelog."""
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
    """What may wait in a store of an actor's own: the store's suffix, its entries' first letter, and words for it."""

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
        "parked messages",
        'on_error="park"',
        "nothing would deliver them, and later messages of their keys would overtake them",
        "resolve them with `faust -A … parked retry {actor} KEY` or `faust -A … parked drop {actor} KEY --all`",
    ),
    _Left(
        "timers",
        b"n",
        "timers",
        "timers=True",
        "none of them would fire",
        "let them fire, or cancel them with ctx.cancel",
    ),
    _Left(
        "effects",
        b"e",
        "effects",
        "its effects",
        "none of them would be called",
        "let them be called, or remove them with `faust -A … parked drop {actor} KEY --all`",
    ),
)


def _claimed(store: str, topic: str, at_ms: int, before: StoreRecord | None) -> StoreRecord:
    """Return a claim, which keeps what is known of the topic."""
    if before is None or before.changelog != topic:
        return StoreRecord(store=store, changelog=topic, at_ms=at_ms)
    return msgspec.structs.replace(before, at_ms=at_ms, topic_id="", last_id=before.topic_id or before.last_id)


def _is_confirmed(record: StoreRecord | None, topic: str, topic_id: str | None) -> bool:
    return record is not None and record.changelog == topic and bool(topic_id) and record.topic_id == topic_id


def _newest(shape: Shape | None) -> list[Shape]:
    return [] if shape is None else [shape]


def _registry_of(app: str) -> str:
    return f"{app}-actors-owners"


def _free_name(app: str, store: str) -> str:
    return f"{app}-{store}-of-{app}-changelog"


def _warn_unread(app: str, error: Exception) -> None:
    logger.warning(
        "topic %s can't be looked at, so it isn't known whether an app %s uses a changelog of this app: %s. Let this "
        "app's user describe and read the topic to have it checked",
        _registry_of(app),
        app,
        error,
    )
