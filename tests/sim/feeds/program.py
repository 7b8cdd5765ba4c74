"""The program of a run: a forwarder, an actor by event time behind it, and a second stage that its outputs feed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec

from actors import App, Context, Every, Session, Sliding, Tumbling, Window, aggregates
from actors._core.windows.kinds import Windows

KINDS = ("tumbling", "tumbling", "sliding", "session", "emit", "join", "timers")
CLICKS, DIRECT, NOTES = "clicks", "direct", "notes"
FIRST, RESULTS, LATE, LATE_SECOND = "first", "results", "late", "late-second"


class Event(msgspec.Struct, tag=True):
    """An event of a source, by the user that it is about."""

    id: int
    user: str


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
        kind: what the first stage is: see `KINDS`.
        has_direct: whether it has a second input without a forwarder; a join always has.
        has_notes: whether the second stage has a source of its own beside the topic with writers.
        span_ms: the size of its windows, the gap of sessions, the delay of timers.
        concurrency: of the forwarder.
        close_s: how long each close of the first stage takes, so that others wait.
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
    across: str = ""

    @classmethod
    def drawn(cls, random: Random, disorder_ms: int, close_s: float) -> Shape:
        """Draw one whose grace covers the disorder within a source."""
        kind = random.choice(KINDS)
        return cls(
            kind=kind,
            has_direct=kind == "join" or random.random() < 0.4,
            has_notes=random.random() < 0.3,
            span_ms=random.choice((2_000, 5_000)),
            grace_ms=disorder_ms + random.choice((0, 700)),
            second_ms=random.choice((5_000, 20_000)),
            concurrency=random.choice((1, 1, 3)),
            close_s=close_s,
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
        if topic == NOTES:
            return at_ms // self.second_ms * self.second_ms + self.second_ms - 1
        if self.kind in ("tumbling", "emit"):
            return at_ms // self.span_ms * self.span_ms + self.span_ms - 1 + self.grace_ms
        if self.kind == "sliding":
            return at_ms + self.grace_ms
        return at_ms + self.span_ms + self.grace_ms


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def make_app(shape: Shape) -> App:
    """Declare the program; each process of a run has one of its own."""
    app = App("shop", broker="kafka://127.0.0.1:1")
    clicks = app.topic(CLICKS, key_type=str, value_type=Event)
    direct = app.topic(DIRECT, key_type=str, value_type=Event) if shape.has_direct else None
    first = app.topic(FIRST, key_type=str, value_type=Found, writers=["stage"])
    late = app.topic(LATE, key_type=str, value_type=Event)
    more = () if direct is None else (direct,)

    def send(ctx: Context, found: Found) -> None:
        ctx.send(first, key=group_of(found.user), value=found)

    declare = {"join": _join, "timers": _timers}.get(shape.kind, _windows)
    declare(app, shape, (clicks, *more), late, send)
    if not shape.across:
        _second_stage(app, shape, first)
    return app


def group_of(user: str) -> str:
    """Return the key of the second stage."""
    return f"g{ord(user[-1]) % 2}"


Send = Callable[[Context, Found], None]


def _windows(app: App, shape: Shape, topics: tuple[Any, ...], late: Any, send: Send) -> None:
    windows: Windows = {
        "sliding": lambda: Sliding(ms(shape.span_ms)),
        "session": lambda: Session(ms(shape.span_ms)),
    }.get(shape.kind, lambda: Tumbling(ms(shape.span_ms)))()
    store = app.window_store(
        "stage-windows",
        windows,
        grace=ms(shape.grace_ms),
        aggregate=aggregates.collect(100_000, int),
        emit=Every(seconds=1) if shape.kind == "emit" else None,
    )

    @app.actor(*topics, by={topics[0]: "user"}, name="stage", stores=[store], late=late)
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
    totals = store.across("total", key=group_of, of=lambda user, ids: sorted(ids), aggregate=aggregate)

    @totals.on_close
    async def ended(ctx: Context, window: Window, entries: list[list[int]]) -> None:
        ctx.send(
            results, key=ctx.key, value=Total(ctx.key, window.start_ms, sorted([*window, *ids] for ids in entries))
        )


def _without(entries: list[list[int]], ids: list[int]) -> list[list[int]]:
    place = entries.index(ids)
    return entries[:place] + entries[place + 1 :]


def _join(app: App, shape: Shape, topics: tuple[Any, ...], late: Any, send: Send) -> None:
    clicks, direct = topics

    @app.join(
        direct,
        clicks,
        by={clicks: "user"},
        within=ms(shape.span_ms),
        how="left",
        grace=ms(shape.grace_ms),
        late=late,
        name="stage",
    )
    async def stage(ctx: Context, left: Event, right: Event | None) -> None:
        send(ctx, Found(ctx.key, 0, 0, [left.id] if right is None else [left.id, right.id]))


def _timers(app: App, shape: Shape, topics: tuple[Any, ...], late: Any, send: Send) -> None:
    @app.actor(*topics, by={topics[0]: "user"}, name="stage", timers=True)
    async def stage(ctx: Context, event: Event) -> None:
        if event.id < 0:
            send(ctx, Found(ctx.key, ctx.timestamp_ms, 0, [-event.id]))
        else:
            due = datetime.fromtimestamp(0, UTC) + ms(ctx.timestamp_ms + shape.span_ms)
            ctx.schedule(Event(-event.id, event.user), at=due, stream_time=True)


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
