"""What an app records of its stores, and what a worker compares with it before it touches a changelog.

Each app has its records in its own leader registry. Two apps may come to the same changelog (app `shop` with store
`eu-orders`, app `shop-eu` with store `orders`). So a worker claims the changelogs that its app hasn't confirmed yet,
then reads the registries of the other apps, and only then confirms and uses them. Nobody takes a claim back: from a
worker's claim on, its app has a record of the changelog. Of two workers of different apps, the one that claimed later
reads the other's record and is refused. A confirmed record counts as long as its topic exists.

A worker reads the other registries before it claims as well, so that a worker that is refused usually leaves no claim.
Only of apps that start for the first time in the same moment both may have one. Then both are refused until one of them
is given another changelog.

A start also looks at what the app had before: the actors that have run with their inputs, and stores that this program
lacks. Another program under the app's id, or one that would leave state behind, is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from actors._core.keys import split_sized
from actors._core.logs import escaping
from actors._core.shapes import Shape, misfits
from actors._core.task.claims import possible_owners, store_of
from actors._core.task.takeover import LostChangelog, why_replaced
from actors._faust.inputs import repartitions
from actors._faust.startup.programs import (
    check_contents,
    check_counts,
    check_not_shared,
    check_program,
    contents_of,
    windows_of,
)
from actors._faust.startup.visible import required, visible
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord, write_stores
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import is_denied
from actors.declare.names import OPTION_STORES, owners_topic
from actors.declare.values.versions import refusal
from actors.errors import BrokerUnavailableError, ConfigurationError, LostChangelogError
from actors.ports import Clock, Logs, OwnerRecord, TopicPartition
from actors.runtime.state.restore import choice
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors._faust.setup import Setup

logger = escaping(logging.getLogger(__name__))

KEPT_SHAPES = 20
SEEN_S = 5.0
"""How long a start looks for a changelog that its app has recorded, before it counts as deleted."""
LOOK_S = 0.25
MAX_READERS = 8


class StoreRegistry:
    """The records of an app's stores, for the start of one worker: `claim`, make the changelogs, `confirm`."""

    def __init__(self, setup: Setup, topics: Topics, logs: Logs, owners: KafkaOwners, clock: Clock) -> None:
        self._setup = setup
        self._app = setup.app
        self._topics = topics
        self._logs = logs
        self._owners = owners
        self._clock = clock
        self._passed_over: set[str] = set()
        self._windows, self._contents = windows_of(setup.app), contents_of(setup.app)
        self._changelogs = {
            store.name: setup.changelog_topic(store.name)
            for definition in setup.app.actors.values()
            for store in definition.stores
        }

    async def claim(self) -> None:
        """Check all that is recorded of the stores, and claim those that aren't confirmed yet.

        Raises:
            ConfigurationError: this is another program than the one that has run under the app's id; another app uses a
                changelog; values have another shape than those that are kept; a store is gone, or parked messages,
                timers or effects wait for an actor that isn't declared with them any more.
            LostChangelogError: a changelog was deleted, and created again or not, and no operator has chosen.
        """
        known, claims = await self._checked()
        # What another worker of the app has written holds for this one: a claim must not replace its confirmed record.
        now = await self._owners.stores() if claims else {}
        missing = {
            store: claim
            for store, claim in claims.items()
            if now.get(store) == known.get(store) and not _is_claimed(now.get(store), claim.changelog)
        }
        if missing:
            await self._write(missing)

    async def check(self) -> None:
        """Check what `claim` checks, and write nothing; else as `claim`."""
        await self._checked()

    async def _checked(self) -> tuple[dict[str, StoreRecord], dict[str, StoreRecord]]:
        """Return what is recorded, and the claims that are to be made."""
        self._check_names()
        known = await self._owners.stores()
        owners = await self._owners.all()
        check_program(self._app, owners)
        before = {store: record_of(known, store, topic) for store, topic in self._changelogs.items()}
        current = await self._current(known)
        for store, record in before.items():
            if record is not None and store in current and current[store] in (record.topic_id, record.last_id):
                check_contents(record, self._contents[store])
                self._shapes(store, record)
                self._warn_older(store, record)
                if record.is_given_up:
                    logger.warning(
                        "store %s was given up with `faust state forget`: a later program without it isn't refused",
                        store,
                    )
        await self._check_stranded(known)
        await self._check_gone(known, owners)
        await self._check_made(owners)
        await check_counts(self._setup, self._topics, before)
        topics = sorted({*(record.changelog for record in known.values()), *(owner.topic for owner in owners)} - {""})
        claims = {
            store: _claimed(store, topic, self._clock.wall_ms(), before[store], topics)
            for store, topic in self._changelogs.items()
            if not _is_confirmed(known.get(store), topic, current.get(store))
        }
        if claims:
            await self._check_rivals(claims, current, is_claimed=False)
            self._check_replaced(known, current)
        return known, claims

    async def _current(self, known: Mapping[str, StoreRecord]) -> dict[str, str]:
        """Return the ids of the changelogs that exist, by store. One that is recorded may not be seen for a moment."""
        deadline_s = asyncio.get_running_loop().time() + SEEN_S
        while True:
            found = await self._topics.existing(self._changelogs.values())
            current = {store: str(found[topic].topic_id) for store, topic in self._changelogs.items() if topic in found}
            missing = [store for store in self._changelogs if store not in current and self._known_id(known, store)]
            if not missing or self._has_choice or asyncio.get_running_loop().time() >= deadline_s:
                return current
            await asyncio.sleep(LOOK_S)

    @property
    def _has_choice(self) -> bool:
        return self._setup.lost_changelog is not LostChangelog.STOP

    def _known_id(self, known: Mapping[str, StoreRecord], store: str) -> str:
        """Return the id that the store's changelog had when it was last seen, "" if there is none."""
        topic = self._changelogs[store]
        record = record_of(known, store, topic)
        if record is None or record.changelog != topic or record.is_given_up:
            return ""
        return record.topic_id or record.last_id

    def _check_replaced(self, known: Mapping[str, StoreRecord], current: Mapping[str, str]) -> None:
        """Refuse to begin with a changelog that isn't the one that had the state, unless an operator has chosen."""
        for store, topic in self._changelogs.items():
            before, now = self._known_id(known, store), current.get(store)
            if not before or before == now or self._has_choice:
                continue
            gone = f"it was the changelog of store {store}, with the id {before}, and was deleted"
            raise LostChangelogError(choice(f"topic {topic}", gone if now is None else why_replaced(before, now)))

    async def confirm(self, changelogs: Mapping[str, TopicInfo]) -> None:
        """Check that no other app has claimed a changelog, and record the stores with the ids of their topics.

        Raises:
            ConfigurationError: another app has; a topic or a claim was removed since; as in `claim`.
        """
        known = await self._owners.stores()
        current = {store: str(changelogs[topic].topic_id) for store, topic in self._changelogs.items()}
        claims = {}
        for store, topic in self._changelogs.items():
            before = known.get(store)
            is_other = self._known_id(known, store) not in ("", current[store]) and not self._has_choice
            if before is None or before.changelog != topic or is_other or before.topic_id not in ("", current[store]):
                raise ConfigurationError(
                    f"store {store}: topic {topic}, or the record of it in topic {self._setup.owners_topic}, was "
                    "removed or replaced while this worker started: start the worker again"
                )
            if _is_claimed(before, topic):
                claims[store] = before
        if claims:
            await self._check_rivals(claims, current, is_claimed=True)
        records = {}
        for store in current:
            record = self._confirmed(known[store], changelogs[self._changelogs[store]])
            if msgspec.structs.replace(known[store], at_ms=record.at_ms) != record:
                records[store] = record
        if records:
            await self._write(records)
        self._setup.recorded = {**known, **records}

    def _confirmed(self, before: StoreRecord, changelog: TopicInfo) -> StoreRecord:
        value, topic_id = self._app.value_types[before.store], str(changelog.topic_id)
        version, shapes, former = value.version, _newest(value.shape()), dict[int, list[Any]]()
        last_id = before.topic_id or before.last_id
        if last_id == topic_id or self._setup.lost_changelog.restores:
            # What is written back to another topic are values of those shapes.
            version, former, shapes = max(before.version, version), before.former, self._shapes(before.store, before)
            if version > before.version:
                former = {**former, before.version: before.shapes}
            if version > value.version and value.type is not bytes:
                # Before a write of any key, its value is looked at: it may be of the newer version.
                self._app.stores[before.store].refuse_newer = refusal(value.version, f"store {before.store}")
        return StoreRecord(
            store=before.store,
            changelog=before.changelog,
            at_ms=self._clock.wall_ms(),
            topic_id=topic_id,
            former_id=before.former_id if last_id in ("", topic_id) else last_id,
            copied_id=before.copied_id if last_id == topic_id else "",
            version=version,
            shapes=shapes,
            former=former,
            came_after=before.came_after or [],
            is_given_up=before.is_given_up and topic_id in (before.topic_id, before.last_id),
            partitions=changelog.partitions,
            windows=self._windows.get(before.store, ""),
            contents=self._contents[before.store],
        )

    async def _write(self, records: Mapping[str, StoreRecord]) -> None:
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
        uses.update(name for definition in self._app.actors.values() for name in definition.topic_names)
        for store, topic in self._changelogs.items():
            if uses[topic] > 1:
                raise ConfigurationError(
                    f"store {store}: its changelog {topic} is another topic of this app too: give it another name with "
                    f"App(..., changelogs={{{store!r}: {_free_name(app, store)!r}}})"
                )

    # --- other apps ------------------------------------------------------------------------------------------------

    async def _check_rivals(
        self, claims: Mapping[str, StoreRecord], current: Mapping[str, str], *, is_claimed: bool
    ) -> None:
        """Refuse the start if another app has one of these changelogs; `current` has the ids of their topics."""
        app = self._app.conf.id
        by_owner: dict[str, list[StoreRecord]] = {}
        for record in claims.values():
            for other in possible_owners(record.changelog, app):
                by_owner.setdefault(other, []).append(record)
        for other in await self._with_registry(by_owner):
            registry = KafkaOwners(owners_topic(other), self._logs)
            try:
                theirs, has_run = await registry.stores(), await registry.all()
            except BrokerUnavailableError as error:
                self._pass_over({other: error})
                continue
            for record in by_owner[other]:
                self._check_rival(record, current.get(record.store), other, theirs)
                if not (is_claimed or theirs) and has_run:
                    await self._check_old_rival(record, record.store in current, other)

    def _check_rival(
        self, ours: StoreRecord, topic_id: str | None, other: str, theirs: Mapping[str, StoreRecord]
    ) -> None:
        for record in theirs.values():
            if record.changelog == ours.changelog and record.topic_id in ("", topic_id):
                what = "uses it"
                if not record.topic_id:
                    what = (
                        "claimed it and hasn't finished its start (if that app doesn't have the store any more, stop "
                        f"its workers and delete topic {owners_topic(other)})"
                    )
                raise self._shared(ours, other, record.store, what)

    async def _check_made(self, owners: Iterable[OwnerRecord]) -> None:
        """Refuse the start if another app reads a topic that this one is to read by another key for the first time."""
        read = {(one.topic, one.topic_id) for owner in owners for one in owner.inputs}
        made = repartitions(self._app)
        found = await self._topics.existing(made) if made else {}
        new = {name: str(info.topic_id) for name, info in found.items() if (name, str(info.topic_id)) not in read}
        others = {other for name in new for other in possible_owners(name, self._app.conf.id)}
        for other in await self._with_registry(others):
            try:
                check_not_shared(self._app, new, other, await KafkaOwners(owners_topic(other), self._logs).all())
            except BrokerUnavailableError as error:
                self._pass_over({other: error})

    async def _check_old_rival(self, ours: StoreRecord, is_there: bool, other: str) -> None:
        """Look at an app whose release records no stores: only a topic that was there before us may be its."""
        store = store_of(ours.changelog, other)
        if store is None or not is_there or ours.store in self._app.actor_options.changelogs:
            return
        ran = {owner.actor for owner in await self._owners.all()}
        owner = self._app.owner_of_store(ours.store)
        if owner is None or owner.name not in ran:
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

    def _shared(self, ours: StoreRecord, other: str, their_store: str, what: str) -> ConfigurationError:
        app = self._app.conf.id
        return ConfigurationError(
            f"topic {ours.changelog} is the changelog of store {ours.store} of app {app}, and of store {their_store} "
            f"of app {other}, which {what}. Each would restore the other's state. Give one of them another changelog, "
            f"here with App(..., changelogs={{{ours.store!r}: {_free_name(app, ours.store)!r}}}); state that this "
            f"app has in the topic is copied with `faust -A … state adopt {ours.store} --from {ours.changelog}`"
        )

    async def _with_registry(self, others: Iterable[str]) -> list[str]:
        """Return the apps that have a registry. An app whose registry may not be read is skipped with a warning."""
        registries = {owners_topic(other): other for other in sorted(others)}
        denied: dict[str, BrokerUnavailableError] = {}
        found = await visible(self._topics, registries, lambda topic, error: denied.update({registries[topic]: error}))
        self._pass_over(denied)
        return [other for topic, other in registries.items() if topic in found]

    def _pass_over(self, denied: Mapping[str, BrokerUnavailableError]) -> None:
        """Warn once that registries of apps may not be read. One that can't be read for the moment ends the start."""
        for error in denied.values():
            if not is_denied(error):
                raise error
        new = sorted(denied.keys() - self._passed_over)
        self._passed_over.update(new)
        if new:
            text = (
                "topic %s can't be read, so it isn't known whether an app of that name uses a changelog of this "
                "app: %s. Let this app's user describe and read it, if it is there, to have it checked"
            )
            logger.warning(text, ", ".join(map(owners_topic, new)), denied[new[0]])

    # --- shapes ----------------------------------------------------------------------------------------------------

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

    # --- a store that is gone --------------------------------------------------------------------------------------

    async def _check_gone(self, known: Mapping[str, StoreRecord], owners: Iterable[OwnerRecord]) -> None:
        """Refuse to begin with empty state where the changelog of a store that isn't declared any more has some."""
        used = set(self._changelogs.values())
        inputs = {name for one in self._app.actors.values() for name in one.topic_names}
        gone = {
            store: record
            for store, record in known.items()
            if self._app.actors
            and record.changelog not in used
            and not record.is_given_up
            and not self._is_option(store)
        }
        changelogs = {record.changelog: store for store, record in gone.items()}
        found = await visible(self._topics, changelogs, required(changelogs)) if gone else {}
        ran = {owner.actor for owner in owners}
        for store, record in gone.items():
            topic = record.changelog
            is_there = topic in found and str(found[topic].topic_id) in (record.topic_id, record.last_id)
            if not is_there or not await self._has_state(store, topic, found[topic].partitions, ran):
                continue
            if record.came_after is None:
                # An earlier release let it go, unless a store of this program is to take its place.
                is_older = self._changelogs.keys() <= known.keys()
            else:
                is_older = {*used, *inputs} <= set(record.came_after)
            if not is_older:
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
                f"{self._changelogs[store]}: it would begin empty, and handle repeats again. Stop the workers and copy "
                f"the state with `faust -A … state adopt {store} --from {topic}`, or give it up with "
                f"`faust -A … state forget {store}`"
            )
        return ConfigurationError(
            f"store {store}: no actor of this program has it any more, and its state is in topic {topic}. If it was "
            f'renamed, declare it with app.store("NEW NAME", ..., renamed_from="{store}"), or keep the name of its '
            f'actor with @app.actor(..., name="{store}") where it is the state of a class: else the program would '
            "begin with empty state, and handle repeats again. If nobody needs the state, give it up with "
            f"`faust -A … state forget {store}`, and start the worker again"
        )

    # --- what waits ------------------------------------------------------------------------------------------------

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
        found = await visible(self._topics, (topic for _, _, topic in gone), required(recorded))
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


def record_of(known: Mapping[str, StoreRecord], store: str, topic: str) -> StoreRecord | None:
    """Return the record of a store, or of the store that had its changelog under another name."""
    return known.get(store) or next((record for record in known.values() if record.changelog == topic), None)


def _claimed(store: str, topic: str, at_ms: int, before: StoreRecord | None, topics: Sequence[str]) -> StoreRecord:
    """Return a claim, which keeps what is known of the topic; `topics` are those that the app has used so far."""
    if before is None or before.changelog != topic:
        former_id = "" if before is None else before.topic_id or before.last_id
        return StoreRecord(store=store, changelog=topic, at_ms=at_ms, former_id=former_id, came_after=[*topics])
    last_id = before.topic_id or before.last_id
    return msgspec.structs.replace(before, store=store, at_ms=at_ms, topic_id="", last_id=last_id)


def _is_claimed(record: StoreRecord | None, topic: str) -> bool:
    return record is not None and record.changelog == topic and not record.topic_id


def _is_confirmed(record: StoreRecord | None, topic: str, topic_id: str | None) -> bool:
    return record is not None and record.changelog == topic and bool(topic_id) and record.topic_id == topic_id


def _newest(shape: Shape | None) -> list[Shape]:
    return [] if shape is None else [shape]


def _free_name(app: str, store: str) -> str:
    return f"{app}-{store}-of-{app}-changelog"
