"""The idempotent consumer on the test driver."""

from datetime import timedelta

import pytest

from actors import Actor, App, ConfigurationError, EffectCall, HandlerFailedError, receive
from actors.testing import ActorTestDriver


def payments(**options):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("payments", key_type=str, value_type=int)
    booked = app.topic("booked", key_type=str, value_type=int)
    state = {"fails": False}

    @app.actor(topic, **options)
    def book(ctx, amount):
        ctx.send(booked, key=ctx.key, value=amount)
        if state["fails"]:
            raise ValueError("not now")

    return app, topic, booked, state


def amounts(driver, booked):
    return [sent.value for sent in driver.outputs(booked)]


def test_an_id_that_was_seen_is_skipped_also_after_a_kill_without_the_disk():
    app, topic, booked, _ = payments(dedupe_by="payment-id")
    with ActorTestDriver(app) as driver:
        for amount, name in ((1, b"a"), (2, b"b"), (3, b"a")):
            driver.send(topic, key="ada", value=amount, headers={"payment-id": name})
        driver.crash(keep_disk=False)
        driver.send(topic, key="ada", value=4, headers={"payment-id": b"b"})
        driver.send(topic, key="ada", value=5)
        driver.send(topic, key="ada", value=5)
        assert amounts(driver, booked) == [1, 2, 5, 5]


def test_an_id_is_forgotten_after_its_time():
    app, topic, booked, _ = payments(dedupe_by=lambda _, amount: str(amount), dedupe_ttl=timedelta(hours=1))
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="ada", value=1)
        driver.advance(3500)
        driver.send(topic, key="ada", value=1)
        driver.advance(101)
        driver.send(topic, key="ada", value=1)
        assert amounts(driver, booked) == [1, 1]


def test_a_handler_that_raised_left_no_id():
    app, topic, booked, state = payments(dedupe_by=lambda _, amount: str(amount))
    with ActorTestDriver(app) as driver:
        state["fails"] = True
        with pytest.raises(HandlerFailedError, match="not now"):
            driver.send(topic, key="ada", value=1)
        state["fails"] = False
        driver.restart()
        assert amounts(driver, booked) == [1]


def test_class_actors_are_idempotent_consumers_too():
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("payments", key_type=str)

    @app.actor(topic, dedupe_by=lambda _, message: message)
    class Names(Actor[list]):
        @receive
        def on(self, message: str) -> None:
            self.state.append(message)

    with ActorTestDriver(app) as driver:
        for name in ("x", "y", "x"):
            driver.tell(Names, "k", name)
        assert driver.get(Names, "k") == ["x", "y"]


def test_what_cannot_be():
    with pytest.raises(ConfigurationError, match="dedupe_ttl without dedupe_by"):
        payments(dedupe_ttl=timedelta(1))
    app, topic, _, _ = payments(dedupe_by=lambda *_: 5)
    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match="dedupe_by gave 5"):
        driver.send(topic, key="ada", value=1)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_timer_with_the_message_that_set_it_is_no_repeat_of_it(concurrency: int):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("payments", key_type=str, value_type=int)
    handled = []

    @app.actor(topic, timers=True, concurrency=concurrency, dedupe_by=lambda _, amount: str(amount))
    async def book(ctx, amount):
        handled.append((amount, ctx.timer))
        if ctx.timer is None:
            ctx.schedule(amount, every=timedelta(seconds=10), name="again")

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="ada", value=1)
        driver.advance(15)
        driver.crash(keep_disk=False)
        driver.advance(10)
        driver.send(topic, key="ada", value=1)
    assert handled == [(1, None), (1, "again"), (1, "again")]


def test_the_result_of_an_effect_is_no_repeat_of_the_message_that_called_it():
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("payments", key_type=str, value_type=int)
    handled = []

    @app.effect()
    async def look_up(call: EffectCall, amount: int) -> int:
        return amount

    @app.actor(topic, effects=[look_up], dedupe_by=lambda _, amount: str(amount))
    async def book(ctx, amount):
        handled.append(amount)
        if len(handled) == 1:
            ctx.effect(look_up, amount)

    with ActorTestDriver(app, partitions=1, effects={look_up: lambda _, amount: amount}) as driver:
        driver.send(topic, key="ada", value=1)
        driver.advance(1)
    assert handled == [1, 1]
