"""Rows below a key: what a handler sees of its list, map and set is what its messages made of them before.

Rows of the list and the map expire. When all of them have, nothing is left of them in the changelog, not even how many
there were: that is counted down row by row, by whoever removes them.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from actors._core.values.rows import decode_span, row_parts
from actors.runtime.handlers import expiry
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.rows.stores import ListStore, MapStore, SetStore
from tests.sim import app
from tests.sim.part import Host, Operation, Part, Stores, now_ms_of, write_ms_of

LINES, CARTS, TAGS = "lines", "carts", "tags"
TOPIC = "rows"
OPERATION = "row"
LIVES_MS = (50, 500, 3_000, 10_000)
LINE_MS = 4_000
ODDS = {"say": 8, "cut": 2, "put": 6, "drop": 2, "tag": 5, "untag": 2, "wipe": 1, "see": 3}


class RowsPart(Part):
    """Inputs change one of the three and say what all have then; some fail first, with rows that must not stay."""

    name = "rows"
    stores = (LINES, CARTS, TAGS)
    topics = (TOPIC,)
    limits = ((expiry, "PASS_REST_S", (0.3, 2.0)), (expiry, "SLICE_KEYS", (1, 2, 500)))

    def make_input(self, key: str) -> str:
        what = self.random.choices(tuple(ODDS), tuple(ODDS.values()))[0]
        number = self.random.choice(LIVES_MS) if what == "put" else self.random.randrange(4)
        return f"{OPERATION}:{what} {number}"

    def make_stores(self, host: Host) -> Stores:
        row_stores = [
            Store(
                name,
                encode_key=bytes,
                decode_key=bytes,
                encode_value=_bytes,
                decode_value=bytes.decode,
                ttl_ms=LINE_MS if name == LINES else None,
                expires=name == CARTS,
            )
            for name in self.stores
        ]
        handles = (
            ListStore(row_stores[0], int.to_bytes, int.from_bytes),
            MapStore(row_stores[1], str.encode, bytes.decode),
            SetStore(row_stores[2], str.encode, bytes.decode),
        )
        for handle in handles:
            handle.encode_key, handle.decode_key = str.encode, bytes.decode
        return tuple(row_stores)

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        lines_store, carts_store, tags_store = (store.below for store in stores)

        async def row(ctx: Context, argument: str) -> None:
            what, number = argument.split()
            lines, cart, tags = (store.at(ctx.key) for store in (lines_store, carts_store, tags_store))
            if ctx.offset % 5 == 0 and self.is_first_attempt(ctx.topic, ctx.partition, ctx.offset):
                lines.append(app.GARBAGE)
                cart.set(app.GARBAGE, app.GARBAGE)
                tags.clear()
                self.fail_with_garbage(ctx)
            due_ms = write_ms_of(ctx) + _change(lines, cart, tags, what, int(number), ctx.offset)
            if ctx.offset % 4 == 1:
                # Rows may expire, and be removed, while what this one counted isn't with the others yet.
                await asyncio.sleep(0.3)
            shown = [list(lines), len(lines), lines[-2:], dict(cart.items()), len(cart), list(tags), len(tags)]
            _say(ctx, what, number, due_ms, shown)

        return {OPERATION: row}

    def forget(self, ctx: Context) -> None:
        """Say that a class actor has forgotten the key, and its rows with it."""
        _say(ctx, "wipe", "0", write_ms_of(ctx), [[], 0, [], {}, 0, [], 0])

    # --- the oracle ------------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        for partition in self.partitions:
            for store in (LINES, CARTS):
                for raw, value in self.folded(store, partition).items():
                    yield f"rows: {raw!r} of {store} is there: {value!r}"

    def check(self) -> Iterator[str]:
        for partition in self.partitions:
            contents: defaultdict[bytes, _Content] = defaultdict(_Content)
            for key, (what, number, text, now_ms, due_ms, shown) in self.events(TOPIC, partition):
                self.count(f"rows {what}")
                content = contents[key]
                content.handle(what, number, text, int(now_ms), int(due_ms))
                if not content.fits(json.loads(shown)):
                    yield f"rows: {key!r} of partition {partition} saw {shown} after {what}, and there was {content}"
            yield from self._check_tags(partition, contents)

    def _check_tags(self, partition: int, contents: Mapping[bytes, _Content]) -> Iterator[str]:
        """Compare the sets with the changelog, which has how many rows they have."""
        kept: defaultdict[bytes, set[str]] = defaultdict(set)
        spans = {}
        for raw, value in self.folded(TAGS, partition).items():
            raw_key, row = row_parts(raw)
            if row is None:
                spans[raw_key] = decode_span(value)
            else:
                kept[raw_key].add(row.decode())
        for key in contents.keys() | kept.keys() | spans.keys():
            tags = contents[key].tags if key in contents else set()
            span = spans.get(key, (0, 0))
            if kept[key] != tags or span != (0, len(tags)):
                yield f"rows: {key!r} of partition {partition} has {kept[key]} in the changelog, {span}, not {tags}"


@dataclass
class _Content:
    """What a key has: texts of the list and of the map with the times at which they expire.

    Where handlers run side by side, a message may have an earlier time than the one before: what has expired between
    the two may be removed or not.
    """

    lines: list[tuple[str, int]] = field(default_factory=list)
    cart: dict[str, tuple[str, int]] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    now_ms: int = 0
    latest_ms: int = 0

    def handle(self, what: str, number: str, text: str, now_ms: int, due_ms: int) -> None:
        self.now_ms, self.latest_ms = now_ms, max(now_ms, self.latest_ms)
        some = f"r{int(text) % 3}"
        if what == "say":
            self.lines.append((text, due_ms))
        elif what == "cut":
            visible = [line for line in self.lines if line[1] > now_ms]
            self.lines = visible[-int(number) :] if int(number) else []
        elif what == "put":
            self.cart[some] = (text, due_ms)
        elif what == "drop":
            self.cart.pop(some, None)
        elif what == "tag":
            self.tags.add(some + number)
        elif what == "untag":
            self.tags.discard(some + number)
        elif what == "wipe":
            self.lines, self.cart, self.tags = [], {}, set()

    def fits(self, shown: list[Any]) -> bool:
        lines, count, last, cart, carts, tags, number = shown
        is_consistent = (count, last, carts, number) == (len(lines), lines[-2:], len(cart), len(tags))
        may_be = {text for text, due_ms in (*self.lines, *self.cart.values()) if self.now_ms < due_ms <= self.latest_ms}
        sure_lines = [text for text, due_ms in self.lines if due_ms > self.latest_ms]
        sure_cart = {row: text for row, (text, due_ms) in self.cart.items() if due_ms > self.latest_ms}
        return (
            is_consistent
            and [text for text in lines if text not in may_be] == sure_lines
            and {row: text for row, text in cart.items() if text not in may_be} == sure_cart
            and tags == sorted(self.tags)
        )


def _say(ctx: Context, what: str, number: str, due_ms: int, shown: list[Any]) -> None:
    words = [what, number, ctx.offset, now_ms_of(ctx), due_ms, json.dumps(shown, separators=(",", ":"))]
    ctx.send(TOPIC, key=ctx.key, value=" ".join(map(str, words)))


def _change(lines: Any, cart: Any, tags: Any, what: str, number: int, offset: int) -> int:
    """Do what an input asks for; return how long its row lives, in milliseconds."""
    text, some, life_ms = str(offset), f"r{offset % 3}", 0
    if what == "say":
        lines.append(text)
        life_ms = LINE_MS
    elif what == "cut":
        del lines[: -number or None]
    elif what == "put":
        cart.set(some, text, ttl=timedelta(milliseconds=number))
        life_ms = number
    elif what == "drop":
        cart.delete(some)
    elif what == "tag":
        tags.add(f"{some}{number}")
    elif what == "untag":
        tags.discard(f"{some}{number}")
    elif what == "wipe":
        for rows in (lines, cart, tags):
            rows.clear()
    return life_ms


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
