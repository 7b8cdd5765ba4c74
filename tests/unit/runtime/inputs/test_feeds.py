"""Event time through hops, on the test driver."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actors import App, Context, Tumbling, Window, aggregates
from actors._core.task.commit import parse_mark
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def counted(app: App, forward: Any) -> tuple[Any, Any]:
    """Return the topic that a forwarder writes, and the windows in which an actor counts its records."""
    moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(moved, stores=[tens])
    async def count(ctx: Context, _: str) -> None:
        tens.add(ctx.key, 1)

    return moved, tens


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_last_record_of_a_forwarder_moves_its_readers_time(concurrency: int) -> None:
    app, closed = App("shop", broker="kafka://127.0.0.1:1"), []
    clicks = app.topic("clicks", key_type=str, value_type=str)

    @app.actor(clicks, concurrency=concurrency)
    async def forward(ctx: Context, value: str) -> None:
        ctx.send(moved, key="all", value=value)

    moved, tens = counted(app, forward)

    @tens.on_close
    def close(ctx: Context, window: object, number: int) -> None:
        closed.append(number)

    with ActorTestDriver(app, now=NOON, partitions=1) as driver:
        for seconds in (1, 2, 12, 13, 31):
            driver.send(clicks, key=f"k{seconds}", value="", timestamp_ms=NOON_MS + seconds * 1_000)
    assert closed == [2, 2]


def test_the_last_commit_of_a_forwarder_has_the_times_of_all_that_it_finished() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)

    @app.actor(clicks, concurrency=4)
    async def forward(ctx: Context, value: str) -> None:
        await asyncio.sleep(float(value))
        ctx.send(moved, key="all", value=value)

    moved, _ = counted(app, forward)

    with ActorTestDriver(app, now=NOON, partitions=1) as driver:
        for seconds, value in enumerate(("0", "2")):
            driver.post(clicks, key=f"k{seconds}", value=value, timestamp_ms=NOON_MS + seconds * 1_000)
        driver.advance(1, settle=False)
        assert driver._worker is not None
        # The task waits for the handler that runs.
        driver._run(driver._worker.revoked())
        driver.advance(3, settle=False)
        committed = driver._cluster.group.committed(TopicPartition("clicks", 0))
        assert committed is not None
        mark = parse_mark(committed.metadata)
        assert mark is not None
        assert (committed.offset, mark.times.source_ms) == (2, NOON_MS + 1_000)


@pytest.mark.parametrize("order", range(6))
def test_when_a_timer_fires_depends_on_no_order_of_arrival(order: int) -> None:
    app, fired = App("shop", broker="kafka://127.0.0.1:1"), []
    left, right = (app.topic(name, key_type=str, value_type=str) for name in ("left", "right"))

    @app.actor(left, right, timers=True, by={right: str})
    async def remind(ctx: Context, value: str) -> None:
        if ctx.timer is None:
            # A message that is behind others of its source, and one behind that of another source.
            ctx.schedule(value, after=timedelta(seconds=20), stream_time=True)
        elif ctx.timer != "again":
            fired.append((value, ctx.timestamp_ms - NOON_MS))
            ctx.schedule(value, name="again", after=timedelta(seconds=7), stream_time=True)
        else:
            fired.append((f"{value} again", ctx.timestamp_ms - NOON_MS))

    with ActorTestDriver(app, now=NOON) as driver:
        records = {
            left: [("a", "a", 50_000), ("b", "b", 45_000), ("a", "a", 200_000)],
            right: [("x", "a", 10_000), ("y", "b", 300_000)],
        }
        rows = {topic: [(key, value, NOON_MS + at_ms) for key, value, at_ms in rows] for topic, rows in records.items()}
        driver.backlog(rows, order=order)
    assert ("b", 65_000) in fired
    assert ("a", 30_000) in fired
    assert ("a again", 37_000) in fired


def added_by_timers(times: dict[str, list[int]]) -> list[tuple[str, int, int]]:
    """Return key, start and sum of each window: each message adds 1, its timer 100, and those of timers 10,000."""
    sums: dict[tuple[str, int], int] = {}
    for key, seconds in [(key, seconds) for key, all_seconds in times.items() for seconds in all_seconds]:
        for after, number in ((0, 1), (25, 100), (32, 10_000), (39, 10_000), (46, 10_000)):
            window = key, (seconds + after) // 10 * 10
            sums[window] = sums.get(window, 0) + number
    return sorted((*window, number) for window, number in sums.items())


@pytest.mark.parametrize("how", ["live", "crashes", 0, 1, 2])
def test_what_timers_add_to_windows_depends_on_no_steps_of_stream_time(how: str | int) -> None:
    app, closed = App("shop", broker="kafka://127.0.0.1:1"), []
    clicks = app.topic("clicks", key_type=str, value_type=str)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.sum())

    @app.actor(clicks, by=str, stores=[tens], timers=True)
    async def count(ctx: Context, value: str) -> None:
        tens.add(ctx.key, 1)
        ctx.schedule(remind, 3, after=timedelta(seconds=25), stream_time=True, name=ctx.message_id)

    @count.timer
    async def remind(ctx: Context, left: int) -> None:
        tens.add(ctx.key, 100 if left == 3 else 10_000)
        if left:
            ctx.schedule(remind, left - 1, after=timedelta(seconds=7), stream_time=True, name=ctx.message_id)

    @tens.on_close
    async def close(ctx: Context, window: Window, number: int) -> None:
        closed.append((ctx.key, (window.start_ms - NOON_MS) // 1000, number))

    # Keys in two partitions, of which one has few messages.
    times = {"a": list(range(0, 300, 4)), "b": [0, 290]}
    rows = sorted((seconds, key) for key, all_seconds in times.items() for seconds in [*all_seconds, 1_000])
    records = [(key, key, NOON_MS + seconds * 1_000) for seconds, key in rows]
    with ActorTestDriver(app, now=NOON, partitions=2) as driver:
        if isinstance(how, int):
            driver.backlog({clicks: records}, order=how)
        else:
            for number, (key, value, at_ms) in enumerate(records):
                driver.post(clicks, key=key, value=value, timestamp_ms=at_ms)
                if how == "live":
                    driver.advance(2)
                elif not number % 20:
                    driver.advance(0.7, settle=False)
                    driver.crash(settle=False)
        driver.advance(10)
    assert sorted(closed) == added_by_timers(times)


def test_windows_wait_for_no_timer_that_was_cancelled() -> None:
    app, closed = App("shop", broker="kafka://127.0.0.1:1"), []
    clicks = app.topic("clicks", key_type=str, value_type=str)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.sum())

    @app.actor(clicks, by=lambda value: value.partition(" ")[0], stores=[tens], timers=True)
    async def count(ctx: Context, value: str) -> None:
        tens.add(ctx.key, 1)
        if value == "a set":
            ctx.schedule(remind, after=timedelta(seconds=25), stream_time=True, name="first")
            ctx.schedule(remind, after=timedelta(seconds=95), stream_time=True, name="second")
        elif value == "a cancel":
            ctx.cancel("first")

    @count.timer
    async def remind(ctx: Context) -> None:
        tens.add(ctx.key, 100)

    @tens.on_close
    async def close(ctx: Context, window: Window, number: int) -> None:
        closed.append((ctx.key, (window.start_ms - NOON_MS) // 1000, number))

    rows = [("a set", 0), ("a cancel", 4), ("b", 33), ("b", 47), ("a", 300), ("a", 400)]
    with ActorTestDriver(app, now=NOON, partitions=1) as driver:
        driver.backlog({clicks: [("", value, NOON_MS + seconds * 1_000) for value, seconds in rows]}, order=1)
    assert closed == [("a", 0, 2), ("b", 30, 1), ("b", 40, 1), ("a", 90, 100), ("a", 300, 1)]


def test_the_time_of_outputs_doesnt_go_back_with_a_takeover_while_a_late_timer_waits() -> None:
    app, may_end = App("shop", broker="kafka://127.0.0.1:1"), asyncio.Event()
    clicks = app.topic("clicks", key_type=str, value_type=str)

    @app.actor(clicks, timers=True, concurrency=2)
    async def stage(ctx: Context, value: str) -> None:
        if value == "due":
            await may_end.wait()
        elif value == "late":
            ctx.schedule("due", after=timedelta(seconds=10), stream_time=True)
        ctx.send(moved, key="all", value=value)

    moved = app.topic("moved", key_type=str, value_type=str, writers=[stage])
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(moved, stores=[tens])
    async def count(ctx: Context, _: str) -> None:
        tens.add(ctx.key, 1)

    def output_ms() -> int:
        mark = parse_mark(driver._cluster.group.offsets[TopicPartition("clicks", 0)].metadata)
        assert mark is not None
        return mark.times.output_ms

    with ActorTestDriver(app, now=NOON, partitions=1) as driver:
        driver.send(clicks, key="k1", value="", timestamp_ms=NOON_MS)
        driver.post(clicks, key="k2", value="late", timestamp_ms=NOON_MS - 60_000)
        driver.advance(5, settle=False)
        assert output_ms() == NOON_MS
        driver.crash(settle=False)
        driver.post(clicks, key="k1", value="", timestamp_ms=NOON_MS)
        driver.advance(5, settle=False)
        assert output_ms() == NOON_MS
        assert [sent.value for sent in driver.outputs(moved)] == ["", "late", ""]
        driver._loop.call_soon(may_end.set)
        driver.settle()
        assert driver.outputs(moved)[-1].value == "due"
