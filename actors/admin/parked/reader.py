"""Reads parked messages, effects and timers from the committed changelogs of the app's actors."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from actors._core.keys import make_place, place_of, split_sized
from actors._core.outside import MALFORMED
from actors._core.pages import decode_base64
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.host import definition_of
from actors.declare.values.codecs import CodecError
from actors.declare.values.schemas import key_codec
from actors.errors import ActorsError, NewerVersionError
from actors.ports import LogRecord, TopicPartition
from actors.runtime.commands import written_by
from actors.runtime.outbox.calls import EffectRecord
from actors.runtime.quarantine.entries import ParkedMessage, read_entry, slices_of_line, summary_of
from stores._core.printable import printable
from stores._core.record import METADATA_HEADER, decode_metadata

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition
    from actors.declare.host import DeclaredApp

What = Literal["message", "effect", "timer"]
MAX_READERS = 8
"""How many partitions are read at a time; each takes a consumer."""
PAGE_BYTES = 4 * 1024 * 1024
"""A list of lines has no more of keys and errors."""
SHOWN_BYTES = 128 * 1024
"""The content of a larger entry isn't shown unless somebody asks for it."""
PAUSE_BYTES = 4 * 1024 * 1024
PAUSE_RECORDS = 500
UNREADABLE = "it can't be read: a newer release may have written it"
UNREADABLE_ID = "(unreadable)"
NULL_KEY = "(null)"
LETTERS: dict[What, bytes] = {"message": b"p", "effect": b"e", "timer": b"n"}
PARKED: tuple[What, ...] = ("message", "effect")
Place = tuple[str, What, int, bytes]
"""Actor, kind, partition and key of a line; lists have this order."""


class ParkedError(ActorsError):
    """Nothing is parked at the place that the command names."""


Content = ParkedMessage | EffectRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A parked message or effect, or one that waits behind such, or a timer, without its content.

    Attributes:
        sequence: its place in the line; 0 of timers.
        id: what identifies it.
        since_ms: when it was parked, or for an effect when it was last written; Unix milliseconds.
        is_parked: it has an error and isn't tried; else it waits behind another, or an effect will be tried again.
        size: about how many bytes it has.
        is_sliced: whether its content is stored in slices.
        has_key: whether it has a key.
        offset: of the input record that it is, or that it came behind; None of effects.
        is_readable: whether this release can read it.
        written_by: the offset of the first input behind which it was written last, -1 where unknown.
        at: where it is in the changelog.
        timer: what a timer is beside its id; None of messages and effects.
    """

    sequence: int = 0
    id: str
    error: str | None = None
    attempts: int = 0
    since_ms: int = 0
    is_parked: bool = True
    size: int = 0
    is_sliced: bool = False
    has_key: bool = True
    offset: int | None = None
    is_readable: bool = True
    written_by: int = -1
    at: int = 0
    timer: Timer | None = None


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """A timer without what it sends or calls with: see `actors.runtime.timers.timers`."""

    id: str
    name: str = ""
    due_ms: int
    every_ms: int | None
    clock: str
    method: str | None = None


class _EffectSummary(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    error: str | None = None
    attempts: int = 0
    parked: bool = False
    home_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedQueue:
    """The parked entries of a key and the entries that wait behind them, in order, or its timers; never empty."""

    actor: str
    topic: str
    what: What
    partition: int
    key: bytes
    entries: Sequence[Entry]

    @property
    def source(self) -> TopicPartition:
        """The partition of the input to which commands about it go."""
        return TopicPartition(self.topic, self.partition)

    @property
    def head(self) -> Entry:
        """The first, which the others wait for."""
        return self.entries[0]

    @property
    def is_parked(self) -> bool:
        """True if something of the line is parked, and not only waiting to be retried."""
        return any(entry.is_parked for entry in self.entries)

    @property
    def shown_key(self) -> str:
        """The key for a person."""
        return shown(self.key) if any(entry.has_key for entry in self.entries) else NULL_KEY

    @property
    def place(self) -> Place:
        """Its place in lists."""
        return self.actor, self.what, self.partition, self.key

    @property
    def cursor(self) -> str:
        """The cursor with which a list continues behind this line."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self.place)).decode()


@dataclass(frozen=True, slots=True)
class _Source:
    """A partition of a changelog."""

    definition: ActorDefinition
    what: What
    partition: int

    @property
    def place(self) -> tuple[str, What, int]:
        """The beginning of its lines' places."""
        return self.definition.name, self.what, self.partition


def shown(raw: bytes) -> str:
    """Return bytes as text, with escapes for what isn't."""
    return raw.decode("utf-8", errors="backslashreplace")


class ParkedReader:
    """Reads the changelogs of parked messages, effects and timers. Made by `connect`.

    Of other keys than the wanted ones nothing is decoded or kept, and contents are read by `contents` only.
    """

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

    async def page(
        self,
        definitions: Iterable[ActorDefinition],
        *,
        limit: int,
        after: str | None = None,
        kinds: Collection[What] = PARKED,
    ) -> tuple[list[ParkedQueue], bool]:
        """Return the first lines with something parked, up to `limit` and `PAGE_BYTES`, and whether there are more.

        Raises:
            ParkedError: `after` isn't the cursor of a line.
        """
        place = None if after is None else _place(after)
        sources = sorted(await self._sources(definitions, kinds), key=lambda source: source.place)
        sources = [source for source in sources if place is None or source.place >= place[:3]]
        queues: list[ParkedQueue] = []
        for start in range(0, len(sources), MAX_READERS):
            group = sources[start : start + MAX_READERS]
            for lines in await asyncio.gather(*(self._read(source) for source in group)):
                queues += [line for line in lines if line.is_parked and (place is None or line.place > place)]
            cut = _cut(queues, limit)
            if cut < len(queues):
                return queues[:cut], True
        return queues, False

    async def lines(
        self,
        definitions: Iterable[ActorDefinition],
        is_wanted: Callable[[bytes], bool] | None = None,
        *,
        kinds: Collection[What] = PARKED,
    ) -> list[ParkedQueue]:
        """Return the lines of these actors, by actor, kind, partition and key; those of wanted keys only."""
        sources = await self._sources(definitions, kinds)
        parts = await asyncio.gather(*(self._read(source, is_wanted) for source in sources))
        return [line for lines in parts for line in lines]

    async def line(self, definition: ActorDefinition, what: What, partition: int, key: bytes) -> ParkedQueue | None:
        """Return the line of a key as of a commit not before the call, None if it is empty."""
        return (await self.part(definition, what, partition, [key])).get(key)

    async def part(
        self, definition: ActorDefinition, what: What, partition: int, keys: Collection[bytes]
    ) -> dict[bytes, ParkedQueue]:
        """Return the lines of keys of one partition as of a commit not before the call; empty ones are left out."""
        lines = await self._read(_Source(definition, what, partition), lambda found: found in keys)
        return {line.key: line for line in lines}

    async def contents(
        self, definition: ActorDefinition, line: ParkedQueue, entries: Collection[Entry], *, is_full: bool = False
    ) -> dict[int, Content]:
        """Return the contents of some entries of a line, by sequence; those above `SHOWN_BYTES` only if `is_full`."""
        wanted = {
            entry.sequence: entry for entry in entries if entry.is_readable and (is_full or entry.size <= SHOWN_BYTES)
        }
        if not wanted:
            return {}
        letter, prefix = LETTERS[line.what], slices_of_line(line.key)
        sliced = {sequence for sequence, entry in wanted.items() if entry.is_sliced}

        def is_wanted(key: bytes) -> bool:
            if key[:1] == letter:
                return place_of(key)[0] == line.key and place_of(key)[1] in wanted
            return bool(sliced) and key.startswith(prefix) and int.from_bytes(key[len(prefix) :][:8], "big") in sliced

        # The slices of an entry may be before it.
        start = None if sliced else min(entry.at for entry in wanted.values())
        rows: dict[bytes, bytes] = {}
        async for record in self._records(_Source(definition, line.what, line.partition), start):
            if record.key is not None and is_wanted(record.key):
                rows.pop(record.key, None)
                if record.value is not None:
                    rows[record.key] = record.value
        contents: dict[int, Content] = {}
        for sequence in wanted:
            raw = rows.get(make_place(letter, line.key, sequence))
            # What was dropped meanwhile has lost its slices.
            with contextlib.suppress(NewerVersionError, *MALFORMED):
                if raw is not None:
                    contents[sequence] = _content(line, sequence, raw, rows.get)
        return contents

    async def _sources(self, definitions: Iterable[ActorDefinition], kinds: Collection[What]) -> list[_Source]:
        wanted = [
            (definition, what, self._changelog(definition, what))
            for definition in definitions
            for what in kinds_of(definition, kinds)
        ]
        # Asking for the offsets of a topic that doesn't exist could make it, with the wrong settings.
        topics = await self.control.topics(topic for _, _, topic in wanted)
        return [
            _Source(definition, what, partition)
            for definition, what, topic in wanted
            if topic in topics
            for partition in range(topics[topic].partitions)
        ]

    async def _read(self, source: _Source, is_wanted: Callable[[bytes], bool] | None = None) -> list[ParkedQueue]:
        """Return the lines of one partition, as of a commit not before the call."""
        values: dict[bytes, Entry] = {}
        letter = LETTERS[source.what]
        async for record in self._records(source):
            if record.key is None or record.key[:1] != letter:
                continue
            key, rest = split_sized(record.key[1:])
            if is_wanted is not None and not is_wanted(key):
                continue
            if record.value is None:
                values.pop(record.key, None)
            else:
                metadata = next((raw for name, raw in record.headers if name == METADATA_HEADER), b"")
                where = {"at": record.offset, "written_ms": record.timestamp}
                values[record.key] = entry_of(source.what, rest, record.value, metadata, **where)
        by_key: dict[bytes, list[Entry]] = {}
        for place in sorted(values, key=lambda raw: split_sized(raw[1:])):
            by_key.setdefault(split_sized(place[1:])[0], []).append(values[place])
        return [
            ParkedQueue(
                actor=source.definition.name,
                topic=source.definition.topic_name,
                what=source.what,
                partition=source.partition,
                key=key,
                entries=entries,
            )
            for key, entries in by_key.items()
        ]

    async def _records(self, source: _Source, start: int | None = None) -> AsyncIterator[LogRecord]:
        """Return the committed records of a changelog's partition, with pauses for the event loop."""
        topic = TopicPartition(self._changelog(source.definition, source.what), source.partition)
        async with self._readers:
            bounds = await self.control.bounds(topic)
            looked, size = 0, 0
            async for records, _ in self._logs.read(topic, max(bounds.start, start or 0), bounds.end):
                for record in records:
                    yield record
                    looked, size = looked + 1, size + len(record.value or b"")
                    if size > PAUSE_BYTES or looked > PAUSE_RECORDS:
                        looked = size = 0
                        await asyncio.sleep(0)

    def _changelog(self, definition: ActorDefinition, what: What) -> str:
        store = _store_of(definition, what)
        if store is None:
            raise AssertionError(f"actor {definition.name} has no {what}s")
        return self._setup.changelog_topic(store.name)


def kinds_of(definition: ActorDefinition, kinds: Collection[What] = PARKED) -> list[What]:
    """Return those of the kinds of entries that an actor may have."""
    return [what for what in kinds if _store_of(definition, what) is not None]


def _store_of(definition: ActorDefinition, what: What) -> Any:
    stores = {"message": definition.parked, "effect": definition.effects, "timer": definition.timers}
    return stores[what]


def actor_of(app: DeclaredApp, name: str) -> ActorDefinition:
    """Return an actor that parks.

    Raises:
        ConfigurationError: the app has none of that name.
        ParkedError: it parks nothing.
    """
    definition = definition_of(app, name)
    if not kinds_of(definition):
        raise ParkedError(
            f'actor {name} doesn\'t park anything: declare it with @app.actor(..., on_error="park"), or with effects'
        )
    return definition


def wanted_keys(definition: ActorDefinition, key: str | bytes) -> Callable[[bytes], bool]:
    """Return a filter for the keys of lines that `key` may mean; see `chosen`."""
    if isinstance(key, bytes):
        return key.__eq__
    raw_keys = (os.fsencode(key), _encoded(definition, key), b"" if key == NULL_KEY else None)
    return lambda found: found in raw_keys or key in (text := shown(found), printable(text))


def chosen(
    definition: ActorDefinition, lines: Iterable[ParkedQueue], key: str | bytes, *, nothing: str = "nothing parked"
) -> list[ParkedQueue]:
    """Return the lines of a key: its bytes, as it is shown, or as what the input's key serializer writes or reads.

    Raises:
        ParkedError: there are none, which the text calls `nothing`.
    """
    if isinstance(key, bytes):
        matches = [line for line in lines if line.key == key]
        key = shown(key)
    else:
        matches = _chosen(definition, [line for line in lines if line.is_parked], key)
    if not matches:
        listed = nothing.split()[-1]
        raise ParkedError(f"actor {definition.name} has {nothing} for key {key!r}: see `{listed} list`")
    return matches


def _chosen(definition: ActorDefinition, parked: Sequence[ParkedQueue], key: str) -> list[ParkedQueue]:
    # Bytes that aren't UTF-8 arrive as surrogates; they come back as they were typed.
    for raw_key in (os.fsencode(key), _encoded(definition, key)):
        if matches := [line for line in parked if line.key == raw_key]:
            return matches
    return [line for line in parked if key in (line.shown_key, printable(line.shown_key))]


def key_json(line: ParkedQueue) -> str | None:
    """Return a line's key for JSON: text with escapes, None for messages without a key."""
    return None if line.shown_key == NULL_KEY and not line.key else shown(line.key)


def _encoded(definition: ActorDefinition, key: str) -> bytes | None:
    try:
        return key_codec(definition.topic.app, definition.topic.schema).encode(key)
    except (CodecError, TypeError, ValueError):
        return None


def entry_of(what: What, place: bytes, raw: bytes, metadata: bytes, *, at: int = 0, written_ms: int = 0) -> Entry:
    """Read what is kept of an entry: nothing that refers to its content's bytes.

    `place` is what follows the message key in its own key; `at` and `written_ms` are offset and timestamp of its record
    in the changelog.
    """
    about: dict[str, Any] = {"at": at, "since_ms": written_ms, "size": len(raw)}
    about["written_by"] = _written_by(metadata, None)
    try:
        return _ENTRIES[what](place, raw, metadata, about)
    except (NewerVersionError, *MALFORMED):
        return Entry(**about, id=UNREADABLE_ID, error=UNREADABLE, is_readable=False)


def _message(place: bytes, raw: bytes, metadata: bytes, about: dict[str, Any]) -> Entry:
    about["sequence"] = int.from_bytes(place)
    message = summary_of(raw)
    about["written_by"] = _written_by(metadata, message.home_offset)
    about |= {"since_ms": message.parked_at_ms, "has_key": message.has_key, "offset": message.offset}
    about |= {"size": message.size or len(raw), "is_sliced": message.slices > 0}
    return Entry(id=message.message_id, error=message.error, attempts=message.attempts, **about)


def _effect(place: bytes, raw: bytes, metadata: bytes, about: dict[str, Any]) -> Entry:
    about["sequence"] = int.from_bytes(place)
    effect = msgspec.json.decode(raw, type=_EffectSummary)
    about["written_by"] = _written_by(metadata, effect.home_offset)
    return Entry(id=effect.id, error=effect.error, attempts=effect.attempts, is_parked=effect.parked, **about)


def _timer(place: bytes, raw: bytes, metadata: bytes, about: dict[str, Any]) -> Entry:
    timer = msgspec.structs.replace(msgspec.json.decode(raw, type=Timer), name=place.decode())
    return Entry(id=timer.id, timer=timer, **about)


_ENTRIES: dict[What, Callable[[bytes, bytes, bytes, dict[str, Any]], Entry]] = {
    "message": _message,
    "effect": _effect,
    "timer": _timer,
}


def _content(line: ParkedQueue, sequence: int, raw: bytes, get: Callable[[bytes], bytes | None]) -> Content:
    if line.what == "message":
        return read_entry(get, line.key, sequence, raw)
    return msgspec.json.decode(raw, type=EffectRecord)


def _written_by(metadata: bytes, home_offset: int | None) -> int:
    try:
        return written_by(decode_metadata(metadata), home_offset)
    except ValueError:
        return -1


def _place(cursor: str) -> Place:
    try:
        place: Place = msgspec.msgpack.decode(decode_base64(cursor), type=Place)
    except MALFORMED as error:
        raise ParkedError(f"{cursor[:80]!r} isn't a cursor of such a list") from error
    return place


def _cut(lines: Sequence[ParkedQueue], limit: int) -> int:
    size = 0
    for number, line in enumerate(lines):
        size += len(line.key) + len(line.head.error or "")
        if number >= limit or (number and size > PAGE_BYTES):
            return number
    return len(lines)
