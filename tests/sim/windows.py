"""Windows over event time: what each takes, when it is over, and what its close says.

Events come out of order, some too late. Each is added to aligned windows, to sessions and to sliding windows. The close
of an aligned window adds its sum to a larger one: a result of results. Aligned windows and sessions that changed are
emitted once in an interval. The handler says what it changed and when, and the oracle computes the windows anew from
that: see `_Book`.

In half of the runs each process has a grace, a retention and an interval of its own, so that they become longer and
shorter with each takeover. What the least grace closes, and the longest one leaves open, is certain then; in between,
what the handler says is taken, and a window that was closed stays closed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from actors._core.aggregates import Aggregate
from actors._core.windows.kinds import SEGMENTS, Hopping, Session, Sliding, Tumbling, Window, Windows
from actors.declare.streams.windows import Every, emitting, timed, window_store
from actors.declare.values.codecs import resolve
from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.task import in_order
from actors.runtime.windows import removal, task_windows
from actors.runtime.windows.late import windowed
from actors.runtime.windows.store import WindowStore
from actors.testing.fakes.cluster import EPOCH_MS
from actors.testing.fakes.log import StoredRecord
from stores._core.record import METADATA_BYTES
from tests.sim import app
from tests.sim.leaving import ClosingPart
from tests.sim.part import Handler, Host, Operation, Part, Stores, raw_store
from tests.sim.window_books import Emits, Held, Place, Slides

SPANS, VISITS, ROLLUPS, NEAR = KINDS = "spans", "visits", "rollups", "near"
EMITTED = {SPANS: f"{SPANS}-changes", VISITS: f"{VISITS}-changes"}
"""The stores that emit what changed, each with the store of the changes that wait."""
TOPIC = "windows"
LATE = "late-events"
OPERATION = "event"
MAX_AHEAD_MS = 86_400_000
LAGS_MS = (0, 0, 300, 1_500, 8_000)
"""How much older than the newest an event may be."""
DELAY_MS = 30_000
"""How long the records of a transaction may be on their way."""
LONG_MS = 3_600_000
"""A retention longer than a run."""
MOVED = frozenset(("park", "operator", "retention", "recreate", "expired", "grow", "inputs", "replaced"))
"""Features with which an event may come long after its time, or inputs don't tell what was handled before."""
UNTOLD = MOVED | {"asks", "parallel", "poison", "refused", "unparking", "versions"}
"""Features with which not every record of the input moves stream time, or some that do are handled later."""
NONE = "none"
_WORD = 8


def _counted(state: tuple[int, int], number: int) -> tuple[int, int]:
    return state[0] + 1, state[1] + number


def _merged(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    return one[0] + two[0], one[1] + two[1]


COUNT_AND_SUM: Aggregate[tuple[int, int]] = Aggregate((0, 0), _counted, _merged, tuple[int, int])


def _send_late(ctx: Context, value: str) -> None:
    ctx.send(LATE, key=ctx.key, value=value, headers=ctx.headers)


class WindowsPart(ClosingPart):
    """Inputs are events of some age; closes may fail, and where keys are handled side by side there are none."""

    name = "windows"
    stores = (*KINDS, *EMITTED.values())
    topics = (TOPIC, LATE)
    limits = (
        (task_windows, "CLOSES_AT_ONCE", (1, 3, *5 * (100,))),
        (removal, "REMOVALS", (4, 1000)),
        (in_order, "DUE_S", (0.0, 0.001)),
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        shape = Random(f"{seed} windows")
        self.size_ms = shape.choice((400, 2_000, 5_000))
        self.advance_ms = self.size_ms // shape.choice((1, 1, 2))
        self.grace_ms = shape.choice((0, 300, 2_000))
        self.gap_ms = shape.choice((200, 1_000, 3_000))
        self._late = shape.choice(("handle", "drop", LATE))
        self.near_ms = shape.choice((200, 1_000, 3_000))
        every = shape.choice((1, 2, 4))
        settings = Random(f"{seed} settings of windows")
        self._changes_settings = settings.random() < 0.5
        if self._changes_settings:
            # Long windows get events before a restart and after it.
            lengths = Random(f"{seed} long windows")
            self.size_ms = lengths.choice((5_000, 10_000))
            self.advance_ms = self.size_ms // lengths.choice((1, 1, 2))
            every = lengths.choice((1, 2, 4))
        self.rollup_ms = self.size_ms * 5
        self.every_ms = self.size_ms // every
        graces_ms = settings.sample((0, 300, 2_000, 10_000), 3)
        self.graces_ms = tuple(graces_ms) if self._changes_settings else (self.grace_ms,)
        self._numbers = 0
        self._made: dict[Any, WindowStore[Any, Any]] = {}

    def _settings(self, host: Host) -> tuple[int, int, int]:
        """Give the grace, what is kept for longer than it is needed, and the interval of a process's program."""
        if not self._changes_settings:
            return self.grace_ms, 0, self.every_ms
        drawn = Random(f"{self._seed} settings of {host.name}")
        every_ms = self.size_ms // drawn.choice((1, 2, 4))
        return drawn.choice(self.graces_ms), drawn.choice((0, 0, 5_000)), every_ms

    @property
    def closes(self) -> bool:
        """Whether windows have closes: where messages have no order, they can't."""
        return self.world.concurrency == 1

    def make_input(self, key: str) -> str:
        self._numbers += 1
        return f"{OPERATION}:{self._numbers}"

    def timestamp_ms(self) -> int:
        return self.world.cluster.wall_ms() - self.random.randint(0, self.random.choice(LAGS_MS))

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        return {"windows": self._timed(stores), "max_ahead_ms": MAX_AHEAD_MS}

    def _timed(self, stores: Stores) -> tuple[Any, ...]:
        return timed(self._made[rows] for rows in stores if rows in self._made)

    def make_stores(self, host: Host) -> Stores:
        grace_ms, more_ms, every_ms = self._settings(host)
        made = {name: self._make_store(name, grace_ms, more_ms) for name in KINDS}
        changes = {name: raw_store(EMITTED[name]) for name in EMITTED}
        for name, rows in changes.items():
            rows.placement = "key"
            emitting(made[name], rows, Every(milliseconds=every_ms))
        if self.closes:
            for store in made.values():
                store.on_close(partial(self._close, store, made[ROLLUPS]))
            for name in EMITTED:
                made[name].on_emit(partial(self._emit, name))
        return (*(store.rows for store in made.values()), *changes.values())

    def _make_store(self, name: str, grace_ms: int, more_ms: int) -> WindowStore[Any, Any]:
        rows, key, plain = raw_store(name), resolve(str), resolve(None)
        # As `app.window_store` has them.
        rows.placement = "key"
        made = window_store(
            rows,
            self._kind(name),
            grace=timedelta(milliseconds=grace_ms),
            retention=timedelta(milliseconds=self.retention_ms(name, grace_ms, more_ms)),
            keys=lambda: key,
            value=plain,
            aggregate=COUNT_AND_SUM,
        )
        self._made[rows] = made
        return made

    def _kind(self, name: str) -> Windows:
        size, advance, gap, rollup = (
            timedelta(milliseconds=span) for span in (self.size_ms, self.advance_ms, self.gap_ms, self.rollup_ms)
        )
        if name == VISITS:
            return Session(gap)
        if name == ROLLUPS:
            return Tumbling(rollup)
        if name == NEAR:
            return Sliding(timedelta(milliseconds=self.near_ms))
        return Tumbling(size) if size == advance else Hopping(size, advance)

    def retention_ms(self, name: str, grace_ms: int, more_ms: int = 0) -> int:
        """Give how long windows are kept: no longer than they are needed, where that can be told."""
        if not MOVED.isdisjoint(self.world.features):
            return LONG_MS
        if name == VISITS:
            # Their lists are as long as it says.
            grace_ms, more_ms = max(self.graces_ms), 0
        length_ms = {SPANS: self.size_ms, VISITS: self.gap_ms + max(LAGS_MS) + DELAY_MS, ROLLUPS: self.rollup_ms}
        return (length_ms | {NEAR: 2 * self.near_ms})[name] + grace_ms + more_ms

    # --- the handler -----------------------------------------------------------------------------------------------

    def around(self, handler: Handler, stores: Stores) -> Handler:
        windows = self._timed(stores)
        always, in_time = (
            windowed(handler, "handle", windows),
            windowed(handler, self._late if self._late != LATE else _send_late, windows),
        )

        async def handle(ctx: Context, value: str) -> Any:
            is_own = value.partition(":")[0] == OPERATION
            return await (in_time if is_own else always)(ctx, value)

        return handle

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        spans, visits, _, near = (self._made[rows] for rows in stores[: len(KINDS)])
        grace_ms, _, every_ms = self._settings(host)

        async def event(ctx: Context, argument: str) -> None:
            number, is_late = int(argument), ctx.late
            changed = [_told(store.add(ctx.key, number)) for store in (spans, visits, near)]
            if number % 5 == 0 and self.is_first_attempt(ctx.partition, ctx.key, number):
                self.fail_with_garbage(ctx)
            when = f"{ctx.timestamp_ms - EPOCH_MS} {ctx.stream_ms - EPOCH_MS} {int(is_late)}"
            told = f"{OPERATION} {number} {ctx.offset} {when} {' '.join(changed)} {grace_ms} {every_ms}"
            ctx.send(TOPIC, key=ctx.key, value=told)

        return {OPERATION: event}

    async def _close(
        self, store: WindowStore[Any, Any], rollups: WindowStore[Any, Any], ctx: Context, window: Window, value: Any
    ) -> None:
        await self.pass_close()
        count, total = value
        added = _told(rollups.add(ctx.key, total)) if store.name == SPANS else NONE
        may_fail = total % 3 == 0 and not self.is_parking
        if may_fail and self.is_first_attempt(store.name, ctx.partition, ctx.key, window):
            self.fail_with_garbage(ctx)
        place = f"{window.start_ms - EPOCH_MS} {window.end_ms - EPOCH_MS}"
        ctx.send(TOPIC, key=ctx.key, value=f"closed {store.name} {place} {count} {total} {ctx.offset} {added}")

    async def _emit(self, store: str, ctx: Context, window: Window, value: Any) -> None:
        await self.pass_close()
        count, total = value
        may_fail = total % 4 == 0 and not self.is_parking
        if may_fail and self.is_first_attempt("emit", store, ctx.partition, ctx.key, window, ctx.timestamp_ms):
            self.fail_with_garbage(ctx)
        place = f"{window.start_ms - EPOCH_MS} {window.end_ms - EPOCH_MS}"
        at_ms = ctx.timestamp_ms - EPOCH_MS
        ctx.send(TOPIC, key=ctx.key, value=f"emitted {store} {place} {count} {total} {ctx.offset} {at_ms}")

    # --- the oracle ------------------------------------------------------------------------------------------------

    def may_lack(self, store: str, rows: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """Give the rows that are past their retention; `rows` are committed, with metadata."""
        stream_ms = stream_ms_of(rows) if store in KINDS else None
        if stream_ms is None:
            return
        retention_ms = self.retention_ms(store, min(self.graces_ms))
        segment_ms = self.near_ms if store == NEAR else max(self.gap_ms, -(-retention_ms // SEGMENTS))
        for row in rows:
            at = int.from_bytes(row[1 : 1 + _WORD])
            end = {b"w": at, b"k": (at + 1) * segment_ms}.get(row[:1])
            if end is not None and end <= stream_ms - retention_ms:
                yield row

    def unsettled(self) -> Iterator[str]:
        if not self.closes or "grow" in self.world.features:
            return
        for number in self.partitions:
            yield from self._replayed(number, self._streams(number)).missed()

    def check(self) -> Iterator[str]:
        for number in self.partitions:
            for _, (what, *_) in self.events(TOPIC, number):
                self.count(f"window {what}")
            late = [record for record in self._log(LATE, number) if record.is_committed]
            self.world.audit.counted["window late"] += len(late)
            streams = self._streams(number)
            yield from self._replayed(number, streams).wrong
            yield from self._accounted(number, late, streams)

    def _streams(self, partition: int) -> Streams | None:
        return Streams(self, partition) if UNTOLD.isdisjoint(self.world.features) else None

    def _log(self, topic: str, partition: int) -> Sequence[StoredRecord]:
        return self.world.cluster.log(TopicPartition(topic, partition)).history

    def _replayed(self, partition: int, streams: Streams | None) -> _Book:
        book = _Book(self, partition, streams)
        for key, (what, *words) in self.events(TOPIC, partition):
            {OPERATION: book.event, "closed": book.close, "emitted": book.emit}[what](key, words)
        return book

    def _accounted(self, partition: int, late: Sequence[StoredRecord], streams: Streams | None) -> Iterator[str]:
        """See that each event was handled once, or was too late and went where those go."""
        said = Counter(int(words[1]) for _, words in self.events(TOPIC, partition) if words[0] == OPERATION)
        inputs = [record for record in self.inputs(partition) if app.operation_of(record) == OPERATION]
        place, diverted = {_number(record): record for record in inputs}, Counter(map(_number, late))
        if extra := (said + diverted) - Counter(map(_number, inputs)):
            yield f"windows: partition {partition} has {extra}, which wasn't sent so often"
        missing = Counter(map(_number, inputs)) - said - diverted
        if missing and self._late != "drop":
            yield f"windows: partition {partition} has nothing of {missing}"
        for number in missing.keys() | diverted.keys() & place.keys():
            record = place[number]
            self.count("window dropped" if number in missing else "window diverted")
            stream_ms = math.inf if streams is None else streams.at(record.offset)
            last_ms = max(self.rollup_end(record.timestamp), record.timestamp + self.near_ms + 1)
            if last_ms + min(self.graces_ms) > stream_ms:
                yield f"windows: {record} of partition {partition} is no later than {stream_ms}, and wasn't handled"

    def rollup_end(self, at_ms: int) -> int:
        """Give where the longest window ends that a time lies in."""
        return at_ms - at_ms % self.rollup_ms + self.rollup_ms


def stream_ms_of(rows: Mapping[bytes, bytes]) -> int | None:
    """Give the stream time that the committed rows of a store say, which are with metadata."""
    raw = rows.get(b"m")
    at = METADATA_BYTES + 1
    return None if raw is None else int.from_bytes(raw[at : at + _WORD], signed=True)


def _told(changed: Sequence[tuple[Window, tuple[int, int]]]) -> str:
    """Write down windows and what is in them."""
    texts = (f"{w.start_ms - EPOCH_MS}~{w.end_ms - EPOCH_MS}~{count}~{total}" for w, (count, total) in changed)
    return ",".join(texts) or NONE


def _helds(told: str) -> list[Held]:
    parts = [] if told == NONE else [text.split("~") for text in told.split(",")]
    return [Held(*map(int, part)) for part in parts]


def _places(told: str) -> list[Place]:
    return [held.place for held in _helds(told)]


def _listed(held: Sequence[Held]) -> str:
    return ",".join(one.told for one in held) or NONE


def _number(record: StoredRecord) -> int:
    return int(record.value.partition(b":")[2])


class Streams:
    """The stream time of a partition behind each record that was handled, as the inputs say."""

    def __init__(self, part: Part, partition: int) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        for record in part.inputs(partition):
            if app.is_decodable(record) and not app.is_control(record):
                self._offsets.append(record.offset)
                self._times.append(max(record.timestamp, self._times[-1] if self._times else -1))

    @property
    def reached_ms(self) -> int:
        """The time behind the last record."""
        return self._times[-1] if self._times else -1

    def at(self, offset: int) -> int:
        """Give the time when the record at an offset was handled, or the last one before it."""
        place = bisect_right(self._offsets, offset)
        return self._times[place - 1] if place else -1


class _Book:
    """The windows of a partition as the events say, and what can't be of what they say."""

    def __init__(self, part: WindowsPart, partition: int, streams: Streams | None) -> None:
        self.wrong: list[str] = []
        self._part = part
        self._streams = streams
        self._partition = partition
        self._windows: defaultdict[tuple[str, bytes], dict[Place, Held]] = defaultdict(dict)
        # Sessions that another one took the place of after they were due.
        self._replaced: dict[tuple[bytes, Place], Held] = {}
        # Those of them that were due only if the grace was shorter before.
        self._unsure: set[tuple[bytes, Place]] = set()
        self._reached: dict[bytes, int] = {}
        self._stream_ms, self._grace_ms = -1, 0
        self._ends: dict[str, int] = {}
        self._slides = Slides(part.near_ms, part.graces_ms)
        self._emits = Emits()
        # Windows that an event in time for some grace wasn't added to.
        self._refused: set[tuple[str, bytes, Place]] = set()

    def event(self, key: bytes, words: list[str]) -> None:
        """Take an event that was handled."""
        number, offset, at_ms, stream_ms, late = map(int, words[:5])
        self._pass_time(key, at_ms, stream_ms)
        if self._streams is not None and stream_ms != self._streams.at(offset) - EPOCH_MS:
            self._say(
                key, f"has the time {stream_ms} at {offset}: the inputs say {self._streams.at(offset) - EPOCH_MS}"
            )
        self._grace_ms, self._emits.every_ms = int(words[8]), int(words[9])
        spans = self._into_spans(key, number, at_ms, stream_ms, _places(words[5]))
        visit = self._into_visits(key, number, at_ms, stream_ms, is_told=words[6] != NONE)
        near = self._slides.add(key, number, at_ms, stream_ms)
        wanted = [_listed(spans), visit.told if visit else NONE, _listed(self._clear(key, near))]
        told = [words[5], words[6], _listed(self._clear(key, _helds(words[7])))]
        if told != wanted:
            self._say(key, f"has {told} of event {number} at {at_ms}, stream time {stream_ms}, not {wanted}")
        for held in spans:
            self._emits.changed(SPANS, key, held, stream_ms)
        # A join decides for itself what is late.
        may_be_late = "joins" not in self._part.world.features and not spans and visit is None
        end_ms = max(self._part.rollup_end(at_ms + EPOCH_MS) - EPOCH_MS, at_ms + self._part.near_ms + 1)
        is_late = may_be_late and end_ms + self._grace_ms <= stream_ms
        # Whether what nothing was added to is open isn't known where it depends on the grace.
        is_certain = not may_be_late or is_late or end_ms + min(self._part.graces_ms) > stream_ms
        if is_certain and bool(late) is not is_late:
            self._say(key, f"is told that event {number} at {at_ms} is late: {bool(late)}")

    def _pass_time(self, key: bytes, at_ms: int, stream_ms: int) -> None:
        """See that stream time goes on: for the partition, or for each key where keys have no order."""
        of = b"" if self._part.closes else key
        if stream_ms < max(self._reached.get(of, at_ms), at_ms):
            self._say(key, f"has the stream time {stream_ms} at {at_ms}, after {self._reached.get(of)}")
        self._reached[of] = max(stream_ms, self._reached.get(of, stream_ms))
        self._stream_ms = max(self._stream_ms, stream_ms)

    def _is_open(self, store: str, key: bytes, place: Place, stream_ms: int, *, is_told: bool) -> bool:
        """Tell whether a window takes an event; where it depends on the grace, by what is told of it."""
        # What the present grace closes is closed, however long an earlier one was.
        if self._closes_ms(store, place[1], self._grace_ms) <= stream_ms:
            return False
        if self._closes_ms(store, place[1], min(self._part.graces_ms)) > stream_ms:
            return True
        if not is_told:
            self._refused.add((store, key, place))
        elif (store, key, place) in self._refused:
            self._say(key, f"adds to the closed window {place} of {store} at {stream_ms}")
        return is_told

    def _into_spans(self, key: bytes, number: int, at_ms: int, stream_ms: int, told: Sequence[Place]) -> list[Held]:
        part, found = self._part, []
        at_ms += EPOCH_MS
        last = at_ms - at_ms % part.advance_ms
        for start in range(last - part.size_ms + part.advance_ms, last + 1, part.advance_ms):
            start_ms, end_ms = start - EPOCH_MS, start + part.size_ms - EPOCH_MS
            place = start_ms, end_ms
            if self._is_open(SPANS, key, place, stream_ms, is_told=place in told):
                held = self._windows[SPANS, key].setdefault((start_ms, end_ms), Held(start_ms, end_ms))
                held.add(1, number)
                found.append(held)
        return found

    def _into_visits(self, key: bytes, number: int, at_ms: int, stream_ms: int, *, is_told: bool) -> Held | None:
        part, visits = self._part, self._windows[VISITS, key]
        near = [one for one in visits.values() if one.start_ms - part.gap_ms <= at_ms <= one.end_ms + part.gap_ms]
        visit = Held(min([at_ms, *(one.start_ms for one in near)]), max([at_ms, *(one.end_ms for one in near)]))
        if not self._is_open(VISITS, key, visit.place, stream_ms, is_told=is_told):
            return None
        visit.add(1, number)
        for one in near:
            part.count("window merged")
            visit.add(one.count, one.total)
            place = one.place
            del visits[place]
            self._emits.replaced(VISITS, key, place, stream_ms)
            least_ms = self._closes_ms(VISITS, one.end_ms, min(part.graces_ms))
            if least_ms <= stream_ms and not one.is_closed and place != visit.place:
                self._replaced[key, place] = one
                if self._closes_ms(VISITS, one.end_ms, self._grace_ms) > stream_ms:
                    self._unsure.add((key, place))
        visits[visit.place] = visit
        self._emits.changed(VISITS, key, visit, stream_ms)
        return visit

    def _clear(self, key: bytes, near: Sequence[Held]) -> list[Held]:
        """Give the sliding windows of which the oracle knows what is in them."""
        return [held for held in near if self._slides.is_clear(key, held.start_ms)]

    def emit(self, key: bytes, words: list[str]) -> None:
        """Take a window that was emitted."""
        store, (start_ms, end_ms, count, total, offset, at_ms) = words[0], map(int, words[1:7])
        for wrong in self._emits.emitted(store, key, Held(start_ms, end_ms, count, total), at_ms):
            self._say(key, wrong)
        if self._streams is not None and at_ms >= self._streams.at(offset) - EPOCH_MS:
            self._say(key, f"emitted {store} {start_ms} at {offset}, which is before {at_ms} is over")

    def close(self, key: bytes, words: list[str]) -> None:
        """Take a window that closed."""
        store, (start_ms, end_ms, count, total, offset) = words[0], map(int, words[1:6])
        place = start_ms, end_ms
        held = self._replaced.pop((key, place), None) if store == VISITS else None
        held = held or (self._slides.windows[key] if store == NEAR else self._windows[store, key]).get(place)
        if store == NEAR and not self._slides.is_clear(key, start_ms):
            self._part.count("window unclear")
        elif held is None or held.is_closed or (held.count, held.total) != (count, total):
            self._say(key, f"closed {store} {place} with {count}, {total}, and there is {held}")
        if held is not None:
            held.is_closed = True
        if end_ms < self._ends.get(store, end_ms):
            self._say(key, f"closed {store} {place} after one that ends at {self._ends[store]}")
        self._ends[store] = end_ms
        closes_ms = self._closes_ms(store, end_ms, min(self._part.graces_ms))
        if self._streams is not None and closes_ms > self._streams.at(offset) - EPOCH_MS:
            self._say(key, f"closed {store} {place} at {offset}, which is before {closes_ms}")
        if store == SPANS:
            self._roll_up(key, end_ms, total, words[6])

    def _roll_up(self, key: bytes, end_ms: int, total: int, told: str) -> None:
        last_ms = self._part.rollup_end(end_ms - 1 + EPOCH_MS) - EPOCH_MS
        place = last_ms - self._part.rollup_ms, last_ms
        held = self._windows[ROLLUPS, key].setdefault(place, Held(*place))
        held.add(1, total)
        if told != held.told:
            self._say(key, f"has {told} of the close of the span that ends at {end_ms}, not {held.told}")

    def _closes_ms(self, store: str, end_ms: int, grace_ms: int) -> int:
        idle_ms = {VISITS: self._part.gap_ms + 1, NEAR: 1}.get(store, 0)
        return end_ms + idle_ms + grace_ms

    def missed(self) -> Iterator[str]:
        """Say which windows are over and never closed."""
        if self._streams is not None:
            # Events aren't all that moves it.
            self._stream_ms = max(self._stream_ms, self._streams.reached_ms - EPOCH_MS)
        waiting = [
            (VISITS, key, held) for (key, place), held in self._replaced.items() if (key, place) not in self._unsure
        ]
        waiting += [(store, key, held) for (store, key), all_ in self._windows.items() for held in all_.values()]
        for key, near in self._slides.windows.items():
            waiting += [(NEAR, key, held) for held in self._clear(key, [*near.values()])]
        for missed in self._emits.missed(self._stream_ms) if self._part.closes else ():
            yield f"windows: partition {self._partition}: {missed}"
        for store, key, held in waiting:
            closes_ms = self._closes_ms(store, held.end_ms, max(self._part.graces_ms))
            if not held.is_closed and closes_ms <= self._stream_ms:
                yield f"windows: {key!r} of partition {self._partition}: {store} {held} never closed"

    def _say(self, key: bytes, what: str) -> None:
        self.wrong.append(f"windows: {key!r} of partition {self._partition} {what}")
