"""The program of a run: a forwarder, an actor by event time behind it, and a second stage that its outputs feed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from actors import App, Context, Every, OnError, Session, Sliding, Tumbling, Window, aggregates
from actors._core.windows.kinds import Windows

KINDS = ("tumbling", "tumbling", "sliding", "session", "emit", "join", "timers")
ONE_MANY = "one and many"
"""What half of the joins are."""
CLICKS, DIRECT, NOTES = "clicks", "direct", "notes"
FIRST, RESULTS, LATE, LATE_SECOND = "first", "results", "late", "late-second"


class Event(msgspec.Struct, tag=True):
    """An event of a source, by the user that it is about; its time is in it where a join of one with many needs it."""

    id: int
    user: str
    at_ms: int = 0


class Found(msgspec.Struct, tag=True):
    """What the first stage sends: a window, a change of one, a pair, or what a timer had."""

    user: str
    from_ms: int
    to_ms: int
    ids: list[int]


class Total(msgspec.Struct):
    """A window of the second stage, with the ids of the results and notes in it."""

    group: str
    from_ms: int
    entries: list[list[int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed's program is like, times in milliseconds.

    Attributes:
        kind: what the first stage is: see `KINDS`; "history" with `is_ordered` sends of each record which of its user
            were handled before, and "wall" has windows by the clock.
        has_direct: whether it has a second input without a forwarder; a join always has.
        has_notes: whether the second stage has a source of its own beside the topic with writers.
        span_ms: the size of its windows, the gap of sessions, the delay of timers.
        concurrency: of the forwarder.
        close_s: how long each close of the first stage takes, so that others wait.
        is_ordered: whether the first stage has `order="time"`.
        idle_ms: how far behind the clock the first stage closes what is idle; None if it doesn't.
        late: what becomes of what is late for the first stage: "topic", or a word.
        then: what the first stage does with a message that fails: "retry", or "stop" until somebody acts.
        across: how the second stage has the windows of the first, across users: "" if it has windows of its own, else
            how it takes a value out, "remove" or "again".
    """

    kind: str
    has_direct: bool
    has_notes: bool
    span_ms: int
    grace_ms: int
    second_ms: int
    concurrency: int
    close_s: float = 0.0
    is_ordered: bool = False
    idle_ms: int | None = None
    late: str = "topic"
    then: str = "stop"
    across: str = ""

    @classmethod
    def drawn(cls, random: Random, disorder_ms: int, close_s: float, *, has_ends: bool = False) -> Shape:
        """Draw one whose grace covers the disorder within a source; with `has_ends`, a join is of one with many."""
        kind = random.choice(KINDS)
        return cls(
            kind=ONE_MANY if kind == "join" and has_ends else kind,
            has_direct=kind == "join" or random.random() < 0.4,
            has_notes=random.random() < 0.3,
            span_ms=random.choice((2_000, 5_000)),
            grace_ms=disorder_ms + random.choice((0, 700)),
            second_ms=random.choice((5_000, 20_000)),
            concurrency=random.choice((1, 1, 3)),
            close_s=close_s,
        )

    def with_features(self, features: frozenset[str], random: Random) -> Shape:
        """Return one that has the features: a kind, ordered, idle, wall, warned, stopped, failing, paused."""
        kind = next((name for name in (*KINDS, ONE_MANY) if name in features), self.kind)
        has_direct = self.has_direct or kind in ("join", ONE_MANY)
        if "ordered" in features:
            kind = random.choice(("history", "history", "timers", "tumbling", "session", "emit"))
        if "wall" in features:
            kind = "wall"
        if features & {"warned", "stopped"} and kind in ("join", ONE_MANY, "timers"):
            kind = "tumbling"
        return replace(
            self,
            kind=kind,
            has_direct=has_direct,
            is_ordered="ordered" in features,
            idle_ms=random.choice((2_000, 5_000)) if "idle" in features else None,
            late="stop" if "stopped" in features else "warn" if "warned" in features else "topic",
            then=random.choice(("retry", "stop")) if "failing" in features else "stop",
        )

    def across_users(self, random: Random) -> Shape:
        """Return one whose second stage has the windows of the first one, across users."""
        return replace(
            self,
            kind=random.choice(("tumbling", "emit")),
            has_notes=False,
            second_ms=self.span_ms,
            across=random.choice(("remove", "again")),
        )

    @property
    def sources(self) -> list[str]:
        """The topics whose writers the app doesn't know."""
        return [CLICKS, *[DIRECT] * self.has_direct, *[NOTES] * self.has_notes]

    def late_behind_ms(self, topic: str, at_ms: int) -> int:
        """Return the latest stream time at which a record of a source isn't late yet."""
        if self.is_ordered and topic != NOTES:
            return at_ms
        if topic == NOTES:
            return at_ms // self.second_ms * self.second_ms + self.second_ms - 1
        if self.kind in ("tumbling", "emit"):
            return at_ms // self.span_ms * self.span_ms + self.span_ms - 1 + self.grace_ms
        if self.kind == "sliding":
            return at_ms + self.grace_ms
        if self.kind == ONE_MANY:
            return at_ms + (0 if topic == DIRECT else 2 * self.span_ms) + self.grace_ms
        return at_ms + self.span_ms + self.grace_ms

    def group_of(self, topic: str, event: Event) -> str:
        """Return what an event's results are grouped by: its user; of a join of one with many the id of the one."""
        return group_of(topic, event) if self.kind == ONE_MANY and topic != NOTES else event.user

    def end_ms(self, event: Event) -> int | None:
        """Return the end of the one of a join of one with many: at times before its own time, or none."""
        number = event.id % 5
        return None if number == 4 else event.at_ms + (number - 1) * self.span_ms


def group_of(topic: str, event: Event) -> str:
    """Return the id of the one that an event is, or which it belongs to, as text: there may be none."""
    return str(event.id if topic == DIRECT else event.id + 15 - event.id * 7919 % 31)


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def make_app(shape: Shape, fails: Callable[[int], bool] = lambda _: False) -> App:
    """Declare the program; each process of a run has one of its own.

    `fails` returns whether the first stage raises, now, for a record or for what it has led to.
    """
    app = App("shop", broker="kafka://127.0.0.1:1")
    clicks = app.topic(CLICKS, key_type=str, value_type=Event)
    direct = app.topic(DIRECT, key_type=str, value_type=Event) if shape.has_direct else None
    first = app.topic(FIRST, key_type=str, value_type=Found, writers=["stage"])
    late = app.topic(LATE, key_type=str, value_type=Event)
    more = () if direct is None else (direct,)
    options: dict[str, Any] = {"late": late if shape.late == "topic" else shape.late}
    if shape.is_ordered:
        options["order"] = "time"
    if shape.idle_ms is not None:
        options["close_when_idle"] = ms(shape.idle_ms)
    if shape.then == "retry":
        options["on_error"] = OnError(retries=10_000, longest_wait=timedelta(seconds=1))

    def send(ctx: Context, found: Found) -> None:
        if fails(found.ids[0]):
            raise ValueError("not now")
        ctx.send(first, key=second_key_of(found.user), value=found)

    kinds = {"join": _join, ONE_MANY: _one_many, "timers": _timers, "history": _history}
    kinds.get(shape.kind, _windows)(app, shape, (clicks, *more), options, send)
    if not shape.across:
        _second_stage(app, shape, first)
    return app


def second_key_of(user: str) -> str:
    """Return the key of the second stage."""
    return f"g{ord(user[-1]) % 2}"


Send = Callable[[Context, Found], None]


def _windows(app: App, shape: Shape, topics: tuple[Any, ...], options: dict[str, Any], send: Send) -> None:
    windows: Windows = {
        "sliding": lambda: Sliding(ms(shape.span_ms)),
        "session": lambda: Session(ms(shape.span_ms)),
        "wall": lambda: Tumbling(ms(shape.span_ms), time="wall"),
    }.get(shape.kind, lambda: Tumbling(ms(shape.span_ms)))()
    store = app.window_store(
        "stage-windows",
        windows,
        grace=ms(0 if shape.kind == "wall" else shape.grace_ms),
        aggregate=aggregates.collect(100_000, int),
        emit=Every(seconds=1) if shape.kind == "emit" else None,
    )

    if shape.kind == "wall":
        del options["late"]

    @app.actor(*topics, by={topics[0]: "user"}, name="stage", stores=[store], **options)
    async def stage(ctx: Context, event: Event) -> None:
        store.add(ctx.key, event.id)

    async def ended(ctx: Context, window: Window, ids: list[int]) -> None:
        if shape.close_s:
            await asyncio.sleep(shape.close_s)
        send(ctx, Found(ctx.key, window.start_ms, window.end_ms, sorted(ids)))

    if shape.kind == "emit":
        store.on_emit(ended)
    else:
        store.on_close(ended)
    if shape.across:
        _across_users(app, shape, store)


def _across_users(app: App, shape: Shape, store: Any) -> None:
    results = app.topic(RESULTS, key_type=str, value_type=Total)
    aggregate = aggregates.Aggregate(
        initial=[],
        add=lambda entries, ids: [*entries, ids],
        remove=_without if shape.across == "remove" else None,
        state_type=list[list[int]],
    )
    totals = store.across("total", key=second_key_of, of=lambda user, ids: sorted(ids), aggregate=aggregate)

    @totals.on_close
    async def ended(ctx: Context, window: Window, entries: list[list[int]]) -> None:
        ctx.send(
            results, key=ctx.key, value=Total(ctx.key, window.start_ms, sorted([*window, *ids] for ids in entries))
        )


def _without(entries: list[list[int]], ids: list[int]) -> list[list[int]]:
    place = entries.index(ids)
    return entries[:place] + entries[place + 1 :]


def _history(app: App, shape: Shape, topics: tuple[Any, ...], options: dict[str, Any], send: Send) -> None:
    history = app.store("history", key_type=str, value_type=list[tuple[int, int]])

    @app.actor(*topics, by={topics[0]: "user"}, name="stage", stores=[history], **options)
    async def stage(ctx: Context, event: Event) -> None:
        at_ms, records = ctx.timestamp_ms, history.get(ctx.key) or []
        # Those of one time go in any order.
        former = [number for former_ms, number in records if former_ms != at_ms]
        history.set(ctx.key, [*records, (at_ms, event.id)])
        send(ctx, Found(ctx.key, at_ms, len(former), [event.id, *sorted(former)[-8:]]))


def _join(app: App, shape: Shape, topics: tuple[Any, ...], options: dict[str, Any], send: Send) -> None:
    clicks, direct = topics

    @app.join(
        direct,
        clicks,
        by={clicks: "user"},
        within=ms(shape.span_ms),
        how="left",
        grace=ms(shape.grace_ms),
        name="stage",
        **options,
    )
    async def stage(ctx: Context, left: Event, right: Event | None) -> None:
        send(ctx, Found(ctx.key, 0, 0, [left.id] if right is None else [left.id, right.id]))


def _one_many(app: App, shape: Shape, topics: tuple[Any, ...], options: dict[str, Any], send: Send) -> None:
    clicks, direct = topics

    @app.join(
        one=direct,
        many=clicks,
        by={clicks: lambda event: group_of(CLICKS, event), direct: lambda event: group_of(DIRECT, event)},
        until=shape.end_ms,
        retention=ms(2 * shape.span_ms),
        how="left",
        grace=ms(shape.grace_ms),
        name="stage",
        **options,
    )
    async def stage(ctx: Context, one: Event, many: Event | None) -> None:
        send(ctx, Found(ctx.key, 0, 0, [one.id] if many is None else [one.id, many.id]))


def _timers(app: App, shape: Shape, topics: tuple[Any, ...], options: dict[str, Any], send: Send) -> None:
    if not shape.is_ordered:
        del options["late"]

    @app.actor(*topics, by={topics[0]: "user"}, name="stage", timers=True, **options)
    async def stage(ctx: Context, event: Event) -> None:
        if event.id < 0:
            send(ctx, Found(ctx.key, ctx.timestamp_ms, 0, [-event.id]))
        else:
            ctx.schedule(Event(-event.id, event.user), after=ms(shape.span_ms), stream_time=True)


def _second_stage(app: App, shape: Shape, first: Any) -> None:
    results = app.topic(RESULTS, key_type=str, value_type=Total)
    late = app.topic(LATE_SECOND, key_type=str, value_type=Found | Event)
    more = [app.topic(NOTES, key_type=str, value_type=Event)] if shape.has_notes else []
    totals = app.window_store("totals", Tumbling(ms(shape.second_ms)), aggregate=aggregates.collect(100_000))

    @app.actor(first, *more, name="total", stores=[totals], late=late)
    async def total(ctx: Context, found: Found | Event) -> None:
        totals.add(ctx.key, [found.id] if isinstance(found, Event) else entry(found))

    @totals.on_close
    async def ended(ctx: Context, window: Window, entries: list[list[int]]) -> None:
        ctx.send(results, key=ctx.key, value=Total(ctx.key, window.start_ms, sorted(entries)))


def entry(found: Found) -> list[int]:
    """Return how the second stage keeps a result."""
    return [found.from_ms, found.to_ms, *found.ids]
