"""Handlers that a clean stop cuts short: whatever they make of that, their message is the next owner's."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from actors import App, Context, EffectCall, OnError, Rejected, Tumbling, Window, aggregates
from actors.testing import ActorTestDriver
from tests.unit.runtime.leaving import leave

NOW = datetime(2023, 11, 15, tzinfo=UTC)
AT_MS = int(NOW.timestamp() * 1000) - 3_600_000
KEYS = ("a", "b", "c")


async def clean_up() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        raise ConnectionError("the connection is closed")


async def clean_up_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(clean_up())


async def reject() -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError as error:
        raise Rejected("not now") from error


async def swallow() -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return


ENDS = (clean_up, clean_up_in_a_group, reject, swallow)


class Shop:
    """Each order is sold once, by a message, a timer, a close or an effect; key b hangs until the next owner."""

    def __init__(self, end: Callable[[], Awaitable[None]], then: str = "skip") -> None:
        self.end, self.hangs = end, True
        self.app = App("shop", broker="kafka://127.0.0.1:9")
        self.orders = self.app.topic("orders", key_type=str, value_type=str)
        self.sold = self.app.topic("sold", key_type=str, value_type=str)
        self.on_error = OnError(then=then)

    async def sell(self, ctx: Context, order: str) -> None:
        if ctx.key == "b" and self.hangs:
            await self.end()
        else:
            ctx.send(self.sold, key=ctx.key, value=order)

    def check(self, effects=None) -> None:
        with ActorTestDriver(self.app, partitions=1, effects=effects, now=NOW) as driver:
            for key in KEYS:
                driver.post(self.orders, key=key, value="hat", timestamp_ms=AT_MS)
            driver.post(self.orders, key="later", value="hat", timestamp_ms=AT_MS + 600_000)
            driver.advance(3, settle=False)
            leave(driver, before_start=lambda: setattr(self, "hangs", False))
            driver.advance(60)
            sold = [sent.key for sent in driver.outputs(self.sold) if sent.key != "later"]
            assert sorted(sold) == list(KEYS)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("then", ["skip", "park"])
def test_a_message(end, concurrency, then):
    shop = Shop(end, then)
    shop.app.actor(shop.orders, on_error=shop.on_error, concurrency=concurrency, name="sell")(shop.sell)
    shop.check()


@pytest.mark.parametrize("end", ENDS)
def test_the_message_of_a_timer(end):
    shop = Shop(end)

    @shop.app.actor(shop.orders, timers=True, on_error=shop.on_error)
    async def sell_later(ctx: Context, order: str) -> None:
        if ctx.timer is None:
            ctx.schedule(order, after=timedelta(seconds=1))
        else:
            await shop.sell(ctx, order)

    shop.check()


@pytest.mark.parametrize("end", ENDS)
def test_the_close_of_a_window(end):
    shop = Shop(end)
    minutes = shop.app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.collect(1, value_type=str))

    @shop.app.actor(shop.orders, stores=[minutes], on_error=shop.on_error)
    async def count(ctx: Context, order: str) -> None:
        minutes.add(ctx.key, order)

    @minutes.on_close
    async def sell(ctx: Context, window: Window, orders: list[str]) -> None:
        await shop.sell(ctx, orders[0])

    shop.check()


@pytest.mark.parametrize("end", [end for end in ENDS if end is not swallow])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_call_of_an_effect(end, concurrency):
    shop = Shop(end)

    @shop.app.effect(attempts=1)
    async def charge(call: EffectCall, order: str) -> str:
        if call.decoded_key == "b" and shop.hangs:
            await shop.end()
        return f"charged {order}"

    @shop.app.actor(shop.orders, effects=[charge], on_error=shop.on_error, concurrency=concurrency)
    async def sell(ctx: Context, order: str) -> None:
        if order.startswith("charged"):
            ctx.send(shop.sold, key=ctx.key, value=order)
        else:
            ctx.effect(charge, order)

    shop.check({charge: charge})
