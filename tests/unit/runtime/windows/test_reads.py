"""Calls of window stores beside a dict: `update`, `set` and `delete`, and what `get`, `fetch` and `fetch_all` find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from actors import App, Context, HandlerFailedError, Hopping, Session, Sliding, Tumbling, Window, aggregates
from actors._core.windows.kinds import Windows
from actors.runtime.windows.store import LAST_MS, WindowStore
from actors.testing import ActorTestDriver

BEGIN_MS = 1_700_000_000_000
MS = timedelta(milliseconds=1)
GAP_MS, SIZE_MS, ADVANCE_MS = 5, 10, 4
KINDS: dict[str, Windows] = {
    "tumbling": Tumbling(SIZE_MS * MS),
    "hopping": Hopping(SIZE_MS * MS, ADVANCE_MS * MS),
    "sliding": Sliding(GAP_MS * MS),
    "session": Session(GAP_MS * MS),
}
Records = list[tuple[str, int, int]]
"""(key, number, time), each number once."""
Model = dict[tuple[str, Window], list[int]]
Call = Callable[[Context], Any]


class World:
    """An actor that does with each message what its `call` says; `seen` has what that returned."""

    def __init__(self, kind: str, *, grace_ms: int = 1_000, late: Any = "handle", **options: Any) -> None:
        if kind == "session":
            options = {"aggregate": aggregates.collect(1_000), **options}
        elif "aggregate" not in options:
            options = {"value_type": list[int], **options}
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.events = app.topic("events", key_type=str, value_type=int)
        # A read of all that is kept looks at each place of a window.
        options = {"grace": grace_ms * MS, "retention": 2_000 * MS, **options}
        self.store: WindowStore[str, Any] = app.window_store("held", KINDS[kind], **options)
        self.calls: list[Call] = []
        self.seen: list[Any] = []

        @app.actor(self.events, stores=[self.store], late=late)
        async def handle(ctx: Context, number: int) -> None:
            self.seen.append(self.calls[number](ctx))

    def do(self, driver: ActorTestDriver, call: Call, at_ms: int, key: str = "a") -> Any:
        """Have a message call a function; return what that returned."""
        self.calls.append(call)
        driver.send(self.events, key=key, value=len(self.calls) - 1, timestamp_ms=BEGIN_MS + at_ms)
        return self.seen[-1]

    def update(self, driver: ActorTestDriver, key: str, number: int, at_ms: int) -> Any:
        def call(ctx: Context) -> Any:
            return self.store.update(ctx.key, lambda held: [*held, number], initial=[])

        return self.do(driver, call, at_ms, key)


def of_records(kind: str, records: Records) -> Model:
    """Return all windows of records, none of which was late."""
    found: Model = {}
    for key in {key for key, _, _ in records}:
        mine = [(at_ms, number) for of, number, at_ms in records if of == key]
        for window in _windows(kind, sorted({at_ms for at_ms, _ in mine})):
            last_ms = window.end_ms - (kind in ("tumbling", "hopping"))
            inside = sorted(number for at_ms, number in mine if window.start_ms <= at_ms <= last_ms)
            if inside:
                found[key, window] = inside
    return found


def _windows(kind: str, times: list[int]) -> Iterator[Window]:
    if kind == "session":
        start_ms = times[0]
        for at_ms, next_ms in zip(times, [*times[1:], LAST_MS], strict=True):
            if next_ms - at_ms > GAP_MS:
                yield Window(start_ms, at_ms)
                start_ms = next_ms
    elif kind == "sliding":
        yield from (Window(start_ms, start_ms + GAP_MS) for at_ms in times for start_ms in (at_ms - GAP_MS, at_ms + 1))
    else:
        step_ms = SIZE_MS if kind == "tumbling" else ADVANCE_MS
        spans = (range(at_ms - SIZE_MS + 1, at_ms + 1) for at_ms in times)
        yield from (Window(at, at + SIZE_MS) for span in spans for at in span if at % step_ms == 0)


def some_records(seed: int) -> Records:
    """Return records of three keys, out of order, some at equal times, with gaps."""
    chance = random.Random(seed)
    times = [chance.choice([chance.randrange(40), chance.randrange(200)]) for _ in range(40)]
    return [(chance.choice("abc"), number, BEGIN_MS + at_ms) for number, at_ms in enumerate(times)]


def in_order(kind: str, store: WindowStore[str, Any], model: Model) -> list[tuple[str, Window, list[int]]]:
    """Return all windows as `fetch_all` has them: by start, or by the segment that they lie in; then by key."""

    def place(row: tuple[str, Window]) -> tuple[int, str, int]:
        key, window = row
        if kind in ("tumbling", "hopping"):
            return window.start_ms, key, 0
        kept_ms = window.end_ms if kind == "session" else window.start_ms
        return kept_ms // store.segment_ms, key, window.start_ms

    return [(key, window, model[key, window]) for key, window in sorted(model, key=place)]


def bounds_of(model: Model) -> list[tuple[int, int]]:
    """Return spans that begin and end at, before and behind windows, all of time, and an empty one."""
    starts = sorted({window.start_ms for _, window in model})
    picked = [at_ms + shift for at_ms in (starts[0], starts[len(starts) // 2], starts[-1]) for shift in (-1, 0, 1)]
    return [(0, LAST_MS), *product(picked, picked)]


AFTER: dict[str, Callable[[ActorTestDriver], None]] = {
    "at once": lambda driver: None,
    "a crash": lambda driver: driver.crash(),
    "a crash with the disk": lambda driver: driver.crash(keep_disk=False),
    "a restart": lambda driver: driver.restart(),
}


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_found_as_in_a_dict(kind: str, after: str, reverse: bool) -> None:
    """The last update and the reads are of one message, which sees what it has just written."""
    world, records = World(kind), some_records(len(kind))
    last_ms = max(at_ms for _, _, at_ms in records) - BEGIN_MS
    store, step = world.store, -1 if reverse else 1
    model = of_records(kind, records)

    def reads(ctx: Context) -> tuple[list[Any], list[Any]]:
        key, number, _ = records[-1]
        assert ctx.key == key
        store.update(key, lambda held: [*held, number], initial=[])
        mine, all_ = [], []
        for span in bounds_of(model):
            mine.append([(w, sorted(held)) for w, held in store.fetch(key, *span, reverse=reverse)])
            all_.append([(of, w, sorted(held)) for of, w, held in store.fetch_all(*span, reverse=reverse)])
        return mine, all_

    with ActorTestDriver(world.app, partitions=1) as driver:
        for key, number, at_ms in records[:-1]:
            changed = world.update(driver, key, number, at_ms - BEGIN_MS)
            assert changed == sorted(changed)
            # The window that begins behind a record is new with it, and without it.
            assert all(number in held or window.start_ms > at_ms for window, held in changed)
        AFTER[after](driver)
        key, _, at_ms = records[-1]
        mine, all_ = world.do(driver, reads, at_ms - BEGIN_MS, key)
        assert last_ms > 0
        rows = in_order(kind, store, model)
        own = sorted((window, held) for of, window, held in rows if of == key)
        for (from_ms, to_ms), of_key, of_all in zip(bounds_of(model), mine, all_, strict=True):
            assert of_key == [row for row in own if from_ms <= row[0].start_ms <= to_ms][::step]
            assert of_all == [row for row in rows if from_ms <= row[1].start_ms <= to_ms][::step]
        assert {w: sorted(held) for w, held in driver.windows(store, key).items()} == dict(own)
        for window, held in own:
            found = world.do(
                driver, lambda ctx, w=window: (store.get(ctx.key, w), store.get(ctx.key, w[0])), last_ms, key
            )
            assert [sorted(one) for one in found] == [held, held]
        assert world.do(driver, lambda ctx: store.get(ctx.key, BEGIN_MS - 999, "none"), last_ms, key) == "none"


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_is_too_late_changes_nothing(kind: str) -> None:
    world = World(kind, grace_ms=0)
    with ActorTestDriver(world.app, partitions=1) as driver:
        assert world.update(driver, "a", 1, 0)
        assert world.update(driver, "b", 2, 100)
        before = driver.windows(world.store, "a")
        assert world.update(driver, "a", 3, 0) == []
        assert driver.windows(world.store, "a") == before != {}


@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
@pytest.mark.parametrize("seed", range(2))
def test_windows_are_set_and_deleted_as_in_a_dict(kind: str, seed: int) -> None:
    world, chance, held = World(kind, grace_ms=20), random.Random(seed), dict[tuple[str, int], list[int]]()
    store, step_ms, stream_ms, counts = world.store, SIZE_MS if kind == "tumbling" else ADVANCE_MS, 0, [0, 0]
    with ActorTestDriver(world.app, partitions=1) as driver:
        for number in range(120):
            key, at_ms = chance.choice("ab"), max(0, stream_ms + chance.randrange(-40, 8))
            stream_ms = max(stream_ms, at_ms)
            start = (BEGIN_MS + at_ms) // step_ms * step_ms - chance.choice([0, 0, step_ms, 10 * step_ms])
            is_open = start + SIZE_MS + 20 > BEGIN_MS + stream_ms
            given = chance.choice([start, store.windows.starting(start)])  # type: ignore[union-attr]
            if chance.random() < 0.6:
                done = world.do(driver, lambda ctx, w=given, n=number: store.set(ctx.key, [n], w), at_ms, key)
                assert done == is_open
                if is_open:
                    held[key, start] = [number]
            else:
                done = world.do(driver, lambda ctx, w=given: store.delete(ctx.key, w), at_ms, key)
                assert done == (is_open and (key, start) in held)
                if done:
                    del held[key, start]
            counts[done] += 1
            if chance.random() < 0.1:
                driver.crash(keep_disk=chance.random() < 0.5)
            assert world.do(driver, lambda ctx, w=given: store.get(ctx.key, w), at_ms, key) == held.get((key, start))
        for key in "ab":
            expected = {Window(start, start + SIZE_MS): value for (of, start), value in held.items() if of == key}
            assert driver.windows(store, key) == expected
    assert min(counts) > 20


def test_a_tumbling_window_is_the_messages_own_unless_another_one_is_said() -> None:
    world = World("tumbling")
    store = world.store
    with ActorTestDriver(world.app, partitions=1) as driver:
        assert world.do(driver, lambda ctx: (store.get(ctx.key), store.set(ctx.key, [1]), store.get(ctx.key)), 25) == (
            None,
            True,
            [1],
        )
        assert driver.windows(store, "a") == {(BEGIN_MS + 20, BEGIN_MS + 30): [1]}
        assert world.do(driver, lambda ctx: (store.get(ctx.key, default="none"), store.delete(ctx.key)), 30) == (
            "none",
            False,
        )
        assert world.do(driver, lambda ctx: (store.delete(ctx.key), store.delete(ctx.key), store.get(ctx.key)), 29) == (
            True,
            False,
            None,
        )
        assert driver.windows(store, "a") == {}


def test_a_window_whose_close_was_handled_is_not_set_again() -> None:
    world = World("tumbling", grace_ms=0)
    seen: list[bool] = []

    @world.store.on_close
    async def closed(ctx: Context, window: Window, value: Any) -> None:
        seen.append(world.store.set(ctx.key, [99], window))

    with ActorTestDriver(world.app, partitions=1) as driver:
        world.update(driver, "a", 1, 0)
        world.update(driver, "a", 2, 10)
        assert seen == [False]
        assert list(driver.windows(world.store, "a").values()) == [[1], [2]]


@pytest.mark.parametrize(
    ("kind", "options", "call", "text"),
    [
        (
            "sliding",
            {},
            lambda store: store.set("a", [1]),
            r"its values follow from records: use add\(\) or update\(\)",
        ),
        (
            "session",
            {},
            lambda store: store.set("a", [1]),
            r"its values follow from records: use add\(\) or update\(\)",
        ),
        (
            "tumbling",
            {"aggregate": aggregates.sum()},
            lambda store: store.set("a", 1),
            "its values follow from records",
        ),
        ("sliding", {}, lambda store: store.delete("a"), "its windows follow from records and can't be removed"),
        ("session", {}, lambda store: store.delete("a"), "its windows follow from records and can't be removed"),
        ("hopping", {}, lambda store: store.set("a", [1]), "has several windows at a time: say window="),
        ("hopping", {}, lambda store: store.delete("a"), "has several windows at a time: say window="),
        ("hopping", {}, lambda store: store.get("a"), "has several windows at a time: say window="),
        ("sliding", {}, lambda store: store.get("a"), "has several windows at a time: say window="),
        ("session", {}, lambda store: store.get("a"), "has several windows at a time: say window="),
    ],
)
def test_calls_that_a_kind_does_not_have_are_refused(kind: str, options: Any, call: Any, text: str) -> None:
    world = World(kind, **options)
    with ActorTestDriver(world.app, partitions=1) as driver:
        with pytest.raises(HandlerFailedError, match=f"window store held: .*{text}"):
            world.do(driver, lambda ctx: call(world.store), 0)
        assert driver.windows(world.store, "a") == {}


def test_a_window_of_an_aggregate_is_deleted() -> None:
    world = World("tumbling", aggregate=aggregates.sum())
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.do(driver, lambda ctx: world.store.add(ctx.key, 5), 0)
        assert world.do(driver, lambda ctx: world.store.delete(ctx.key), 1) is True
        assert driver.windows(world.store, "a") == {}
