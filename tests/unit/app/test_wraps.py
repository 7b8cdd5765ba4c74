"""`@app.wrap`: functions around every handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from actors import Actor, App, ConfigurationError, Context, EffectCall, HandlerFailedError, OnError, receive, timer
from actors.testing import ActorTestDriver

tenant: ContextVar[str] = ContextVar("tenant")


class Put(msgspec.Struct, tag="put"):
    what: str


class Things(msgspec.Struct):
    what: list[str] = []


class Shop:
    """An app with a function actor, a class actor and a cron; `steps` is what ran."""

    def __init__(self, on_error: OnError | None = None) -> None:
        self.steps: list[str] = []
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=str)
        self.carts = app.topic("carts", key_type=str)
        self.out = app.topic("out", key_type=str, value_type=str)

        @app.actor(self.orders, on_error=on_error or OnError(then="skip", retries=0))
        async def place(ctx: Context, order: str) -> None:
            self.steps.append(order)
            ctx.send(self.out, key=ctx.key, value=f"{order} of {tenant.get('nobody')}")
            if order == "bad":
                raise ValueError("a bad order")

        @app.actor(self.carts)
        class Cart(Actor[Things]):
            @receive
            def put(self, message: Put) -> None:
                self.ctx.send(shop.out, key=self.key, value=tenant.get("nobody"))

        shop = self

        @app.cron("0 9 * * *")
        async def report(ctx: Context, at: datetime) -> None:
            self.steps.append(f"{ctx.key} at {at:%H:%M}")


def test_async_and_plain_functions_run_around_each_handler_in_order() -> None:
    shop = Shop()

    @shop.app.wrap
    async def session(ctx: Context) -> AsyncIterator[None]:
        shop.steps.append(f"open for {ctx.key}")
        yield
        shop.steps.append("close")

    @shop.app.wrap
    def with_tenant(ctx: Context) -> Iterator[None]:
        token = tenant.set(ctx.header("tenant") or "nobody")
        try:
            yield
        finally:
            tenant.reset(token)
            shop.steps.append("reset")

    with ActorTestDriver(shop.app, now=datetime(2026, 3, 2, 8, 30, tzinfo=UTC)) as driver:
        driver.send(shop.orders, key="ada", value="hat", headers={"tenant": b"acme"})
        driver.send(shop.carts, key="ada", value=Put("hat"), headers={"tenant": b"beta"})
        assert [sent.value for sent in driver.outputs(shop.out)] == ["hat of acme", "beta"]
        assert shop.steps == ["open for ada", "hat", "reset", "close", "open for ada", "reset", "close"]
        shop.steps.clear()
        driver.advance(3600)
        assert shop.steps == ["open for report", "report at 09:00", "reset", "close"]


def test_a_handlers_error_comes_out_of_the_yield_and_the_message_is_rolled_back() -> None:
    shop, errors = Shop(), list[str]()

    @shop.app.wrap
    async def session(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            errors.append(str(error))
            raise

    with ActorTestDriver(shop.app) as driver:
        driver.send(shop.orders, key="ada", value="bad")
        driver.send(shop.orders, key="ada", value="hat")
        assert [sent.value for sent in driver.outputs(shop.out)] == ["hat of nobody"]
    assert errors == ["a bad order"]


def test_an_error_of_the_function_is_one_of_the_handler() -> None:
    shop = Shop(OnError(then="stop", retries=0))

    @shop.app.wrap
    def session(ctx: Context) -> Iterator[None]:
        raise ConnectionError("no database")
        yield

    with (
        ActorTestDriver(shop.app) as driver,
        pytest.raises(HandlerFailedError, match="raised ConnectionError: no database"),
    ):
        driver.send(shop.orders, key="ada", value="hat")


def test_what_is_forwarded_by_another_key_isnt_wrapped() -> None:
    app, topics = App("shop", broker="kafka://127.0.0.1:1"), list[str]()
    orders = app.topic("orders", key_type=str, value_type=Put)

    @app.wrap
    def note(ctx: Context) -> Iterator[None]:
        topics.append(ctx.topic)
        yield

    @app.actor(orders, by="what")
    async def place(ctx: Context, order: Put) -> None: ...

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value=Put("hat"))
    assert topics == ["shop--place-orders-repartition"]


def test_private_timers_and_what_effects_lead_to_are_wrapped() -> None:
    app, steps = App("shop", broker="kafka://127.0.0.1:1"), list[str]()
    orders = app.topic("orders", key_type=str, value_type=str)

    @app.wrap
    def note(ctx: Context) -> Iterator[None]:
        steps.append("in")
        yield

    @app.effect()
    async def draft(call: EffectCall, order: str) -> str:
        return f"draft of {order}"

    @app.actor(orders, effects=[draft])
    class Order(Actor[None]):
        @receive
        async def place(self, order: str) -> None:
            self.ctx.schedule(self.cancel, after=timedelta(hours=1))
            self.ctx.effect(draft, order, then=self.drafted)

        async def drafted(self, text: str) -> None:
            steps.append(text)

        @timer
        async def cancel(self) -> None:
            steps.append("cancelled")

    with ActorTestDriver(app, effects={draft: draft}) as driver:
        driver.send(orders, key="ada", value="hat")
        driver.advance(3601)
    assert steps == ["in", "in", "draft of hat", "in", "cancelled"]


def test_functions_that_cant_be_around_a_handler_are_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="wrap session has no `yield`"):

        @app.wrap
        async def session(ctx: Context) -> None: ...  # type: ignore[type-var]

    with pytest.raises(ConfigurationError, match=r"wrap other can't be called with one argument"):

        @app.wrap
        async def other() -> AsyncIterator[None]:  # type: ignore[type-var]
            yield
