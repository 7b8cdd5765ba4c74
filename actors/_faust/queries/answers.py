"""What this worker says about its own partitions of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from actors._core.pages import Part, Place, encode_place, merge_parts
from actors._faust.queries.coding import StoreCoding, encoded
from actors.runtime.queries import Bounds, Found, Held, StateReader, estimate, expiry_of, read, read_part
from actors.runtime.spec import ActorSpec
from stores._core.record import STAMP_BYTES

Item = dict[str, Any]
Positions = dict[str, dict[str, Any]]


class Asked(msgspec.Struct, frozen=True):
    """The partition and the stored bytes of a key that is asked for."""

    partition: int
    key: bytes


class Values(msgspec.Struct):
    """What an owner says to many keys: the results in the order of the keys, and the positions of its partitions."""

    results: list[dict[str, msgspec.Raw]]
    positions: dict[str, msgspec.Raw]


class Page(msgspec.Struct):
    """What an owner says to a range."""

    items: list[dict[str, msgspec.Raw]]
    positions: dict[str, msgspec.Raw]
    next: str | None = None


def position_of(held: Held) -> dict[str, Any]:
    """Give the position that what is read now belongs to."""
    position = held.position
    found = {
        "partition": held.partition,
        "changelog_offset": position.changelog_offset,
        "source_offset": position.source_offset,
        "epoch": position.epoch,
        "changelog_id": position.changelog_id,
    }
    if held.staleness_ms is not None:
        found["staleness_ms"] = held.staleness_ms
    return found


def freshness(positions: Mapping[str, Any]) -> Item:
    """Give what an answer says of its age: that of the oldest copy among its positions."""
    stale = []
    for position in positions.values():
        if isinstance(position, msgspec.Raw):
            raw = bytes(position)
            # Another worker's answer. Owners' have no age, and aren't looked into.
            found = msgspec.json.decode(raw) if b'"staleness_ms"' in raw else {}
        else:
            found = position
        if "staleness_ms" in found:
            stale.append(found["staleness_ms"])
    return {"read": "standby" if stale else "committed", "staleness_ms": max(stale, default=0)}


def positions_of(held: Iterable[Held]) -> Positions:
    """Give the positions by partition."""
    return {str(one.partition): position_of(one) for one in held}


def one_value(coding: StoreCoding, held: Held, key: bytes, *, is_raw: bool) -> tuple[Found, Item]:
    """Give the answer for one key, for `json_bytes`."""
    found = read(held, key)
    answer: Item = {
        "store": coding.store.name,
        "key": encoded(key) if is_raw else coding.plain_key(key),
        "value": None if found.value is None else coding.plain_value(found.value, is_raw=is_raw),
        "partition": held.partition,
        "expires_at_ms": found.expires_at_ms,
        "position": position_of(held),
        "read": "committed" if held.staleness_ms is None else "standby",
        "staleness_ms": held.staleness_ms or 0,
    }
    return found, answer


async def many_values(
    reader: StateReader, spec: ActorSpec, coding: StoreCoding, asked: Sequence[Asked], *, is_raw: bool
) -> tuple[list[Item], Positions]:
    """Give the answers for keys of this worker's partitions, those of a partition all of one position."""
    partitions = sorted({one.partition for one in asked})
    held = {one.partition: one.of(coding.store.name) for one in await reader.hold(spec, partitions)}
    results = []
    for one in asked:
        found = read(held[one.partition], one.key)
        results.append(
            {
                "value": None if found.value is None else coding.show_value(found.value, is_raw=is_raw),
                "found": found.value is not None,
                "partition": one.partition,
                "expires_at_ms": found.expires_at_ms,
            }
        )
    return results, positions_of(held.values())


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
) -> tuple[Part[Item], Positions]:
    """Give the next rows of this worker's partitions."""
    held = [one.of(coding.store.name) for one in await reader.hold(spec, partitions)]
    part = read_part(held, bounds, after, limit)
    rows: list[tuple[Place, Item]] = [
        (
            place,
            {
                "key": encoded(place[0]) if is_raw else coding.show_key(place[0]),
                "value": coding.show_value(raw[STAMP_BYTES:], is_raw=is_raw),
                "partition": one.partition,
                "expires_at_ms": expiry_of(raw),
            },
        )
        for place, (one, raw) in part.rows
    ]
    return Part(rows, part.through), positions_of(held)


def as_page(store: str, parts: Iterable[tuple[Part[Item], Positions]], limit: int, *, with_places: bool) -> Item:
    """Give one page of several owners' parts; `with_places` for a worker that merges it with others'."""
    parts = list(parts)
    merged = merge_parts([part for part, _ in parts], limit)
    items = [{**item, "at": encode_place(place)} if with_places else item for place, item in merged.rows]
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
