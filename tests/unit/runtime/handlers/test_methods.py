"""Private methods: timers and effects of an actor call them, and no record of a topic does."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    EffectCall,
    HandlerFailedError,
    NewerProgramError,
    OnError,
    Rejected,
    UsageError,
    receive,
    timer,
)
from actors.runtime.handlers.methods import Call, caller
from actors.runtime.threads import in_threads
from actors.testing import ActorTestDriver

HOUR_S = 3600.0


class Place(msgspec.Struct, tag="place"):
    article: str
    days: int = 1


class Drop(msgspec.Struct, tag="drop"):
    pass


@dataclass
class Line:
    article: str
    due: date


def make(*, method: str = "close", **options: Any) -> tuple[App, Any, list[Any]]:
    """Return an app whose orders close after some days, by a method of that name."""
    app, calls = App("shop", broker="kafka://127.0.0.1:1"), list[Any]()

    class Base(Actor[list[str]]):
        @receive
        async def place(self, message: Place) -> None:
            line = Line(message.article, date(2030, 1, 2))
            self.ctx.schedule(getattr(self, method), line, message.days, after=timedelta(days=message.days), name="end")

        @receive
        async def drop(self, _: Drop) -> None:
            calls.append(self.ctx.cancel("end"))

    async def close(self: Any, line: Line, days: int) -> None:
        calls.append((self.key, line, days, self.ctx.timer))
        self.state.append(line.article)

    close.__name__ = method
    order = type("Order", (Base,), {method: timer(close)})
    app.actor(app.topic("orders", key_type=str), **options)(order)
    return app, order, calls


def test_a_timer_calls_a_method_with_arguments_of_its_types_and_keeps_the_state() -> None:
    app, order, calls = make()
    with ActorTestDriver(app) as driver:
        driver.tell(order, "a", Place("hat", 2))
        driver.crash(keep_disk=False)
        driver.advance(47 * HOUR_S)
        assert calls == []
        driver.advance(HOUR_S)
        assert calls == [("a", Line("hat", date(2030, 1, 2)), 2, "end")]
        assert driver.get(order, "a") == ["hat"]
        driver.tell(order, "b", Place("cap"))
        driver.tell(order, "b", Drop())
        driver.advance(48 * HOUR_S)
        assert calls[1:] == [True]


def test_a_periodic_timer_calls_its_method_again_and_again() -> None:
    app, calls = App("shop", broker="kafka://127.0.0.1:1"), list[int]()

    @app.actor(app.topic("orders", key_type=str, value_type=int), timers=True, concurrency=3)
    async def count(ctx: Context, number: int) -> None:
        ctx.schedule(tick, number, every=timedelta(hours=1))

    @count.timer
    def tick(ctx: Context, number: int) -> None:
        calls.append(number)
        assert ctx.key == "a"

    with ActorTestDriver(app) as driver:
        driver.tell(count, "a", 7)
        driver.advance(3 * HOUR_S)
    assert calls == [7, 7, 7]


def test_a_plain_method_runs_in_a_thread_where_the_actor_has_threads() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("orders", key_type=str), threads=True)
    class Order(Actor[int]):
        @receive
        def place(self, _: Place) -> None:
            self.ctx.schedule(self.close, 5, after=timedelta(0))

        @timer
        def close(self, number: int) -> None:
            self.state += number

    with ActorTestDriver(app) as driver:
        driver.tell(Order, "a", Place("hat"))
        driver.advance(1)
        assert driver.get(Order, "a") == 5
    # The driver has one thread.
    method = Call(lambda order, number: (threading.current_thread(), order, number), (5,), {})
    thread, *arguments = asyncio.run(caller(in_threads(1, "orders"))("order", method))
    assert thread is not threading.main_thread()
    assert arguments == ["order", 5]


@pytest.mark.parametrize("headers", [{}, {"fa-method": b"close"}, {"method": b"close"}, {"fa-type": b"close"}])
def test_no_record_of_the_topic_calls_a_method(headers: dict[str, bytes]) -> None:
    app, order, calls = make(on_error="park")
    raw = json.dumps([[{"article": "hat", "due": "2030-01-02"}, 2], {}]).encode()
    with ActorTestDriver(app) as driver:
        for value in (raw, b'{"type":"close"}', b'"close"'):
            driver.send("orders", key=b"a", value=value, headers=headers, raw=True)
        assert len(driver.parked(order)) == 3
        driver.retry_parked(order, "a")
        assert len(driver.parked(order)) == 3
    assert calls == []


def test_a_method_that_raises_is_dealt_with_as_the_policy_says_and_keeps_its_arguments() -> None:
    app, are_open = App("shop", broker="kafka://127.0.0.1:1"), [False]

    @app.actor(app.topic("orders", key_type=str), on_error="park")
    class Order(Actor[list[str]]):
        @receive
        async def place(self, message: Place) -> None:
            self.ctx.schedule(self.close, message.article, after=timedelta(seconds=1))

        @timer
        async def close(self, article: str) -> None:
            self.state.append(article)
            if not are_open[0]:
                raise ValueError("not yet")

    with ActorTestDriver(app) as driver:
        driver.tell(Order, "a", Place("hat"))
        driver.advance(1)
        (parked,) = driver.parked(Order)
        assert (parked.value, parked.error) == ((["hat"], {}), "HandlerFailedError: ValueError: not yet")
        assert driver.get(Order, "a") is None
        driver.crash(keep_disk=False)
        are_open[0] = True
        driver.retry_parked(Order, "a")
        assert driver.get(Order, "a") == ["hat"]
        assert driver.parked(Order) == []


def test_a_timer_whose_method_is_gone_stops_its_partition_with_its_name_until_a_program_has_it() -> None:
    app, order, calls = make()
    renamed, _, _ = make(method="finish")
    with ActorTestDriver(app) as driver:
        driver.tell(order, "a", Place("hat"))
        driver.restart(renamed)
        with pytest.raises(NewerProgramError, match="a call of close, which actor Order doesn't have"):
            driver.advance(24 * HOUR_S)
        driver.restart(app)
        driver.settle()
    assert [key for key, *_ in calls] == ["a"]


def test_a_timer_whose_method_is_gone_is_parked_where_the_actor_parks() -> None:
    app, order, calls = make(on_error="park")
    renamed, other, _ = make(method="finish", on_error="park")
    with ActorTestDriver(app) as driver:
        driver.tell(order, "a", Place("hat"))
        driver.restart(renamed)
        driver.advance(24 * HOUR_S)
        (parked,) = driver.parked(other)
        assert "a call of close" in str(parked.error)
        driver.restart(app)
        driver.retry_parked(order, "a")
    assert [key for key, *_ in calls] == ["a"]


def test_arguments_that_the_new_method_does_not_take_are_an_error_of_the_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, order, _ = make(on_error="skip")
    changed, calls = App("shop", broker="kafka://127.0.0.1:1"), list[Any]()

    @changed.actor(changed.topic("orders", key_type=str), on_error=OnError(then="skip", dead_letters=True))
    class Order(Actor[list[str]]):
        @receive
        async def place(self, message: Place | Drop) -> None: ...

        @timer
        async def close(self, line: int) -> None:
            calls.append(line)

    with ActorTestDriver(app) as driver:
        driver.tell(order, "a", Place("hat"))
        driver.restart(changed)
        driver.advance(24 * HOUR_S)
        (letter,) = driver.dead_letters()
    assert calls == []
    assert b"too many positional arguments" in dict(letter.headers)["fa-error"]
    assert dict(letter.headers)["fa-method"] == b"close"
    assert "the arguments of close of actor Order: too many positional arguments" in caplog.text


class Wrong(Actor[int]):
    """Schedules what it can't."""

    @receive
    async def place(self, message: Place) -> None:
        schedule: Any = self.ctx.schedule
        arguments = {
            "unmarked": (self.unmarked, 1),
            "other": (Other(self.ctx).close,),
            "function": (stray,),
            "few": (self.close,),
            "type": (self.close, "one"),
            "json": (self.close, object()),
            "message": (Drop(), 1),
        }
        schedule(*arguments[message.article], after=timedelta(0))

    @receive
    async def drop(self, message: Drop) -> None: ...

    @timer
    async def close(self, number: int) -> None: ...

    async def unmarked(self, number: int) -> None: ...


class Other(Actor[int]):
    @timer
    async def close(self) -> None: ...


def stray(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("article", "reason"),
    [
        ("unmarked", "unmarked isn't called by actor Wrong itself: mark a method of its class @timer"),
        ("other", "close isn't called by actor Wrong itself: mark a method of its class @timer"),
        ("function", "stray isn't called by actor Wrong itself: mark a method of its class @timer"),
        ("few", r"ctx.schedule\(close\): the arguments have to become JSON.*missing a required argument: 'number'"),
        ("type", r"ctx.schedule\(close\): the arguments have to become JSON.*Expected `int`, got `str`"),
        ("json", r"ctx.schedule\(close\): the arguments have to become JSON"),
        ("message", "a message has no arguments"),
    ],
)
def test_what_can_not_be_scheduled_is_refused_at_once(article: str, reason: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    app.actor(app.topic("orders", key_type=str))(Wrong)
    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=reason) as failed:
        driver.tell(Wrong, "a", Place(article))
    assert isinstance(failed.value.__cause__, UsageError)


def test_a_function_actor_schedules_its_own_functions_alone() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("orders", key_type=str, value_type=str), timers=True)
    async def take(ctx: Context, order: str) -> None:
        ctx.schedule(stray, after=timedelta(0))

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=r"mark the function @take\.timer"):
        driver.tell(take, "a", "hat")


def test_two_functions_of_one_name_are_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("orders", key_type=str, value_type=str))
    async def take(ctx: Context, order: str) -> None: ...

    take.timer(stray)

    def other(ctx: Context) -> None: ...

    other.__name__ = "stray"
    with pytest.raises(ConfigurationError, match="two functions are called stray"):
        take.timer(other)


def test_a_generator_is_no_timer() -> None:
    def close(self: Any) -> Any:
        yield 1

    with pytest.raises(ConfigurationError, match="has a `yield`"):
        timer(close)


def test_a_timer_without_a_name_is_another_one_for_another_method() -> None:
    app, calls = App("shop", broker="kafka://127.0.0.1:1"), list[str]()

    @app.actor(app.topic("orders", key_type=str))
    class Order(Actor[None]):
        @receive
        async def place(self, _: Place) -> None:
            for method in (self.first, self.second):
                self.ctx.schedule(method, "x", at=datetime(2020, 1, 1, tzinfo=UTC))

        @timer
        async def first(self, text: str) -> None:
            calls.append(f"first {text}")

        @timer
        async def second(self, text: str) -> None:
            calls.append(f"second {text}")

    with ActorTestDriver(app) as driver:
        driver.tell(Order, "a", Place("hat"))
        driver.advance(1)
    assert sorted(calls) == ["first x", "second x"]


def test_headers_that_are_passed_on_come_with_calls() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1", propagate_headers=["tenant"])
    done = app.topic("done", key_type=str, value_type=str)

    @app.effect()
    async def outside(call: EffectCall) -> str:
        return "outside"

    @app.actor(app.topic("orders", key_type=str), effects=[outside])
    class Order(Actor[None]):
        @receive
        async def place(self, _: Place) -> None:
            self.ctx.schedule(self.close, "timer", after=timedelta(0))
            self.ctx.effect(outside, then=self.close)

        @timer
        async def close(self, text: str) -> None:
            self.ctx.send(done, key=self.key, value=text)

    with ActorTestDriver(app, effects={outside: outside}) as driver:
        driver.tell(Order, "a", Place("hat"), headers={"tenant": b"t1"})
        driver.advance(1)
        sent = {record.value: dict(record.headers) for record in driver.outputs(done)}
    assert sent == {"timer": {"tenant": b"t1"}, "outside": {"tenant": b"t1"}}


def test_a_method_may_refuse_and_answer() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("orders", key_type=str))
    class Order(Actor[int]):
        @receive
        async def place(self, _: Place) -> None:
            self.ctx.schedule(self.close, after=timedelta(0))

        @timer
        async def close(self) -> None:
            self.state = 3
            raise Rejected("no")

    with ActorTestDriver(app) as driver:
        driver.tell(Order, "a", Place("hat"))
        driver.advance(1)
        assert driver.get(Order, "a") is None


def test_a_method_of_a_class_without_timers_option_makes_the_store() -> None:
    app, order, _ = make()
    assert app.definition_of(order).timers is not None
