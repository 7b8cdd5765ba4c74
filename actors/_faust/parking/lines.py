"""What is parked, as the committed changelogs of the app's actors say it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from actors._core.keys import place_of
from actors._core.outside import MALFORMED
from actors._faust.codecs import CodecError, key_codec
from actors._faust.setup import Setup
from actors._kafka.control import ControlPlane
from actors._kafka.logs import KafkaLogs
from actors.errors import ActorsError
from actors.ports import TopicPartition
from actors.runtime.effects import EffectRecord
from actors.runtime.parked import ParkedMessage
from stores._core.printable import printable

if TYPE_CHECKING:
    from actors._faust.app import App
    from actors._faust.definition import ActorDefinition

What = Literal["message", "effect"]
MAX_READERS = 8
"""How many partitions are read at a time; each takes a consumer."""
NULL_KEY = "(null)"
_LETTERS: dict[What, bytes] = {"message": b"p", "effect": b"e"}


class ParkedError(ActorsError):
    """There is nothing parked where the command says."""


class UnknownActorError(ParkedError):
    """The app has no actor of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A parked message or effect, or one that waits behind such.

    Attributes:
        sequence: its place in the line.
        id: what identifies it.
        since_ms: when it was parked, or for an effect when it was last written; Unix milliseconds.
        is_parked: it has an error and isn't tried; else it waits behind another, or an effect will be tried again.
        content: what the store holds.
    """

    sequence: int
    id: str
    error: str | None
    attempts: int
    since_ms: int
    is_parked: bool
    content: ParkedMessage | EffectRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What waits of one key, in order; never empty."""

    actor: str
    topic: str
    what: What
    partition: int
    key: bytes
    entries: Sequence[Entry]

    @property
    def head(self) -> Entry:
        """The first, which the others wait for."""
        return self.entries[0]

    @property
    def shown_key(self) -> str:
        """The key for a person."""
        if all(isinstance(entry.content, ParkedMessage) and entry.content.key is None for entry in self.entries):
            return NULL_KEY
        return shown(self.key)


def shown(raw: bytes) -> str:
    """Give bytes as text, with escapes for what isn't."""
    return raw.decode("utf-8", errors="backslashreplace")


class ParkedReader:
    """Reads the changelogs of parked messages and effects. Made by `connect`."""

    def __init__(self, setup: Setup, control: ControlPlane) -> None:
        self._setup = setup
        self.control = control
        self._logs = KafkaLogs(setup.connection, control)
        self._readers = asyncio.Semaphore(MAX_READERS)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, setup: Setup) -> AsyncIterator[ParkedReader]:
        """Connect, for the time of the block.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        async with ControlPlane.connect(setup.connection, setup.group) as control:
            yield cls(setup, control)

    async def lines(self, definitions: Iterable[ActorDefinition]) -> list[Line]:
        """Give all lines of these actors, by actor, kind, partition and key."""
        wanted = [
            (definition, what, self._changelog(definition, what))
            for definition in definitions
            for what in kinds_of(definition)
        ]
        # Asking for the offsets of a topic that doesn't exist could make it, with the wrong settings.
        found = await self.control.topics(topic for _, _, topic in wanted)
        reads = [
            self.lines_in(definition, what, partition)
            for definition, what, topic in wanted
            if topic in found
            for partition in range(found[topic].partitions)
        ]
        return [line for lines in await asyncio.gather(*reads) for line in lines]

    async def lines_in(self, definition: ActorDefinition, what: What, partition: int) -> list[Line]:
        """Give the lines of one partition, as of a commit not before the call."""
        source = TopicPartition(self._changelog(definition, what), partition)
        held: dict[bytes, tuple[bytes, int]] = {}
        async with self._readers:
            bounds = await self.control.bounds(source)
            async for records, _ in self._logs.read(source, bounds.start, bounds.end):
                for record in records:
                    if record.key is None or record.key[:1] != _LETTERS[what]:
                        continue
                    if record.value is None:
                        held.pop(record.key, None)
                    else:
                        held[record.key] = record.value, record.timestamp
        by_key: dict[bytes, list[Entry]] = {}
        for place in sorted(held, key=place_of):
            key, sequence = place_of(place)
            by_key.setdefault(key, []).append(_entry(what, sequence, *held[place]))
        return [
            Line(
                actor=definition.name,
                topic=definition.topic_name,
                what=what,
                partition=partition,
                key=key,
                entries=entries,
            )
            for key, entries in by_key.items()
        ]

    def _changelog(self, definition: ActorDefinition, what: What) -> str:
        store = definition.parked if what == "message" else definition.effects
        if store is None:
            raise AssertionError(f"actor {definition.name} has no {what}s to park")
        return self._setup.changelog_topic(store.name)


def kinds_of(definition: ActorDefinition) -> list[What]:
    """Give what an actor may park."""
    kinds: list[What] = [] if definition.parked is None else ["message"]
    return kinds if definition.effects is None else [*kinds, "effect"]


def actor_of(app: App, name: str) -> ActorDefinition:
    """Give an actor that parks.

    Raises:
        UnknownActorError: the app has none of that name.
        ParkedError: it parks nothing.
    """
    definition = app.actors.get(name)
    if definition is None:
        known = ", ".join(sorted(app.actors)) or "none"
        raise UnknownActorError(f"app {app.conf.id} has no actor {name!r}. Its actors: {known}")
    if not kinds_of(definition):
        raise ParkedError(
            f'actor {name} doesn\'t park anything: declare it with @app.actor(..., on_error="park"), or with effects'
        )
    return definition


def chosen(definition: ActorDefinition, lines: Iterable[Line], key: str) -> list[Line]:
    """Give the lines of a key: as it is shown, or as what the input's key serializer writes or reads.

    Raises:
        ParkedError: nothing is parked there.
    """
    parked = [line for line in lines if any(entry.is_parked for entry in line.entries)]
    # Bytes that aren't UTF-8 arrive as surrogates; they come back as they were typed.
    for raw_key in (os.fsencode(key), _encoded(definition, key)):
        if found := [line for line in parked if line.key == raw_key]:
            return found
    if found := [line for line in parked if key in (line.shown_key, printable(line.shown_key))]:
        return found
    raise ParkedError(f"actor {definition.name} has nothing parked for key {key!r}: see `parked list`")


def key_json(line: Line) -> str | None:
    """Give a line's key for JSON: text with escapes, None for messages without a key."""
    return None if line.shown_key == NULL_KEY and not line.key else shown(line.key)


def _encoded(definition: ActorDefinition, key: str) -> bytes | None:
    try:
        return key_codec(definition.topic.app, definition.topic.schema).encode(key)
    except (CodecError, TypeError, ValueError):
        return None


def _entry(what: What, sequence: int, raw: bytes, at_ms: int) -> Entry:
    content: Any
    try:
        content = msgspec.json.decode(raw, type=ParkedMessage if what == "message" else EffectRecord)
    except MALFORMED as error:
        raise ParkedError(
            f"a parked {what} can't be read, a newer release may have written it: {error}: {shown(raw[:200])}"
        ) from error
    if isinstance(content, ParkedMessage):
        identity, since_ms, is_parked = content.message_id, content.parked_at_ms, True
    else:
        identity, since_ms, is_parked = content.id, at_ms, content.parked
    return Entry(
        sequence=sequence,
        id=identity,
        error=content.error,
        attempts=content.attempts,
        since_ms=since_ms,
        is_parked=is_parked,
        content=content,
    )
