"""Views of an app on the test driver: records, parked messages, answers of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import msgspec

from actors._core.keys import place_of
from actors._core.windows.kinds import Window
from actors.declare.definition import ActorDefinition, messages_of
from actors.declare.host import DeclaredApp
from actors.declare.values.codecs import CodecError
from actors.declare.values.decoder import as_json
from actors.declare.values.messages import MessageCodec
from actors.declare.values.schemas import topic_codecs
from actors.errors import UsageError
from actors.ports import Headers, TopicPartition
from actors.runtime.commands import ALL, Command
from actors.runtime.handlers.actor import Actor
from actors.runtime.handlers.query_methods import QueryTarget
from actors.runtime.message.outputs import ACTOR_HEADER, ORIGIN_HEADER
from actors.runtime.message.store import Store
from actors.runtime.message.unresolved import resolved_now
from actors.runtime.outbox import calls
from actors.runtime.quarantine.entries import ENTRY, read_entry
from actors.runtime.rows.stores import RowStore
from actors.runtime.task.task import Task
from actors.runtime.windows.committed import read_windows
from actors.runtime.windows.store import LAST_MS, WindowStore
from actors.runtime.windows.task_windows import TaskWindows
from actors.testing.fakes.log import StoredRecord
from stores._core.record import METADATA_BYTES
from stores.ports import PartitionStore


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that a topic holds: key and value decoded as the topic says, value None for a tombstone."""

    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes]]
    partition: int
    offset: int
    timestamp_ms: int

    @classmethod
    def of(cls, record: StoredRecord, decode_key: Callable[[bytes], Any], decode_value: Callable[[bytes], Any]) -> Self:
        """Decode a record."""
        return cls(
            None if record.key is None else decode_key(record.key),
            None if record.value is None else decode_value(record.value),
            record.headers,
            record.partition,
            record.offset,
            record.timestamp,
        )


@dataclass(frozen=True, slots=True)
class ParkedHere:
    """A parked message or effect, or one that waits behind a parked one of its key.

    Attributes:
        key, value: decoded as the actor's messages are; bytes where that fails. The value of an effect, and of the call
            of a private method, is its arguments as JSON has them, `(args, kwargs)`.
        headers, topic, partition, offset, timestamp_ms: as it came; of an effect the actor's first input, and -1.
        error: why it couldn't be handled or called; None if it only waits.
        attempts: how often it was tried.
        effect: the effect's name, None of a message.
    """

    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]]
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    error: str | None
    attempts: int
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of an actor: where it is, of how many, and its committed stores at a time."""

    source: TopicPartition
    partition_count: int
    stores: Mapping[Store[Any, Any], PartitionStore]
    now_ms: int


def dead_letter(actors: Mapping[str, ActorDefinition], record: StoredRecord) -> tuple[str, Sent]:
    """Return the name of a dead letter's actor, and the letter decoded as that one's messages are."""
    name = dict(record.headers)[ACTOR_HEADER].decode()
    topic = dict(record.headers)[ORIGIN_HEADER].decode().split("/")[0]
    # Where by= of an actor gives no key, the letter is a record of a topic that another actor reads.
    reader = next((one for one in actors.values() if topic in one.topic_names), actors[name])
    decode_key, decode_value = _decoders(reader, topic, record.headers)
    return name, Sent.of(record, decode_key, decode_value)


def topic_of(app: DeclaredApp, topic: Any) -> Any:
    """Return a topic of the app that is given by itself or by its name.

    Raises:
        UsageError: the app has no such topic.
    """
    if isinstance(topic, str):
        declared = [*(one for actor in app.actors.values() for one in actor.topics), *app.declared_topics]
        topics = {str(one.get_topic_name()): one for one in reversed(declared) if one.topics}
        if topic not in topics:
            raise UsageError(f"{topic!r} is no topic of this app, which has: {', '.join(sorted(topics)) or 'none'}")
        return topics[topic]
    if not hasattr(topic, "get_topic_name"):
        raise UsageError(
            f"{topic!r} is no topic. To send to an actor: driver.tell(actor, key, message), without waiting with "
            "driver.tell(actor, key, message, settle=False)"
        )
    return topic


def encoded(app: DeclaredApp, topic: Any, value: Any) -> tuple[bytes | None, Headers]:
    """Return a message for a topic as bytes, and the headers that it goes with.

    Raises:
        CodecError, UsageError: the class actor that reads the topic, or else the topic, doesn't take it.
    """
    if value is None:
        return None, []
    try:
        return messages_of(app.actors.values(), topic).with_headers(value)
    except (CodecError, UsageError):
        if topic.schema.value_type is not None or not isinstance(value, dict | list | str | int | float | bytes):
            raise
    # Data and bytes are what other programs send: right or not, the actor gets it.
    return topic_codecs(topic)[1].encode(value), []


def decoder_of(messages: MessageCodec, headers: Headers) -> Callable[[bytes], Any]:
    """Return the decoder of a record's value."""
    return partial(messages.of_record, headers)


def parked_effects(definition: ActorDefinition, partition: int, items: Mapping[bytes, bytes]) -> Iterator[ParkedHere]:
    """Return an actor's parked effects of a partition and the effects behind them, by key and place in line."""
    places = sorted((place for place in items if place.startswith(calls.PREFIX)), key=place_of)
    records = {place: record for place in places if (record := calls.decoded(items[place])) is not None}
    stuck = {calls.line_of(place) for place, record in records.items() if record.parked}
    key_codec, _ = topic_codecs(definition.topic)
    for place, record in records.items():
        raw_key = calls.line_of(place)
        if raw_key is not None and raw_key in stuck:
            key, value = _or_bytes(key_codec.decode)(raw_key), (tuple(record.args), record.kwargs)
            error, attempts, topic = record.error, record.attempts, definition.topic_name
            yield ParkedHere(key, value, (), topic, partition, -1, -1, error, attempts, record.name)


def parked_messages(definition: ActorDefinition, items: Mapping[bytes, bytes]) -> Iterator[ParkedHere]:
    """Return an actor's parked messages, by key and place in line."""
    for place in sorted((place for place in items if place.startswith(ENTRY)), key=place_of):
        held = read_entry(items.get, *place_of(place), items[place])
        headers: Any = held.headers
        decode_key, decode_value = _decoders(definition, held.topic, headers)
        yield ParkedHere(
            None if held.key is None else decode_key(held.key),
            None if held.value is None else (_arguments if held.method else decode_value)(held.value),
            held.headers,
            held.topic,
            held.partition,
            held.offset,
            held.timestamp_ms,
            held.error,
            held.attempts,
        )


def _arguments(raw: bytes) -> Any:
    return tuple(msgspec.json.decode(raw))


def commands_to_all(definition: ActorDefinition, command: Literal["retry", "drop"], before: int) -> list[bytes]:
    """Return the commands that retry or drop all that an actor parks of a key; `before` is the input's end.

    Raises:
        UsageError: it parks nothing.
    """
    told = [
        Command(actor=definition.name, what=what, command=command, id=ALL if command == "drop" else None, before=before)
        for what in parked_kinds(definition)
    ]
    return [msgspec.json.encode(one) for one in told]


def parked_kinds(definition: ActorDefinition) -> list[Literal["message", "effect"]]:
    """Return the kinds that an actor may park.

    Raises:
        UsageError: it parks nothing.
    """
    kinds: list[Literal["message", "effect"]] = [] if definition.parked is None else ["message"]
    kinds += [] if definition.effects is None else ["effect"]
    if not kinds:
        raise UsageError(f'actor {definition.name} parks nothing: declare it with on_error="park", or with effects')
    return kinds


def answer_query(definition: ActorDefinition, query: Any, key: Any, arguments: Mapping[str, Any], place: Place) -> Any:
    """Call a query, given by function or name.

    Raises:
        UsageError: the actor has none such.
        ReadOnlyQueryError: it tried to do more than read.
    """
    found = next((one for name, one in definition.queries.items() if query in (name, one.function)), None)
    if found is None:
        known = ", ".join(sorted(definition.queries)) or "none"
        raise UsageError(f"actor {definition.name} has no query {query!r}; its queries: {known}")
    key_codec, _ = topic_codecs(definition.topic)
    raw_key = key_codec.encode(key)
    asked = QueryTarget(
        definition.name,
        place.source,
        place.partition_count,
        key_codec.decode(raw_key),
        raw_key,
        place.now_ms,
        place.stores,
        tuple(store for store in definition.windows if isinstance(store, WindowStore)),
        None if definition.effects is None else calls.QueriedOutbox(definition.effects),
    )
    declared = definition.declared
    cls = declared if isinstance(declared, type) and issubclass(declared, Actor) else None
    answer = resolved_now(partial(asked.answer, found, found.bind(arguments, is_text=False), cls))
    # Over HTTP it becomes JSON, so what doesn't has to fail here.
    as_json(answer)
    return answer


def _decoders(
    definition: ActorDefinition, topic: str, headers: Headers
) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Return decoders of an actor's keys and values, which return the bytes if they can't be decoded."""
    input_ = definition.input_called(topic)
    key_codec, _ = topic_codecs(input_)
    return _or_bytes(key_codec.decode), _or_bytes(decoder_of(definition.messages(input_), headers))


def _or_bytes(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except Exception:
            # A user's type may raise anything about bytes that aren't one of it: that may be why the message is here.
            return raw

    return decoded


def committed_windows(
    store: WindowStore[Any, Any], key: Any, parts: Sequence[Mapping[bytes, bytes]]
) -> dict[Window, Any]:
    """Return the windows of a key in the partitions of a store."""
    raw_key, found = store.encode_key(key), {}
    for rows in parts:
        next_ms: int | None = 0
        while next_ms is not None:
            content, items = partial(_content, rows), partial(_between, rows)
            page = read_windows(store, content, raw_key, next_ms, LAST_MS, items=items)
            found.update({window: resolved_now(partial(store.result, raw)) for window, raw in page.windows})
            next_ms = page.next_ms
    return found


EMPTY: Mapping[str, Callable[[], Any]] = {"map": dict, "list": list, "set": set}


def rows_by_key(store: RowStore, items: Mapping[tuple[Any, ...], Any]) -> dict[Any, Any]:
    """Return the map, list or set of each key, of all rows of a store in order."""
    contents: dict[Any, Any] = {}
    for (key, *row), value in items.items():
        if row:
            content = contents.setdefault(key, EMPTY[store.kind]())
            if store.kind == "map":
                content[row[0]] = value
            elif store.kind == "list":
                content.append(value)
            else:
                content.add(row[0])
    return contents


def _content(rows: Mapping[bytes, bytes], row: bytes) -> bytes | None:
    raw = rows.get(row)
    return None if raw is None else raw[METADATA_BYTES:]


def _between(rows: Mapping[bytes, bytes], start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    return iter(sorted((row, raw) for row, raw in rows.items() if start <= row < end))


def advance_windows(tasks: Iterable[Task], to_ms: int) -> None:
    """Move stream time of tasks on."""
    for task, windows in _windows_of(tasks):
        windows.advance(to_ms)
        task.inbox.wake()


def close_windows(tasks: Iterable[Task]) -> None:
    """Move stream time of tasks on to where all their windows are closed."""
    for task, windows in _windows_of(tasks):
        if windows.latest_ms >= 0:
            windows.advance(windows.all_closed_ms)
            task.inbox.wake()


def _windows_of(tasks: Iterable[Task]) -> Iterator[tuple[Task, TaskWindows]]:
    for task in tasks:
        processor = task._processor
        windows = None if processor is None else processor.messages.windows
        if isinstance(windows, TaskWindows):
            yield task, windows
