"""`ctx.cancel_effect`: a call that isn't done is removed with the message's commit, and nothing is told of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors import Actor, App, Context, EffectCall, HandlerFailedError, Unknown, UsageError, query, receive
from actors.testing import ActorTestDriver

UNCLEAR = -1


class Submit(msgspec.Struct, tag="submit"):
    number: int
    is_cancelled: bool = False


class Cancel(msgspec.Struct, tag="cancel"):
    """Cancel the first call."""

    is_bad: bool = False


class Outside:
    """Calls that take a second, and fail at first where the number is odd."""

    def __init__(self) -> None:
        self.begun, self.ended = list[int](), list[int]()

    async def call(self, call: EffectCall, number: int) -> int:
        self.begun.append(number)
        await asyncio.sleep(1)
        if number % 2 and call.attempt == 1:
            raise ConnectionError
        self.ended.append(number)
        return number


def make(outside: Outside, **options: Any) -> tuple[ActorTestDriver, Any]:
    app = App("shop", broker="kafka://127.0.0.1:1")
    effect = app.effect(name="work", **options)(outside.call)
    cancelled = app.topic("cancelled", key_type=str, value_type=int)

    @app.actor(app.topic("jobs", key_type=str), effects=[effect], on_error="skip")
    class Jobs(Actor[list[int]]):
        @receive
        async def submit(self, message: Submit) -> None:
            id = self.ctx.effect(effect, message.number, then=self.done)
            if message.is_cancelled:
                assert self.ctx.cancel_effect(id)

        @receive
        async def cancel(self, message: Cancel) -> bool:
            calls = self.ctx.effects()
            is_cancelled = self.ctx.cancel_effect(calls[0].id if calls else "unknown")
            if is_cancelled:
                self.ctx.send(cancelled, key=self.key, value=1)
            if message.is_bad:
                raise ValueError("taken back")
            return is_cancelled

        async def done(self, number: int) -> None:
            self.state.append(number)

        async def unclear(self, outcome: Unknown) -> None:
            self.state.append(UNCLEAR)

        @query
        def pending(self) -> list[int]:
            return [call.attempts for call in self.ctx.effects()]

        @query
        def wrong(self) -> bool:
            return self.ctx.cancel_effect("any")

    return ActorTestDriver(app, effects={effect: outside.call}), Jobs


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_call_that_waits_for_its_next_attempt_is_not_made_again(keep_disk: bool) -> None:
    outside = Outside()
    driver, jobs = make(outside)
    with driver:
        driver.tell(jobs, "a", Submit(1))
        driver.advance(0.5)
        assert driver.query(jobs, "pending", "a") == [1]
        assert driver.ask(jobs, "a", Cancel()) is True
        driver.crash(keep_disk=keep_disk)
        driver.tell(jobs, "a", Submit(2))
        driver.advance(60)
        assert (outside.begun, driver.get(jobs, "a")) == ([1, 2], [2])
        assert driver.ask(jobs, "a", Cancel()) is False


def test_the_result_of_a_call_that_runs_is_dropped_and_those_behind_it_go_on() -> None:
    outside = Outside()
    driver, jobs = make(outside)
    with driver:
        for number in (2, 4, 6):
            driver.tell(jobs, "a", Submit(number), settle=False)
        driver.advance(0.5, settle=False)
        for _ in range(2):
            driver.tell(jobs, "a", Cancel(), settle=False)
        driver.advance(60)
        assert outside.begun == outside.ended == [2, 6]
        assert driver.get(jobs, "a") == [6]


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"limit": 1}, marks=pytest.mark.nightly), {"repeat": "never", "on_unknown": "unclear"}],
)
def test_a_call_is_cancelled_or_its_result_handled_whenever_its_worker_dies(options: dict[str, Any]) -> None:
    for place in range(12):
        outside = Outside()
        driver, jobs = make(outside, **options)
        with driver:
            for key in ("a", "b"):
                driver.tell(jobs, key, Submit(2), settle=False)
            driver.advance(0.1 * (place % 6), settle=False)
            driver.tell(jobs, "a", Cancel(), settle=False)
            driver.advance(0.004 * (place // 6), settle=False)
            driver.crash(keep_disk=bool(place % 2), settle=False)
            driver.advance(100)
            ends = [None] if driver.outputs("cancelled") else [[2], [UNCLEAR]][: 1 + ("repeat" in options)]
            assert driver.get(jobs, "a") in ends
            assert driver.get(jobs, "b") in ([2], [UNCLEAR])
            assert driver.query(jobs, "pending", "a") == driver.query(jobs, "pending", "b") == []


def test_a_call_that_waits_for_its_permit_is_never_made() -> None:
    outside = Outside()
    driver, jobs = make(outside, limit=1)
    with driver:
        for key, number in (("a", 2), ("b", 4), ("c", 6)):
            driver.tell(jobs, key, Submit(number), settle=False)
            driver.advance(0.3, settle=False)
        assert outside.begun == [2]
        assert driver.ask(jobs, "b", Cancel()) is True
        driver.advance(60)
        assert outside.begun == [2, 6]
        assert driver.get(jobs, "b") is None


def test_a_call_is_cancelled_by_the_message_that_made_it_and_stays_if_the_message_is_taken_back() -> None:
    outside = Outside()
    driver, jobs = make(outside)
    with driver:
        driver.tell(jobs, "a", Submit(2, is_cancelled=True))
        driver.tell(jobs, "a", Submit(1))
        driver.advance(0.5)
        driver.tell(jobs, "a", Cancel(is_bad=True))
        driver.advance(60)
        assert outside.begun == [1, 1]
        assert driver.get(jobs, "a") == [1]


def test_a_query_and_an_actor_without_effects_are_refused() -> None:
    driver, jobs = make(Outside())
    with driver, pytest.raises(Exception, match="a query only reads"):
        driver.query(jobs, "wrong", "a")
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("orders", key_type=str, value_type=int))
    async def take(ctx: Context, number: int) -> None:
        ctx.cancel_effect("any")

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError) as failure:
        driver.tell(take, "a", 1)
    assert isinstance(failure.value.__cause__, UsageError)
