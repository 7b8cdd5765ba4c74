"""Key-parallel handlers when a commit is refused, a takeover or a stop comes, or what they write would collide."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, ForeignKeyError, HandlerFailedError, RecordError
from actors.runtime.outbox.queues import Lines
from actors.testing import ActorTestDriver
from stores.errors import StoreUnavailableError

LARGE = "x" * 60


def values(driver: ActorTestDriver, topic: Any) -> list[tuple[str, str]]:
    return [(sent.key, sent.value) for sent in driver.outputs(topic)]


def careful(then: Any = "skip", **options: Any) -> Any:
    """An app whose outputs the broker refuses when they are large, and which asks within its partition."""
    app = App("careful", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    calls: list[str] = []

    @app.actor(topic, concurrency=8, on_error=then, **options)
    async def work(ctx: Context, value: str) -> str:
        calls.append(value)
        name, _, rest = value.partition(":")
        if name == "wait":
            await asyncio.sleep(float(rest))
        elif name == "start":
            ctx.schedule("ask", after=timedelta(seconds=5))
        elif name in ("ask", "ask and fail"):
            answer = await ctx.ask(work, "other", "question")
            ctx.send(done, key=ctx.key, value=answer if name == "ask" else LARGE)
        if name in ("large", "wait"):
            ctx.send(done, key=ctx.key, value=LARGE)
        return value

    return app, topic, done, calls


def test_after_a_refused_commit_a_message_may_still_ask_in_its_partition():
    app, topic, done, _ = careful()
    with ActorTestDriver(app) as driver:
        driver._cluster.limit_records("done", 50)
        driver.post(topic, key="asker", value="ask")
        driver.post(topic, key="bad", value="large")
        driver.settle()
        assert values(driver, done) == [("asker", "question")]


def test_a_timer_may_too():
    app, topic, done, _ = careful(timers=True)
    with ActorTestDriver(app) as driver:
        driver._cluster.limit_records("done", 50)
        driver.post(topic, key="t", value="start")
        driver.post(topic, key="bad", value="large")
        driver.advance(100)
        assert values(driver, done) == [("t", "question")]


def test_who_asked_is_blamed_and_not_who_answered():
    app, topic, _, calls = careful("stop")
    with ActorTestDriver(app) as driver:
        driver._cluster.limit_records("done", 50)
        driver.post(topic, key="asker", value="ask and fail")
        with pytest.raises(RecordError) as raised:
            driver.settle()
        assert (raised.value.offset, raised.value.key) == (0, b"asker")
        assert calls.count("question") == 1


def test_a_slow_message_that_is_refused_is_found():
    app, topic, done, calls = careful()
    with ActorTestDriver(app) as driver:
        driver._cluster.limit_records("done", 50)
        driver.post(topic, key="bad", value="wait:40")
        driver.settle()
        assert len(calls) == 2
        assert values(driver, done) == []


def test_ids_of_messages_that_overlap_are_remembered():
    app = App("ids", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)

    @app.actor(topic, concurrency=8, dedupe_by="id")
    async def work(ctx: Context, value: str) -> None:
        await asyncio.sleep(1)
        ctx.send(done, key=ctx.key, value=value)

    with ActorTestDriver(app, partitions=1) as driver:
        for key in ("ada", "ada", "bob"):
            driver.post(topic, key=key, value=key, headers={"id": b"1"})
        driver.settle()
        assert values(driver, done) == [("ada", "ada"), ("bob", "bob")]


def test_what_an_expired_key_schedules_has_a_name_of_its_own():
    app = App("names", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    fired: list[str] = []

    def gone(ctx: Context, _: str) -> None:
        ctx.schedule("from the hook", after=timedelta(hours=2))

    seats = app.store("seats", key_type=str, value_type=str, ttl=timedelta(seconds=100), on_expire=gone)

    @app.actor(topic, stores=[seats], timers=True)
    async def seat(ctx: Context, value: str) -> None:
        if ctx.timer:
            fired.append(value)
        else:
            seats.set(ctx.key, value)
            ctx.schedule("from the message", after=timedelta(hours=1))

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="x")
        driver.advance(6 * 3600)
    assert fired == ["from the message", "from the hook"]


def test_a_handler_that_asks_while_an_expired_key_is_removed_is_told_so(caplog: pytest.LogCaptureFixture):
    app = App("hooks", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)

    async def gone(ctx: Context, _: str) -> None:
        await ctx.ask(seat, "b", "x")

    seats = app.store("seats", key_type=str, value_type=str, ttl=timedelta(seconds=100), on_expire=gone)

    @app.actor(topic, stores=[seats], concurrency=4)
    async def seat(ctx: Context, value: str) -> str:
        seats.set(ctx.key, value)
        return value

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="x")
        driver.advance(200)
    assert "ctx.schedule a message to this key that asks" in caplog.text


def test_all_keys_are_out_of_reach():
    app = App("whole", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    store = app.store("held", key_type=str, value_type=str)

    @app.actor(topic, stores=[store], concurrency=2)
    async def work(ctx: Context, _: str) -> None:
        list(store.items())

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError) as raised:
        driver.send(topic, key="a", value="a")
    assert isinstance(raised.value.__cause__, ForeignKeyError)


@pytest.mark.parametrize("then", ["skip", "park"])
def test_a_takeover_gives_no_message_up(then: Any, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR)
    app = App("takeover", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    calls: list[str] = []

    @app.actor(topic, concurrency=4, on_error=then)
    async def work(ctx: Context, value: str) -> None:
        calls.append(value)
        await asyncio.sleep(100)

    with ActorTestDriver(app) as driver:
        driver.post(topic, key="a", value="m")
        driver.advance(10, settle=False)
        for task in driver._worker.tasks:
            task.reinitialize("as after a refused commit")
        driver.settle()
    assert calls == ["m", "m"]
    assert caplog.text == ""


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_store_that_is_away_for_a_moment_is_mended(concurrency: int, monkeypatch: pytest.MonkeyPatch):
    app = App("store", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    away = [False]

    @app.effect()
    async def call(_: Any) -> str:
        return "result"

    @app.actor(topic, concurrency=concurrency, effects=[call])
    async def work(ctx: Context, value: str) -> None:
        if value == "effect":
            ctx.effect(call)
        else:
            await asyncio.sleep(1)
            fail()
            ctx.send(done, key=ctx.key, value=value)

    def fail() -> None:
        if away[0]:
            raise StoreUnavailableError("the disk is away for a moment")

    def head(self: Lines, raw_key: bytes) -> Any:
        fail()
        return original(self, raw_key)

    original = Lines.head
    monkeypatch.setattr(Lines, "head", head)
    with ActorTestDriver(app, partitions=1, effects={call: call}) as driver:
        driver.post(topic, key="a", value="effect")
        driver.advance(0.5, settle=False)
        away[0] = True
        driver.advance(1, settle=False)
        away[0] = False
        driver.advance(30)
        assert values(driver, done) == [("a", "result")]


def test_a_stop_doesnt_wait_for_who_waits_for_an_answer():
    app = App("stop", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, concurrency=4)
    async def work(ctx: Context, value: str) -> str:
        if value == "ask":
            await asyncio.sleep(1)
            await ctx.ask(work, "other", "question")
        return value

    with ActorTestDriver(app) as driver:
        driver.post(topic, key="a", value="ask")
        driver.advance(0.5, settle=False)
        began_s = driver.now_s
        driver._run(driver._worker.revoked())
        assert driver.now_s - began_s < 1
