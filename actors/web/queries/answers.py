"""What this worker says about its own partitions of a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from actors._core.outside import MALFORMED
from actors._core.pages import Part, Place, cut, decode_place, encode_place, merge_parts
from actors.errors import NotReadyError
from actors.runtime.queries.queries import Bounds, Found, Held, StateReader, estimate, expiry_of, read, read_part
from actors.runtime.spec import ActorSpec
from actors.web.queries.coding import StoreCoding, as_json, encoded
from stores._core.record import METADATA_BYTES

NULL = msgspec.Raw(b"null")
Took = Callable[[int], None]
"""Counts bytes that the request holds; raises where they are too many."""


class StoredKey(msgspec.Struct, frozen=True):
    """The partition and the stored bytes of a key that is asked for."""

    partition: int
    key: bytes


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a partition that an answer belongs to; `staleness_ms` is a copy's."""

    partition: int
    changelog_offset: int
    source_offset: int
    epoch: int
    changelog_id: str
    staleness_ms: int | None = None


class Value(msgspec.Struct, frozen=True):
    """What there is of one of many keys."""

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


class Values(msgspec.Struct):
    """What an owner says to many keys: results in the order of the keys, of all or the first of them."""

    results: list[Value]
    positions: Positions


class Page(msgspec.Struct):
    """What an owner says to a range."""

    items: list[Item]
    positions: Positions
    next: str | None = None


class Count(msgspec.Struct):
    """What an owner says to a count."""

    count: int


Said = TypeVar("Said", Values, Page, Count)


def decoded(raw: bytes, kind: type[Said], address: str) -> Said:
    """Read another worker's answer.

    Raises:
        NotReadyError: it isn't one.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except MALFORMED as error:
        raise NotReadyError(f"the answer of {address} can't be read: {error}") from error


def part_of(raw: bytes, address: str) -> tuple[Part[Item], Positions]:
    """Read another worker's page; raises as `decoded` does."""
    found = decoded(raw, Page, address)
    try:
        rows = [(decode_place(item.at), item) for item in found.items]
        through = None if found.next is None else decode_place(found.next)
    except ValueError as error:
        raise NotReadyError(f"the page of {address} can't be read: {error}") from error
    return Part(rows, through), found.positions


def position_of(held: Held) -> Position:
    """Give the position that what is read now belongs to."""
    position = held.position
    return Position(
        held.partition,
        position.changelog_offset,
        position.source_offset,
        position.epoch,
        position.changelog_id,
        held.staleness_ms,
    )


def freshness(positions: Mapping[str, Position]) -> dict[str, Any]:
    """Give what an answer says of its age: that of the oldest copy among its positions."""
    stale = [position.staleness_ms for position in positions.values() if position.staleness_ms is not None]
    return {"read": "standby" if stale else "committed", "staleness_ms": max(stale, default=0)}


def positions_of(held: Iterable[Held]) -> Positions:
    """Give the positions by partition."""
    return {str(one.partition): position_of(one) for one in held}


def one_value(coding: StoreCoding, held: Held, key: bytes, found: Found, *, is_raw: bool) -> dict[str, Any]:
    """Give the answer for one key, of which `found` was read, for `json_bytes`."""
    return {
        "store": coding.store.name,
        "key": encoded(key) if is_raw else coding.plain_key(key),
        "value": None if found.value is None else coding.plain_value(found.value, is_raw=is_raw),
        "partition": held.partition,
        "expires_at_ms": found.expires_at_ms,
        "position": position_of(held),
        "read": "committed" if held.staleness_ms is None else "standby",
        "staleness_ms": held.staleness_ms or 0,
    }


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
    """Give the answers for keys of this worker's partitions, those of a partition all of one position.

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
                shown = NULL if value is None else coding.show_value(value, is_raw=is_raw)
                took(_size(shown))
                left -= _size(shown)
                yield Value(shown, value is not None, one.partition, expires_ms)
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
    is_raw: bool,
    max_bytes: int,
    took: Took,
) -> tuple[Part[Item], Positions]:
    """Give the next rows of this worker's partitions; they end as `many_values` do."""
    async with reader.pace.places:
        held = [one.of(coding.store.name) for one in await reader.hold(spec, partitions)]
        with reader.pace.charged():
            part = read_part(held, bounds, after, limit, max_bytes)
        took(sum(len(raw) for _, (_, raw) in part.rows))

        def items() -> Iterator[tuple[Place, Item]]:
            left = max_bytes
            for place, (one, raw) in part.rows:
                key = as_json(encoded(place[0])) if is_raw else coding.show_key(place[0])
                value = coding.show_value(raw[METADATA_BYTES:], is_raw=is_raw)
                item = Item(key, value, one.partition, expiry_of(raw))
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
) -> dict[str, Any]:
    """Give one page of several owners' parts; `with_places` for a worker that merges it with others'."""
    parts = list(parts)
    merged = cut(merge_parts([part for part, _ in parts], limit), max_bytes, item_bytes)
    items = [
        msgspec.structs.replace(item, at=encode_place(place) if with_places else "") for place, item in merged.rows
    ]
    positions: Positions = {}
    for _, theirs in parts:
        positions.update(theirs)
    return {
        "store": store,
        "items": items,
        "next": None if merged.through is None else encode_place(merged.through),
        "positions": positions,
        **freshness(positions),
    }


def as_values(
    store: str,
    keys: Sequence[msgspec.Raw],
    places: Sequence[int],
    found: Mapping[int, Value],
    positions: Positions,
    *,
    max_bytes: int,
) -> dict[str, Any]:
    """Give the answer for many keys, or the first of them.

    Args:
        store: the store's name.
        keys: as they were asked for, equal ones too.
        places: the place of each in what was looked up, where equal ones are once.
        found: what there is of each place; some may be left out.
        positions: of the partitions.
        max_bytes: the answer ends before the key that exceeds it, unless that is the first one.
    """
    results: list[dict[str, Any]] = []
    left = max_bytes
    for key, place in zip(keys, places, strict=True):
        value = found.get(place)
        left -= 0 if value is None else _size(key) + _size(value.value)
        if value is None or (left < 0 and results):
            break
        results.append({"key": key, **msgspec.structs.asdict(value)})
    return {
        "store": store,
        "results": results,
        "next": None if len(results) == len(keys) else len(results),
        "positions": positions,
        **freshness(positions),
    }


def item_bytes(item: Item) -> int:
    """Give about how long a row is as JSON."""
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
