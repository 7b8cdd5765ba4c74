"""Headers that are passed on to all that a message leads to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from actors import App, Context, OnError
from actors.errors import ConfigurationError, RecordError
from actors.testing import ActorTestDriver

TENANT = [("tenant", b"acme")]
ALL = [*TENANT, ("traceparent", b"00-1"), ("other", b"x")]


def shop(**options: Any) -> App:
    return App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=("traceparent", "tenant"), **options)


def passed(headers: Any) -> dict[str, bytes]:
    return {name: value for name, value in headers if not name.startswith("fa-")}


BOTH = {"tenant": b"acme", "traceparent": b"00-1"}


class Ping(msgspec.Struct, tag=True):
    text: str


class Pong(msgspec.Struct, tag=True):
    text: str


def test_sends_tells_and_timers_pass_headers_on() -> None:
    app, seen = shop(), []
    orders, out = app.topic("orders", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=str)
    inbox = app.topic("inbox", key_type=str, value_type=str)

    @app.actor(inbox)
    async def told(ctx: Context, text: str) -> None:
        seen.append((text, passed(ctx.headers)))

    @app.actor(orders, timers=True)
    async def order(ctx: Context, text: str) -> None:
        if ctx.timer is not None:
            ctx.send(out, key=ctx.key, value="late")
            return
        ctx.send(out, key=ctx.key, value="soon")
        ctx.send(out, key=ctx.key, value="own", headers={"tenant": b"other"})
        ctx.tell(told, ctx.key, "tell")
        ctx.schedule("timer", after=timedelta(minutes=1))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="hat", headers=ALL)
        driver.advance(120)
        sent = [(record.value, passed(record.headers)) for record in driver.outputs(out)]
    assert sent == [("soon", BOTH), ("own", {"tenant": b"other", "traceparent": b"00-1"}), ("late", BOTH)]
    assert seen == [("tell", BOTH)]


def test_effects_carry_headers_and_pass_them_to_what_they_return() -> None:
    app, seen = shop(), []
    orders, out = app.topic("orders", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=str)

    @app.effect()
    async def charge(call: Any, text: str) -> str:
        seen.append(dict(call.headers))
        return f"{text} paid"

    @app.actor(orders, effects=[charge])
    async def order(ctx: Context, text: str) -> None:
        if text == "hat":
            ctx.effect(charge, text)
        else:
            ctx.send(out, key=ctx.key, value=text)

    with ActorTestDriver(app, effects={charge: charge.function}) as driver:
        driver.send(orders, key="ada", value="hat", headers=ALL)
        (sent,) = driver.outputs(out)
    assert seen == [BOTH]
    assert (sent.value, passed(sent.headers)) == ("hat paid", BOTH)


def test_questions_and_what_they_lead_to_carry_headers() -> None:
    app, seen = shop(), []
    orders, stock = app.topic("orders", key_type=str, value_type=str), app.topic("stock", key_type=str, value_type=str)
    out = app.topic("out", key_type=str, value_type=str)

    @app.actor(stock)
    async def left(ctx: Context, text: str) -> str:
        seen.append(passed(ctx.headers))
        return "two"

    @app.actor(orders, concurrency=4)
    async def order(ctx: Context, text: str) -> None:
        ctx.send(out, key=ctx.key, value=await ctx.ask(left, "hat", text))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="hat", headers=ALL)
        (sent,) = driver.outputs(out)
    assert seen == [BOTH]
    assert (sent.value, passed(sent.headers)) == ("two", BOTH)


def test_a_parked_message_passes_headers_on_when_it_is_handled_again() -> None:
    app, fails = shop(), [True]
    orders, out = app.topic("orders", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=str)

    @app.actor(orders, on_error=OnError(then="park", retries=0))
    async def order(ctx: Context, text: str) -> None:
        if fails:
            raise ValueError(text)
        ctx.send(out, key=ctx.key, value=text)

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="hat", headers=ALL)
        fails.clear()
        driver.retry_parked(order, "ada")
        (sent,) = driver.outputs(out)
    assert passed(sent.headers) == BOTH


def test_new_keys_keep_headers() -> None:
    app, seen = shop(), []
    orders = app.topic("orders", key_type=str, value_type=dict)

    @app.actor(orders, by="customer", stores=[app.store("sums")])
    async def order(ctx: Context, value: dict) -> None:
        seen.append(passed(ctx.headers))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="1", value={"customer": "ada"}, headers=TENANT)
    assert seen == [{"tenant": b"acme"}]


def test_no_other_header_is_passed_on_and_without_names_none() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    orders, out = app.topic("orders", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=str)

    @app.actor(orders)
    async def order(ctx: Context, text: str) -> None:
        ctx.send(out, key=ctx.key, value=text)

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="hat", headers=ALL)
        (sent,) = driver.outputs(out)
    assert passed(sent.headers) == {}


@pytest.mark.parametrize("names", [("fa-ask",), ("",), ("__value_schema_id",), ("__key_schema_id",)])
def test_names_that_arent_of_the_programs_headers_are_refused(names: tuple[str]) -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=names)

    @app.actor(app.topic("orders", key_type=str, value_type=str))
    async def order(ctx: Context, text: str) -> None: ...

    with pytest.raises(ConfigurationError, match="propagate_headers"), ActorTestDriver(app):
        pass


def test_a_header_is_read_as_a_type() -> None:
    app, seen = App("shop", broker="kafka://127.0.0.1:9092"), []
    orders = app.topic("orders", key_type=str, value_type=str)

    @app.actor(orders)
    async def order(ctx: Context, text: str) -> None:
        seen.append(
            (ctx.header("tenant"), ctx.header("attempt", int), ctx.header("id", UUID), ctx.header("raw", bytes))
        )
        seen.append((ctx.header("none"), ctx.header("none", int, 3)))

    id = UUID(int=5)
    with ActorTestDriver(app) as driver:
        headers = [
            ("tenant", b"a"),
            ("tenant", "ä".encode()),
            ("attempt", b"2"),
            ("id", str(id).encode()),
            ("raw", b"\xff"),
        ]
        driver.send(orders, key="ada", value="hat", headers=headers)
        assert seen == [("ä", 2, id, b"\xff"), (None, 3)]
        with pytest.raises(RecordError, match=r"header attempt.*two"):
            driver.send(orders, key="ada", value="hat", headers=[("attempt", b"two")])
