"""Messages of a type that their actor doesn't take: refused where they are sent, with what to do."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from actors import Actor, App, Context, EffectCall, UsageError, receive
from actors.testing import ActorTestDriver


class Order(msgspec.Struct, tag="order"):
    cents: int


class Remind(msgspec.Struct, tag="remind"):
    pass


class Reminders(Actor[int]):
    """Takes two types that a header tells apart."""

    @receive
    async def number(self, message: int) -> None: ...

    @receive
    async def text(self, message: str) -> None: ...


@pytest.mark.parametrize("call", ["schedule", "tell", "ask"])
@pytest.mark.parametrize("declared", ["function", "class", "class by header"])
def test_a_message_that_the_actor_does_not_take_is_a_usage_error(call: str, declared: str) -> None:
    app, errors = App("shop", broker="kafka://127.0.0.1:1"), list[Exception]()
    orders = app.topic("orders", key_type=str, value_type=Order if declared == "function" else None)
    remedies = {"function": "what topic orders declares with value_type=: add the type there", "class": "@receive"}

    async def attempt(ctx: Context) -> None:
        try:
            if call == "schedule":
                ctx.schedule(Remind(), after=timedelta(hours=1))
            elif call == "tell":
                ctx.tell("take", "bob", Remind())
            else:
                await ctx.ask("take", "bob", Remind())
        except Exception as error:
            errors.append(error)

    if declared == "function":

        @app.actor(orders, timers=True, concurrency=2, name="take")
        async def take(ctx: Context, order: Order) -> str:
            await attempt(ctx)
            return ""
    else:

        class Take(Reminders):
            @receive
            async def order(self, message: Order) -> str:
                await attempt(self.ctx)
                return ""

        class Only(Actor[int]):
            @receive
            async def order(self, message: Order) -> str:
                await attempt(self.ctx)
                return ""

        app.actor(orders, timers=True, concurrency=2, name="take")(Only if declared == "class" else Take)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.tell("take", "ada", Order(1))
    assert [type(error) for error in errors] == [UsageError]
    if call != "ask" or declared == "function":
        # An actor has no answer either to a message that it doesn't take.
        assert "Remind can't be sent: " in str(errors[0])
        assert remedies[declared.split()[0]] in str(errors[0])


class Place(msgspec.Struct):
    row: int


@pytest.mark.parametrize(
    ("type_", "good", "bad", "is_class"),
    [
        (None, b'"next"', b"\xff", False),
        (Place, Place(1), Place("text"), False),  # type: ignore[arg-type]
        (Place, Place(1), Place("text"), True),  # type: ignore[arg-type]
    ],
    ids=["bytes", "field", "field of a class"],
)
def test_what_the_actor_does_not_decode_is_no_message_of_it(type_: Any, good: Any, bad: Any, is_class: bool) -> None:
    app, errors = App("shop", broker="kafka://127.0.0.1:1"), list[UsageError]()
    orders, took = app.topic("orders", key_type=str, value_type=type_), []

    @app.effect(attempts=1)
    async def pack(call: EffectCall) -> Any:
        return bad

    async def order(ctx: Context, order: Any) -> None:
        took.append(order)
        if len(took) > 1:
            return
        for send in (partial(ctx.schedule, after=timedelta(seconds=1)), partial(ctx.tell, "take", "ada")):
            send(good)
            with pytest.raises(UsageError, match=r"can't be sent: (can't encode|not a valid)") as refused:
                send(bad)
            errors.append(refused.value)
        ctx.effect(pack)

    class Take(Actor[None]):
        @receive
        async def order(self, message: Place) -> None:
            await order(self.ctx, message)

    app.actor(orders, timers=True, effects=[pack], name="take")(Take if is_class else order)
    with ActorTestDriver(app, partitions=1, effects={pack: pack}) as driver:
        driver.send(orders, key="ada", value="first" if type_ is None else Place(0))
        driver.advance(60)
        (parked,) = driver.parked("take", "ada")
    assert (len(errors), len(took)) == (2, 3)
    assert "what it returned can't be a message to its actor: UsageError" in str(parked.error)


@pytest.mark.parametrize("stream_time", [False, True])
@pytest.mark.parametrize("option", ["after", "every"])
def test_a_timer_may_be_as_far_away_as_a_timedelta_says(option: str, stream_time: bool) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, timers=True)
    async def take(ctx: Context, value: str) -> None:
        if value == "set":
            ctx.schedule("due", stream_time=stream_time, **{option: timedelta.max})  # type: ignore[arg-type]

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="ada", value="set")
        driver.crash(keep_disk=False)
        driver.advance(86_400)
        assert driver.items(app.actors["take"].timers).keys() - {b"t"}
