"""A join of two streams: which records are called as pairs, and which as records without a match, and when.

Records are of the left or the right side, come out of order and partly too late, and lie on a grid of time, so that
many are just at the bounds of windows. The handlers are those of `app.join`. The function of the join says what it was
called for, and each record says behind its calls when it was handled. The oracle computes the calls anew from that: see
`_Book`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from actors._core.windows.join_rows import LEFT, RIGHT
from actors.declare.streams.joins import _Join
from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.message.failures import NULL_KEY, undecodable
from actors.runtime.windows import joins, removal, task_windows
from actors.runtime.windows.joins import How, JoinStore
from actors.runtime.windows.late import windowed
from actors.testing.fakes.cluster import EPOCH_MS
from tests.sim import app
from tests.sim.leaving import ClosingPart
from tests.sim.part import Handler, Host, Operation, Stores, raw_store
from tests.sim.windows import LAGS_MS, MAX_AHEAD_MS, UNTOLD, Streams, stream_ms_of

PAIRS = "pairs"
TOPIC = "joined"
LATE = "late-joins"
SIDES = ("left", "right")
"""The operations of the inputs, by `LEFT` and `RIGHT`."""
HOWS: tuple[How, ...] = ("outer", "outer", "left", "inner")
GRID_MS = 100
SPANS_MS = (0, 300, 1_000, 4_000)
PAIR, LONE, TAKEN = "pair", "lone", "taken"
NONE = "none"


def _send_late(ctx: Context, value: str) -> None:
    ctx.send(LATE, key=ctx.key, value=value, headers=ctx.headers)


class JoinsPart(ClosingPart):
    """With two inputs each side is an input; with one, both sides come in it."""

    name = "joins"
    stores = (PAIRS,)
    topics = (TOPIC, LATE)
    counts = (20, 40, 80)
    limits = (
        (task_windows, "CLOSES_AT_ONCE", (1, 3, *5 * (100,))),
        (removal, "REMOVALS", (4, 1000)),
        (joins, "CHUNK_BYTES", (40, 100, 2_048)),
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        shape = Random(f"{seed} joins")
        self.how = shape.choice(HOWS)
        self.before_ms, self.after_ms = shape.choice(SPANS_MS), shape.choice(SPANS_MS[1:])
        self.grace_ms = shape.choice((0, 300, 2_000))
        self._late = shape.choice(("drop", LATE))
        self._numbers = 0
        self._made: dict[Any, _Join] = {}

    @property
    def spans_ms(self) -> tuple[int, int]:
        """How long after a record of each side its last match may be."""
        return self.after_ms, self.before_ms

    @property
    def reports(self) -> tuple[bool, bool]:
        """Whether records of each side that match none are called."""
        return self.how != "inner", self.how == "outer"

    def closed_ms(self, side: int, at_ms: int) -> int:
        """Give the last stream time at which the window of a record is open."""
        return at_ms + self.spans_ms[side] + self.grace_ms

    def make_input(self, key: str) -> str:
        self._numbers += 1
        return f"{self.random.choice(SIDES)}:{self._numbers}"

    def input_topic(self, value: str) -> str:
        return self.world.inputs[-1] if value.startswith(SIDES[RIGHT]) else app.INPUT

    def timestamp_ms(self) -> int:
        at_ms = self.world.cluster.wall_ms() - self.random.randint(0, self.random.choice(LAGS_MS))
        return at_ms - at_ms % GRID_MS

    # --- the handler -----------------------------------------------------------------------------------------------

    def make_stores(self, host: Host) -> Stores:
        rows = raw_store(PAIRS)
        # As `app.join` has them.
        rows.placement = "key"
        return (rows,)

    def _make_join(self, stores: Stores) -> _Join:
        made = _Join(self._joined, self._late if self._late != LATE else _send_late)
        made.store = JoinStore(
            stores[0],
            how=self.how,
            before_ms=self.before_ms,
            after_ms=self.after_ms,
            grace_ms=self.grace_ms,
            decode_key=bytes.decode,
        )
        # In the place of the codecs of topics, of which there are none here.
        vars(made)["_decode"] = (bytes.decode, bytes.decode)
        if made.store.reports[LEFT]:
            made.store.on_close_function = made.unmatched
        return made

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        return {"windows": (self._made[stores[0]].store,), "max_ahead_ms": MAX_AHEAD_MS}

    def around(self, handler: Handler, stores: Stores) -> Handler:
        timed = windowed(handler, "handle", [self._made[stores[0]].store])

        async def handle(ctx: Context, value: str) -> Any:
            # Of an actor that is more than a join, other state lives with keys.
            if ctx.key is None:
                raise undecodable(ctx._source, ctx._record, NULL_KEY)
            return await timed(ctx, value)

        return handle

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        made = self._made[stores[0]] = self._make_join(stores)
        return {name: partial(self._take, name, made.handler(side)) for side, name in enumerate(SIDES)}

    async def _take(self, name: str, handler: Handler, ctx: Context, argument: str) -> None:
        await handler(ctx, f"{name}:{argument}")
        when = f"{ctx.timestamp_ms - EPOCH_MS} {ctx.stream_ms - EPOCH_MS}"
        ctx.send(TOPIC, key=ctx.key, value=f"{TAKEN} {app.place(ctx)} {SIDES.index(name)} {argument} {when}")

    async def _joined(self, ctx: Context, left: str | None, right: str | None) -> None:
        numbers, is_lone = [_number(one) for one in (left, right) if one is not None], None in (left, right)
        if is_lone:
            await self.pass_close()
        may_fail = sum(numbers) % 3 == 0 and not (is_lone and self.is_parking)
        message = (left, right) if is_lone else app.place(ctx)
        if may_fail and self.is_first_attempt(ctx.partition, ctx.key, message):
            self.fail_with_garbage(ctx)
        what = LONE if is_lone else PAIR
        told = " ".join(NONE if one is None else str(_number(one)) for one in (left, right))
        when = f"{ctx.timestamp_ms - EPOCH_MS} {ctx.stream_ms - EPOCH_MS}"
        ctx.send(TOPIC, key=ctx.key, value=f"{what} {told} {when} {ctx.offset}")

    # --- the oracle ------------------------------------------------------------------------------------------------

    def may_lack(self, store: str, rows: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """Give the records that nothing can match any more; `rows` are committed, with metadata."""
        stream_ms = stream_ms_of(rows) if store == PAIRS else None
        if stream_ms is None:
            return
        segment_ms = self.before_ms + self.after_ms + 1
        for row in rows:
            last_ms = (int.from_bytes(row[1:9]) + 1) * segment_ms - 1
            if row[:1] == b"j" and last_ms <= stream_ms - segment_ms - self.grace_ms:
                yield row

    def unsettled(self) -> Iterator[str]:
        for number in self.partitions:
            yield from self._replayed(number, self._streams(number)).missed()

    def check(self) -> Iterator[str]:
        for number in self.partitions:
            for _, (what, *_) in self.events(TOPIC, number):
                self.count(f"join {what}")
            book = self._replayed(number, self._streams(number))
            yield from book.wrong
            yield from self._diverted(number, book)

    def _streams(self, partition: int) -> Streams | None:
        return Streams(self, partition) if UNTOLD.isdisjoint(self.world.features) else None

    def _replayed(self, partition: int, streams: Streams | None) -> _Book:
        book = _Book(self, partition, streams)
        for key, (what, *words) in self.events(TOPIC, partition):
            {PAIR: book.pair, LONE: book.lone, TAKEN: book.taken}[what](key, words)
        return book

    def _diverted(self, partition: int, book: _Book) -> Iterator[str]:
        """See that each record that was late, and no other, went where those go."""
        log = self.world.cluster.log(TopicPartition(LATE, partition))
        found = Counter(_number(record.value.decode()) for record in log.history if record.is_committed)
        self.world.audit.counted["join late"] += book.late.total()
        self.world.audit.counted["join diverted"] += found.total()
        wanted = book.late if self._late == LATE else Counter[int]()
        if found != wanted:
            yield f"joins: partition {partition} diverted {found}, and {wanted} were late"


def _number(value: str) -> int:
    return int(value.partition(":")[2])


def _names(one: _Kept, other: _Kept | None) -> tuple[str, str]:
    """Give what a call is told by."""
    own, others = str(one.number), NONE if other is None else str(other.number)
    return (own, others) if one.side == LEFT else (others, own)


@dataclass
class _Kept:
    """A record that was in time."""

    number: int
    side: int
    at_ms: int
    is_matched: bool = False
    is_called: bool = False

    def matches(self, other: _Kept, part: JoinsPart) -> bool:
        """Tell whether two records are a pair."""
        left, right = (self, other) if self.side == LEFT else (other, self)
        return self.side != other.side and -part.before_ms <= right.at_ms - left.at_ms <= part.after_ms


class _Book:
    """The records of a partition as they say that they were handled, and what can't be of what they say.

    Attributes:
        late: how often records of each number were too late.
    """

    def __init__(self, part: JoinsPart, partition: int, streams: Streams | None) -> None:
        self.wrong: list[str] = []
        self.late: Counter[int] = Counter()
        self._part = part
        self._partition = partition
        self._streams = streams
        self._kept: defaultdict[bytes, list[_Kept]] = defaultdict(list)
        # Of the record that is told of next.
        self._pairs: list[tuple[bytes, list[str]]] = []
        self._stream_ms = self._closed_ms = -math.inf

    def pair(self, key: bytes, words: list[str]) -> None:
        """Take a call for a pair."""
        self._pairs.append((key, words[:4]))

    def taken(self, key: bytes, words: list[str]) -> None:
        """Take a record that was handled, after its calls."""
        side, number, at_ms, stream_ms = map(int, words[1:])
        self._pass_time(key, words[0], at_ms, stream_ms)
        one, found, self._pairs = _Kept(number, side, at_ms), self._pairs, []
        if stream_ms > self._part.closed_ms(side, at_ms):
            self.late[number] += 1
            if found:
                self._say(key, f"has {found} of {one}, which is late at {stream_ms}")
            return
        matches = sorted((other for other in self._kept[key] if one.matches(other, self._part)), key=_at_ms)
        wanted = [[*_names(one, other), str(max(at_ms, other.at_ms)), str(stream_ms)] for other in matches]
        if found != [(key, words) for words in wanted]:
            self._say(key, f"has {found} of {one} at {stream_ms}, not {wanted}")
        for other in matches:
            if stream_ms <= self._part.closed_ms(other.side, other.at_ms):
                other.is_matched = True
            elif not other.is_matched:
                self._part.count("join matched when it was due")
        one.is_matched = bool(matches)
        self._kept[key].append(one)

    def _pass_time(self, key: bytes, place: str, at_ms: int, stream_ms: int) -> None:
        """See that stream time goes on."""
        if stream_ms < max(self._stream_ms, at_ms):
            self._say(key, f"has the stream time {stream_ms} at {at_ms}, after {self._stream_ms}")
        self._stream_ms = max(self._stream_ms, stream_ms)
        if self._streams is not None and stream_ms != self._streams.at(int(place)) - EPOCH_MS:
            self._say(key, f"has the time {stream_ms} at {place}: inputs say {self._streams.at(int(place)) - EPOCH_MS}")

    def lone(self, key: bytes, words: list[str]) -> None:
        """Take a call for a record without a match."""
        if self._pairs:
            self._say(key, f"has {words} among the pairs of a record: {self._pairs}")
        side = LEFT if words[1] == NONE else RIGHT
        number, (at_ms, stream_ms, offset) = int(words[side]), map(int, words[2:])
        fit = (one for one in self._kept[key] if (one.side, one.number, one.at_ms) == (side, number, at_ms))
        one = next((one for one in fit if not (one.is_matched or one.is_called)), None)
        if one is None or not self._part.reports[side]:
            self._say(key, f"has {words} without a match, and there is {self._kept[key]}")
            return
        one.is_called = True
        self._part.count(f"join {SIDES[side]} lone")
        closed_ms = self._part.closed_ms(side, at_ms)
        if stream_ms != closed_ms:
            self._say(key, f"has {one} without a match at {stream_ms}, not {closed_ms}")
        if closed_ms < self._closed_ms:
            self._say(key, f"has {one} without a match after one whose window closed at {self._closed_ms}")
        self._closed_ms = max(self._closed_ms, closed_ms)
        if self._streams is not None and closed_ms >= self._streams.at(offset) - EPOCH_MS:
            self._say(key, f"has {one} without a match at {offset}, when its window is open")

    def missed(self) -> Iterator[str]:
        """Say which records match none, and were never called."""
        if self._streams is not None:
            # Records of the join aren't all that moves it.
            self._stream_ms = max(self._stream_ms, self._streams.reached_ms - EPOCH_MS)
        for key, records in self._kept.items():
            for one in records:
                is_over = self._part.closed_ms(one.side, one.at_ms) < self._stream_ms
                if is_over and self._part.reports[one.side] and not (one.is_matched or one.is_called):
                    yield f"joins: {key!r} of partition {self._partition}: {one} was never called"

    def _say(self, key: bytes, what: str) -> None:
        self.wrong.append(f"joins: {key!r} of partition {self._partition} {what}")


def _at_ms(one: _Kept) -> int:
    return one.at_ms
