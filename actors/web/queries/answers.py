"""Answers of this worker about its own partitions of a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from actors._core.outside import MALFORMED
from actors._core.pages import Part, Place, cut, decode_place, encode_place, merge_parts
from actors.errors import NotReadyError
from actors.runtime.queries.histories import read_part_as_of
from actors.runtime.queries.queries import Bounds, Found, Held, StateReader, estimate, read, read_part
from actors.runtime.spec import ActorSpec
from actors.web.queries.coding import StoreCoding, as_json, encoded
from actors.web.queries.histories import AsOf

NULL = msgspec.Raw(b"null")
Took = Callable[[int], None]
"""Counts bytes that the request holds; raises where they are too many."""


class StoredKey(msgspec.Struct, frozen=True):
    """The partition and the stored bytes of a requested key."""

    partition: int
    key: bytes


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a partition that an answer belongs to.

    Attributes:
        changelog_offset: the next offset of the changelog.
        source_offset: the next offset of the actor's first input.
        epoch: grows with each owner of the partition.
        changelog_id: the id of the changelog's topic.
        staleness_ms: of a standby: how old the answer may be.
    """

    partition: int
    changelog_offset: int
    source_offset: int
    epoch: int
    changelog_id: str
    staleness_ms: int | None = None


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """The value of one of many keys."""

    value: msgspec.Raw
    found: bool
    partition: int
    expires_at_ms: int | None


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of a page; `at` is its place, for the worker that merges pages."""

    key: msgspec.Raw
    value: msgspec.Raw
    partition: int
    expires_at_ms: int | None
    at: str = ""


Positions = dict[str, Position]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The age of what an answer shows; see `freshness`."""

    read: Literal["committed", "standby"]
    staleness_ms: int


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The partition of the key that is answered for; see `of_part`."""

    partition: int
    position: Position
    read: Literal["committed", "standby"]
    staleness_ms: int


class ValueAnswer(KeyAnswer, frozen=True):
    """The value of a key."""

    store: str
    key: Any
    value: Any
    expires_at_ms: int | None


class KeyedValue(Value, frozen=True):
    """One of many keys, with its value."""

    key: msgspec.Raw


class ManyAnswer(Answer, frozen=True):
    """The values of many keys. `next` is the number of results if they aren't of all keys: ask for the rest."""

    store: str
    results: list[KeyedValue]
    next: int | None
    positions: Positions


class PageAnswer(Answer, frozen=True):
    """Keys and values in byte order of the keys. `next` is the cursor of the next page."""

    store: str
    items: list[Item]
    next: str | None
    positions: Positions


class CountAnswer(msgspec.Struct, frozen=True):
    """How many keys there are; an estimate also counts expired keys."""

    store: str
    count: int
    exact: bool
    read: Literal["committed"] = "committed"


class AskAnswer(Answer, frozen=True):
    """The result of an actor's query."""

    actor: str
    query: str
    key: Any
    value: Any
    partition: int
    positions: Positions


class Overview(msgspec.Struct, frozen=True):
    """The stores and actors of the app, the owners of their partitions, and the standbys of this worker."""

    app: str
    worker: str
    address: str
    stores: list[dict[str, Any]]
    actors: list[dict[str, Any]]
    partitions: list[dict[str, Any]]
    copies: list[dict[str, Any]]


Said = TypeVar("Said", bound=msgspec.Struct)


def decoded(raw: bytes, kind: type[Said], address: str) -> Said:
    """Read another worker's answer; `NotReadyError` if it isn't one."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except MALFORMED as error:
        raise NotReadyError(f"the answer of {address} can't be read: {error}") from error


def part_of(raw: bytes, address: str) -> tuple[Part[Item], Positions]:
    """Read another worker's page; raises as `decoded` does."""
    found = decoded(raw, PageAnswer, address)
    try:
        rows = [(decode_place(item.at), item) for item in found.items]
        through = None if found.next is None else decode_place(found.next)
    except ValueError as error:
        raise NotReadyError(f"the page of {address} can't be read: {error}") from error
    return Part(rows, through), found.positions


def position_of(held: Held) -> Position:
    """Return the position that what is read now belongs to."""
    position = held.position
    return Position(
        held.partition,
        position.changelog_offset,
        position.source_offset,
        position.epoch,
        position.changelog_id,
        held.staleness_ms,
    )


def freshness(positions: Iterable[Position]) -> dict[str, Any]:
    """Return `read` and `staleness_ms` of an answer: those of the oldest standby among its positions."""
    stale = [position.staleness_ms for position in positions if position.staleness_ms is not None]
    return {"read": "standby" if stale else "committed", "staleness_ms": max(stale, default=0)}


def of_part(held: Held) -> dict[str, Any]:
    """Return what an answer for a key says of the partition that it was read from."""
    position = position_of(held)
    return {"partition": held.partition, "position": position, **freshness([position])}


def positions_of(held: Iterable[Held]) -> Positions:
    """Return the positions by partition."""
    return {str(one.partition): position_of(one) for one in held}


def one_value(coding: StoreCoding, held: Held, key: bytes, found: Found, *, is_raw: bool) -> ValueAnswer:
    """Return the answer for one key, of which `found` was read."""
    return ValueAnswer(
        store=coding.store.name,
        key=encoded(key) if is_raw else coding.plain_key(key),
        value=None if found.value is None else coding.plain_value(found.value, is_raw=is_raw),
        expires_at_ms=found.expires_at_ms,
        **of_part(held),
    )


async def many_values(
    reader: StateReader,
    spec: ActorSpec,
    coding: StoreCoding,
    asked: Sequence[StoredKey],
    *,
    is_raw: bool,
    max_bytes: int,
    took: Took,
) -> tuple[list[Value], Positions]:
    """Return the answers for keys of this worker's partitions, those of a partition all of one position.

    They end behind the first that exceeds `max_bytes` together with those before it.
    """
    async with reader.pace.places:
        partitions = sorted({one.partition for one in asked})
        held = {one.partition: one.of(coding.store.name) for one in await reader.hold(spec, partitions)}
        found: list[Found] = []
        size = 0
        with reader.pace.charged():
            for one in asked:
                found.append(read(held[one.partition], one.key))
                size += len(found[-1].value or b"")
                if size >= max_bytes:
                    break
        took(size)

        def values() -> Iterator[Value]:
            left = max_bytes
            for one, (value, expires_ms) in zip(asked, found, strict=False):
                shown = NULL if value is None else as_json(coding.plain_value(value, is_raw=is_raw))
                took(_size(shown))
                left -= _size(shown)
                yield Value(value=shown, found=value is not None, partition=one.partition, expires_at_ms=expires_ms)
                if left <= 0:
                    return

        return await reader.pace.run(values()), positions_of(held.values())


async def page(
    reader: StateReader,
    spec: ActorSpec,
    coding: StoreCoding,
    partitions: Collection[int],
    *,
    bounds: Bounds,
    after: Place | None,
    limit: int,
    as_of: AsOf | None,
    is_raw: bool,
    max_bytes: int,
    took: Took,
) -> tuple[Part[Item], Positions]:
    """Return the next rows of this worker's partitions, of a table also as of a time; they end as `many_values` do."""
    async with reader.pace.places:
        tasks = await reader.hold(spec, partitions)
        held = [one.of(coding.store.name) for one in tasks]
        with reader.pace.charged():
            if as_of is None:
                part = read_part(held, bounds, after, limit, max_bytes)
            else:
                with as_of.explained():
                    part = read_part_as_of(as_of.table, tasks, bounds, after, limit, max_bytes, at_ms=as_of.at_ms)
        took(sum(len(found.value or b"") for _, (_, found) in part.rows))

        def items() -> Iterator[tuple[Place, Item]]:
            left = max_bytes
            for place, (one, found) in part.rows:
                key = as_json(encoded(place[0]) if is_raw else coding.plain_key(place[0]))
                value = as_json(coding.plain_value(found.value or b"", is_raw=is_raw, raw_key=place[0]))
                item = Item(key, value, one.partition, found.expires_at_ms)
                took(item_bytes(item))
                left -= item_bytes(item)
                yield place, item
                if left <= 0:
                    return

        rows = await reader.pace.run(items())
        through = part.through if len(rows) == len(part.rows) else rows[-1][0]
        return Part(rows, through), positions_of(held)


def as_page(
    store: str, parts: Iterable[tuple[Part[Item], Positions]], limit: int, *, max_bytes: int, with_places: bool
) -> PageAnswer:
    """Return one page of several owners' parts; `with_places` for a worker that merges it with others'."""
    parts = list(parts)
    merged = cut(merge_parts([part for part, _ in parts], limit), max_bytes, item_bytes)
    items = [
        msgspec.structs.replace(item, at=encode_place(place) if with_places else "") for place, item in merged.rows
    ]
    positions: Positions = {}
    for _, theirs in parts:
        positions.update(theirs)
    through = None if merged.through is None else encode_place(merged.through)
    return PageAnswer(store=store, items=items, next=through, positions=positions, **freshness(positions.values()))


def as_values(
    store: str,
    keys: Sequence[msgspec.Raw],
    places: Sequence[int],
    found: Mapping[int, Value],
    positions: Positions,
    *,
    max_bytes: int,
) -> ManyAnswer:
    """Return the answer for many keys, or the first of them.

    Args:
        store: the store's name.
        keys: as they were asked for, equal ones too.
        places: the place of each in what was looked up, where equal ones are once.
        found: what there is of each place; some may be left out.
        positions: of the partitions.
        max_bytes: the answer ends before the key that exceeds it, unless that is the first one.
    """
    results: list[KeyedValue] = []
    left = max_bytes
    for key, place in zip(keys, places, strict=True):
        value = found.get(place)
        left -= 0 if value is None else _size(key) + _size(value.value)
        if value is None or (left < 0 and results):
            break
        # Another worker's values have its keys, in its spelling.
        results.append(
            KeyedValue(
                key,
                value=value.value,
                found=value.found,
                partition=value.partition,
                expires_at_ms=value.expires_at_ms,
            )
        )
    next_key = None if len(results) == len(keys) else len(results)
    age = freshness(positions.values())
    return ManyAnswer(store=store, results=results, next=next_key, positions=positions, **age)


def item_bytes(item: Item) -> int:
    """Estimate the length of a row as JSON."""
    return _size(item.key) + _size(item.value)


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


async def count(
    reader: StateReader,
    spec: ActorSpec,
    store: str,
    partitions: Collection[int],
    *,
    bounds: Bounds | None,
) -> int:
    """Count the keys of this worker's partitions; estimate them where `bounds` is None."""
    if bounds is None:
        return estimate([one.of(store) for one in await reader.hold(spec, partitions)])
    return await reader.count(spec, store, partitions, bounds)
