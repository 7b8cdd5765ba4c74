"""The code of the page on timers and effects does what the page says."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from actors import Actor, App, EffectCall, GivenUp, PendingEffect, Unknown, query, receive, timer
from actors.testing import ActorTestDriver
from tests.documents import Block, block


class Put(msgspec.Struct, tag="put"):
    thing: str


class Checkout(msgspec.Struct, tag="checkout"):
    pass


class Cart(msgspec.Struct):
    things: list[str] = []


class Event(msgspec.Struct, tag="event"):
    body: str


class Deliveries(msgspec.Struct):
    count: int = 0


class Session:
    """As much of a client of HTTP as the page uses."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.status = 200

    def post(self, url: str, *, data: str, headers: dict[str, str]) -> Session:
        self.calls.append((url, data, headers["Idempotency-Key"]))
        return self

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""


class Bank:
    def __init__(self) -> None:
        self.transfers: list[int] = []

    async def transfer(self, cents: int) -> str:
        self.transfers.append(cents)
        await asyncio.sleep(cents)
        return f"receipt {cents}"


def run(code: Block, **given: Any) -> dict[str, Any]:
    names = (Actor, EffectCall, GivenUp, PendingEffect, Unknown, query, receive, timedelta, timer)
    return code.run({**{name.__name__: name for name in names}, **given})


def an_app() -> App:
    return App("shop", broker="kafka://127.0.0.1:1")


def test_a_timer_fires_unless_it_is_cancelled() -> None:
    app = an_app()
    code = block("docs/reference/timers-and-effects.md", "Timers")
    shopper = run(code, app=app, Cart=Cart, Put=Put, Checkout=Checkout)["Shopper"]
    with ActorTestDriver(app) as driver:
        timers = app.stores["Shopper-timers"]
        driver.tell(shopper, "ada", Put("hat"))
        driver.tell(shopper, "bob", Put("hat"))
        driver.tell(shopper, "bob", Checkout())
        set_by_ada = driver.items(timers).keys()
        driver.advance(3_601)
        assert set_by_ada > driver.items(timers).keys() == {b"t"}


def test_an_effect_is_called_with_an_idempotency_key() -> None:
    app, session = an_app(), Session()
    types = {"Event": Event, "Deliveries": Deliveries}
    code = block("docs/reference/timers-and-effects.md", "Effects outside Kafka")
    names = run(code, app=app, events=app.topic("events", key_type=str), session=session, **types)
    with ActorTestDriver(app, effects={names["post"]: names["post"]}) as driver:
        driver.tell("Endpoint", "http://a", Event("one"))
        ((url, body, key),) = session.calls
        assert (url, body, key.startswith("events-")) == ("http://a", "one", True)
        assert driver.query("Endpoint", "pending", "http://a") == []


def test_a_call_that_is_never_repeated_is_unclear_after_a_crash() -> None:
    app, bank = an_app(), Bank()
    code = block("docs/reference/timers-and-effects.md", "Calls that may not be repeated")
    pay = run(code, app=app, orders=app.topic("orders", key_type=str), bank=bank)["pay"]
    with ActorTestDriver(app, effects={pay: pay}) as driver:
        for key, cents in (("short", 1), ("long", 9)):
            driver.tell("Order", key, cents, settle=False)
        driver.advance(5, settle=False)
        driver.crash()
        assert driver.items("Order") == {"short": "paid receipt 1", "long": "ask the bank"}
    assert sorted(bank.transfers) == [1, 9]
