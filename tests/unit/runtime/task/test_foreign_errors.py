"""Errors of the user's code without a text, or that are no `Exception`: failures by policy, wherever it is called."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from actors import (
    App,
    AskFailedError,
    AskRejectedError,
    Context,
    EffectCall,
    OnError,
    RecordError,
    Rejected,
    Tumbling,
    Window,
    aggregates,
)
from actors._core.logs import MAX_REASON_CHARS, error_text, escape, text_of, traceback_text
from actors.runtime.threads import in_threads
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
NO_TEXT = "its text can't be made"


class Detached:
    """An object whose texts can't be made, as that of a database's session that is closed."""

    def __repr__(self) -> str:
        raise RuntimeError("the session is closed")


class Speechless(Exception):  # noqa: N818  a name that says what it is
    """An error whose texts can't be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Panic(BaseException):
    """As pyo3's `PanicException`: no `Exception`."""


class SpeechlessPanic(Panic):
    """Both, and its text panics too."""

    def __str__(self) -> str:
        raise Panic

    __repr__ = __str__


ERRORS: list[Callable[[], BaseException]] = [
    lambda: KeyError(Detached()),
    Speechless,
    lambda: Panic("index out of bounds"),
    SpeechlessPanic,
    lambda: BaseExceptionGroup("both", [Panic("first"), Speechless()]),
    lambda: GeneratorExit("of a generator that was closed"),
]
error_of = pytest.mark.parametrize("make", ERRORS, ids=["repr", "str", "panic", "silent panic", "group", "exit"])


@error_of
def test_texts_of_foreign_errors_are_made_without_an_error(make: Callable[[], BaseException]) -> None:
    error = make()
    assert error_text(error).startswith(f"{type(error).__name__}: ")
    assert type(error).__name__ in traceback_text(error)
    record = logging.LogRecord("actors", logging.ERROR, "here", 1, "%s and %r", (error, error), None)
    assert escape(record)
    assert record.getMessage()


def test_texts_are_bounded_and_can_be_encoded() -> None:
    assert len(text_of("x" * 10_000_000)) < MAX_REASON_CHARS + 100
    assert text_of("\ud800") == "\\ud800"
    with pytest.raises(KeyboardInterrupt):
        text_of(interrupting())


def interrupting() -> object:
    class Interrupting:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    return Interrupting()


class World:
    """An app with one actor that calls the user's code in one place."""

    def __init__(self, place: str, make: Callable[[], BaseException], **options: Any) -> None:
        self.make = make
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        timed = {"timestamp": self.time_of} if place == "timestamp" else {}
        placed = {"partitioner": self.home} if place == "partitioner" else {}
        self.topic = app.topic("in", key_type=str, value_type=int, **timed, **placed)
        self.out = app.topic("out", key_type=str, value_type=int)
        kept = app.store("kept", value_type=int)
        if place == "dedupe_by":
            options["dedupe_by"] = lambda ctx, value: self.checked(value)
        if place == "by":
            options["by"] = self.checked
        if place == "thread":
            options["threads"] = True

        async def handle(ctx: Context, value: int) -> None:
            if place == "await":
                await asyncio.sleep(0.01)
            if place in ("handler", "await"):
                self.checked(value)
            if place == "task group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.later(value))
            kept.set(ctx.key, value)
            ctx.send(self.out, key=ctx.key, value=value)

        def handle_in_thread(ctx: Context, value: int) -> None:
            self.checked(value)
            ctx.send(self.out, key=ctx.key, value=value)

        self.actor: Any = handle_in_thread if place == "thread" else handle
        stores = [] if place == "thread" else [kept]
        app.actor(self.topic, name="a", stores=stores, **options)(self.actor)

    async def later(self, value: int) -> None:
        self.checked(value)

    def checked(self, value: int) -> str:
        if value < 0:
            raise self.make()
        return str(value)

    def time_of(self, value: int) -> int:
        self.checked(value)
        return NOON_MS + value

    def home(self, key: bytes, partitions: int) -> int:
        if key == b"bad":
            raise self.make()
        return 0


PLACES = ["handler", "await", "task group", "thread", "dedupe_by", "by", "timestamp"]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("place", PLACES)
@error_of
def test_a_message_that_fails_so_is_skipped(
    place: str, concurrency: int, make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(place, make, on_error="skip", concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.topic, key="bad", value=-1)
        driver.send(world.topic, key="good", value=2)
        assert [sent.value for sent in driver.outputs(world.out)] == [2]
    assert "skipped after 1 attempts" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("place", PLACES)
@error_of
def test_a_message_that_fails_so_stops_its_partition_by_name(
    place: str, concurrency: int, make: Callable[[], BaseException]
) -> None:
    world = World(place, make, concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.post(world.topic, key="good", value=2)
        with pytest.raises(RecordError, match=type(make()).__name__ if place != "task group" else "ExceptionGroup"):
            driver.send(world.topic, key="bad", value=-1)


@pytest.mark.parametrize("place", PLACES)
@error_of
def test_a_message_that_fails_so_is_parked_and_can_be_retried(place: str, make: Callable[[], BaseException]) -> None:
    world = World(place, make, on_error="park")
    name = "in-repartition" if place == "by" else "a"
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.topic, key="bad", value=-1)
        driver.send(world.topic, key="good", value=2)
        driver.retry_parked(name, "bad")
        assert [sent.value for sent in driver.outputs(world.out)] == [2]
        (parked,) = driver.parked(name)
        assert parked.attempts == 2
        driver.drop_parked(name, "bad")
        assert driver.parked(name) == []


class Beside:
    """An app whose actor leads to calls of the user's code beside its messages."""

    def __init__(self, make: Callable[[], BaseException], **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = app.topic("in", key_type=str, value_type=int)
        self.out = app.topic("out", key_type=str, value_type=str)
        self.placed = app.topic("placed", key_type=str, value_type=str, partitioner=self.home)
        self.make = make

        async def expired(ctx: Context, value: int) -> None:
            self.failing(ctx, "expired")

        kept = app.store("kept", value_type=int, ttl=timedelta(seconds=10), on_expire=expired)
        windows = app.window_store("windows", Tumbling(timedelta(seconds=1)), aggregate=aggregates.count())

        @windows.on_close
        async def closed(ctx: Context, window: Window, value: int) -> None:
            self.failing(ctx, "closed")

        @app.effect(attempts=1)
        async def awaited(call: EffectCall, key: str) -> None:
            if key.startswith("bad"):
                raise make()

        @app.effect(attempts=1)
        def in_thread(call: EffectCall, key: str) -> str | None:
            if key.startswith("bad"):
                raise make()
            return None

        effects = [awaited, in_thread]
        self.effects = {effect: effect for effect in effects}

        @app.actor(self.topic, name="a", stores=[kept, windows], effects=effects, **options)
        async def handle(ctx: Context, value: int) -> str:
            steps = {
                1: lambda: kept.set(ctx.key, value),
                2: lambda: windows.add(ctx.key, value),
                3: lambda: ctx.effect(awaited, ctx.key),
                4: lambda: ctx.effect(in_thread, ctx.key),
                5: lambda: ctx.send(self.placed, key=ctx.key, value=""),
                6: lambda: self.failing(ctx, "", Rejected(make())),
                7: lambda: self.failing(ctx, "", make()),
            }
            steps.get(value, str)()
            return "done"

        self.handle = handle

    def failing(self, ctx: Context, what: str, error: BaseException | None = None) -> None:
        if ctx.key == "bad":
            raise error or self.make()
        ctx.send(self.out, key=ctx.key, value=what)

    def home(self, key: bytes, partitions: int) -> int:
        if key == b"bad":
            raise self.make()
        return 0


@error_of
def test_calls_beside_messages_that_fail_so_do_not_end_the_worker(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    world, name = Beside(make, on_error="skip"), type(make()).__name__
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        with pytest.raises(AskRejectedError, match="rejected: ") as rejected:
            driver.ask(world.handle, "bad", 6)
        assert str(rejected.value).endswith(f": rejected: {rejected.value.reason}")
        with pytest.raises(AskFailedError, match=name):
            driver.ask(world.handle, "bad", 7)
        assert driver.ask(world.handle, "good", 7) == "done"
        for number in (1, 2, 3, 4, 5):
            for key in ("bad4" if number == 4 else "bad", "good"):
                driver.send(world.topic, key=key, value=number, timestamp_ms=NOON_MS)
        driver.send(world.topic, key="good", value=0, timestamp_ms=NOON_MS + 3_600_000)
        driver.advance(3600)
        assert {sent.value for sent in driver.outputs(world.out)} == {"", "expired", "closed"}
        assert [sent.key for sent in driver.outputs(world.placed)] == ["good"]
    assert "on_expire raised for the expired key 'bad'" in caplog.text
    assert len(re.findall(f"failed in attempt 1: .*{name}", caplog.text)) == 2


@error_of
def test_a_close_that_fails_so_stops_its_partition_by_name(make: Callable[[], BaseException]) -> None:
    world, name = Beside(make), type(make()).__name__
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        driver.send(world.topic, key="bad", value=2, timestamp_ms=NOON_MS)
        with pytest.raises(RecordError, match=rf"the close of the window.*raised {name}"):
            driver.send(world.topic, key="good", value=0, timestamp_ms=NOON_MS + 3_600_000)


@error_of
def test_a_group_that_fails_so_is_the_rows(make: Callable[[], BaseException]) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)

    def by(value: int) -> str:
        if value < 0:
            raise make()
        return "all"

    table = app.table(orders)
    counts = table.aggregate("counts", by=by, aggregate=aggregates.count())

    @app.actor(orders, stores=[table], on_error="skip")
    async def keep(ctx: Context, order: int | None) -> None: ...

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="ada", value=-1)
        driver.send(orders, key="bob", value=1)
        assert driver.items(counts) == {"all": 1}


def test_retries_take_an_error_that_is_no_exception() -> None:
    errors: list[BaseException] = [Panic("once"), SpeechlessPanic()]
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic, out = app.topic("in", key_type=str, value_type=int), app.topic("out", key_type=str, value_type=int)

    @app.actor(topic, on_error=OnError(retries=2, first_wait=timedelta(milliseconds=1)))
    async def work(ctx: Context, value: int) -> None:
        if errors:
            raise errors.pop()
        ctx.send(out, key=ctx.key, value=value)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="a", value=1)
        assert [sent.value for sent in driver.outputs(out)] == [1]


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
async def test_a_function_in_a_thread_that_raises_what_ends_a_generator_fails(error: type[BaseException]) -> None:
    def work() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"raised {error.__name__}"):
        await in_threads(1, "t")(work)()


@pytest.mark.parametrize("is_async", [True, False])
def test_an_effect_that_raises_what_ends_a_generator_is_parked(is_async: bool) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=int)

    def plain(call: EffectCall) -> None:
        raise GeneratorExit

    async def awaited(call: EffectCall) -> None:
        raise GeneratorExit

    effect = app.effect(attempts=1)(awaited if is_async else plain)

    @app.actor(topic, effects=[effect])
    async def work(ctx: Context, value: int) -> None:
        ctx.effect(effect)

    with ActorTestDriver(app, partitions=1, effects={effect: awaited if is_async else plain}) as driver:
        driver.send(topic, key="a", value=1)
        assert [parked.key for parked in driver.parked(work)] == ["a"]


class _Nameless(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=_Nameless):  # noqa: N818  a name that says what it is
    """An error whose class has no name."""


def test_the_class_of_an_error_may_have_no_name() -> None:
    assert NO_TEXT in error_text(Nameless("here"))


@pytest.mark.parametrize("policy", ["stop", "skip", "park"])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_the_end_of_the_process_is_no_failure_of_the_message(
    error: type[BaseException], concurrency: int, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = World("handler", error, on_error=policy, concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.post(world.topic, key="bad", value=-1)
        with pytest.raises(error):
            driver.settle()
        assert driver.dead_letters() == []
    assert "the handler of actor" not in caplog.text


@pytest.mark.parametrize("place", ["message", "expiry", "effect"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_end_of_a_coroutine_that_is_closed_is_no_failure(
    concurrency: int, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    ended: list[BaseException] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(error)
            raise

    async def expired(ctx: Context, value: str) -> None:
        await waits()

    @app.effect(attempts=1)
    async def effect(call: EffectCall) -> None:
        await waits()

    kept = app.store("kept", value_type=str, ttl=timedelta(seconds=10), on_expire=expired)

    @app.actor(topic, stores=[kept], effects=[effect], on_error="skip", concurrency=concurrency)
    async def handle(ctx: Context, value: str) -> None:
        if value == "message":
            await waits()
        elif value == "effect":
            ctx.effect(effect)
        else:
            kept.set(ctx.key, value)

    with ActorTestDriver(app, partitions=1, effects={effect: effect}) as driver:
        driver.post(topic, key="a", value=place)
        driver.advance(60 if place == "expiry" else 1, settle=False)
        begins = {"expiry": "actor", "message": "message" if concurrency > 1 else "actor"}.get(place, place)
        for task in asyncio.all_tasks(driver._loop):
            if task.get_name().startswith(begins):
                task.get_coro().close()
        assert [type(error) for error in ended] == [GeneratorExit]
        assert "raised" not in caplog.text
        assert "failed" not in caplog.text
