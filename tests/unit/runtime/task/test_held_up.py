"""Messages whose handlers hold the event loop for longer than the group's session."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, EffectCall, HandlerFailedError
from actors.runtime import blocking
from actors.runtime.blocking import LoopWatch
from actors.testing import ActorTestDriver

SESSION_S = 6.0


class World:
    """An app whose handler holds up the event loop at `bad`, so that the worker loses its session before the commit."""

    def __init__(self, way: str, **options: Any) -> None:
        self.app = app = App("held", broker="kafka://127.0.0.1:1")
        self.topic = app.topic("in", key_type=str, value_type=str)
        self.out = app.topic("out", key_type=str, value_type=str)
        self.calls = 0

        @app.actor(self.topic, name="a", timers=True, **options)
        async def take(ctx: Context, value: str) -> None:
            if value == "set":
                ctx.schedule("bad", after=timedelta(seconds=1), name="t")
            elif value == "bad":
                self.calls += 1
                if way == "after an await":
                    await asyncio.sleep(0.1)
                self.hold_up()
                if way == "before an await":
                    await asyncio.sleep(0.1)
            else:
                ctx.send(self.out, key=ctx.key, value=value)

    def hold_up(self) -> None:
        """Do what the watch of the loop reports, and what the group does then."""
        worker: Any = self.driver._worker
        worker.held_up(asyncio.current_task(), SESSION_S)
        identity = worker._member.identity
        worker.dropped()
        worker.assigned(identity, worker._source.source.partitions)

    def run(self) -> ActorTestDriver:
        self.driver = ActorTestDriver(self.app, partitions=1)
        return self.driver

    def values(self) -> list[str]:
        return sorted(sent.value for sent in self.driver.outputs(self.out))


WAYS = pytest.mark.parametrize("way", ["without an await", "after an await", "before an await"])
CONCURRENCY = pytest.mark.parametrize("concurrency", [1, 3])


@WAYS
@CONCURRENCY
@pytest.mark.parametrize("policy", ["skip", "park"])
def test_a_message_that_holds_up_the_loop_twice_is_given_up(way: str, concurrency: int, policy: Any) -> None:
    world = World(way, on_error=policy, concurrency=concurrency)
    with world.run() as driver:
        for key, value in (("ada", "1"), ("bob", "bad"), ("ada", "2"), ("cem", "3")):
            driver.post(world.topic, key=key, value=value)
        driver.settle()
        assert world.calls == 2
        assert world.values() == ["1", "2", "3"]
        if policy == "park":
            (parked,) = driver.parked("a")
            assert "held the event loop for longer than broker_session_timeout=6 s, 2 times" in parked.error


@WAYS
@CONCURRENCY
def test_a_message_that_holds_up_the_loop_twice_stops_its_partition(way: str, concurrency: int) -> None:
    world = World(way, concurrency=concurrency)
    with world.run() as driver:
        driver.post(world.topic, key="bob", value="bad")
        with pytest.raises(HandlerFailedError, match=r"in\[0\] offset 0 key 'bob': code of actor a held the event"):
            driver.settle()
        assert world.calls == 2


@WAYS
@CONCURRENCY
def test_a_timer_that_holds_up_the_loop_twice_is_given_up(way: str, concurrency: int) -> None:
    world = World(way, on_error="skip", concurrency=concurrency)
    with world.run() as driver:
        driver.post(world.topic, key="ada", value="set")
        driver.advance(60)
        driver.send(world.topic, key="ada", value="1")
        assert (world.calls, world.values()) == (2, ["1"])
        assert driver.items(world.app.actors["a"].timers).keys() == {b"t"}


class EffectWorld(World):
    """An app whose effect holds up the event loop at `bad`, in its coroutine or in what its function returns."""

    def __init__(self, way: str, *, concurrency: int, attempts: int, bad_calls: int = 1_000) -> None:
        self.app = app = App("held", broker="kafka://127.0.0.1:1")
        self.topic = app.topic("in", key_type=str, value_type=str)
        self.way, self.attempts = way, list[int]()
        self.ended: list[str] = []

        async def awaited(call: EffectCall, value: str) -> None:
            if value == "bad" and bad_calls_left.pop() >= 0:
                self.attempts.append(call.attempt)
                if way == "after an await":
                    await asyncio.sleep(0.1)
                self.hold_up()
                if way == "before an await":
                    await asyncio.sleep(0.1)
            self.ended.append(value)

        def plain(call: EffectCall, value: str) -> Any:
            return awaited(call, value)

        bad_calls_left = [-1, *range(bad_calls)]
        function = plain if way == "in what it returns" else awaited
        self.effect = app.effect(attempts=attempts, name="charge")(function)
        self.function = function

        @app.actor(self.topic, name="a", effects=[self.effect], concurrency=concurrency)
        async def take(ctx: Context, value: str) -> None:
            ctx.effect(self.effect, value)

    def run(self) -> ActorTestDriver:
        self.driver = ActorTestDriver(self.app, partitions=1, effects={self.effect: self.function})
        return self.driver


EFFECT_WAYS = pytest.mark.parametrize(
    "way", ["without an await", "after an await", "before an await", "in what it returns"]
)


@EFFECT_WAYS
@CONCURRENCY
def test_an_effect_that_holds_up_the_loop_twice_has_failed(way: str, concurrency: int) -> None:
    world = EffectWorld(way, concurrency=concurrency, attempts=1)
    with world.run() as driver:
        for key, value in (("ada", "1"), ("bob", "bad"), ("cem", "3")):
            driver.post(world.topic, key=key, value=value)
        driver.settle()
        assert world.attempts == [1, 1]
        assert {"1", "3"} <= set(world.ended)
        (parked,) = driver.parked("a")
        assert parked.key == "bob"
        assert "actor a held the event loop for longer than broker_session_timeout=6 s, 2 times" in parked.error
        driver.retry_parked("a", key="bob")
        assert world.attempts == [1, 1, 1]
        assert [parked.key for parked in driver.parked("a")] == ["bob"]


def test_an_effect_that_no_longer_holds_up_the_loop_succeeds_in_its_next_attempt() -> None:
    world = EffectWorld("without an await", concurrency=1, attempts=3, bad_calls=2)
    with world.run() as driver:
        driver.post(world.topic, key="bob", value="bad")
        driver.settle()
        assert world.attempts == [1, 1]
        driver.advance(60)
        assert (world.attempts, world.ended[-1], driver.parked("a")) == ([1, 1], "bad", [])


LIMIT_S = 30.0
"""How long something blocks the loop at most: on a busy machine the watch looks late."""


async def watched(block: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Let something block the loop, given what was reported; watched with a short session. Return what was reported."""
    monkeypatch.setattr(blocking, "TICK_S", 0.02)
    reported: list[tuple[str, float]] = []

    def report(task: asyncio.Task[Any] | None, session_s: float) -> None:
        reported.append(("" if task is None else task.get_name(), session_s))

    watch = LoopWatch(warn_after_s=60.0, session_timeout_s=0.3, on_overlong=report)
    watch.start()
    try:
        await asyncio.sleep(0.05)
        await asyncio.create_task(block(reported), name="the blocking one")
        await asyncio.sleep(0.1)
    finally:
        watch.stop()
        await asyncio.to_thread(watch._thread.join)
    return reported


async def test_the_watch_reports_who_waits_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleeps(reported: list[tuple[str, float]]) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not reported and time.monotonic() < until_s:
            time.sleep(0.05)  # noqa: ASYNC251  what is watched for

    assert await watched(sleeps, monkeypatch) == [("the blocking one", 0.3)]


async def test_the_watch_reports_who_computes_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def computes(reported: list[tuple[str, float]]) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not reported and time.monotonic() < until_s:
            pass

    assert await watched(computes, monkeypatch) == [("the blocking one", 0.3)]


async def test_the_watch_blames_nobody_where_the_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(threading.Event):
        """An event whose wait takes as long as the process stands still."""

        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(0.5)

    async def stands_still(reported: list[tuple[str, float]]) -> None:
        time.sleep(0.8)  # noqa: ASYNC251  what is watched for

    monkeypatch.setattr(blocking.threading, "Event", Away)
    assert await watched(stands_still, monkeypatch) == []
