"""The test driver: messages by topic and actor, what the program under test sends itself, parked effects."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from actors import Actor, App, AskFailedError, Context, EffectCall, HandlerFailedError, Rejected, UsageError, receive
from actors.errors import AskRejectedError, AskTimeoutError
from actors.testing import ActorTestDriver


class Deposit(msgspec.Struct, tag="deposit"):
    cents: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    cents: int


class Loose(msgspec.Struct):
    cents: int


class Bank:
    """Accounts whose topic declares no type; with `loose`, the header names the messages' types."""

    def __init__(self, *, loose: bool = False) -> None:
        self.app = app = App("bank", broker="kafka://127.0.0.1:1")
        self.accounts = app.topic("accounts", key_type=str)
        self.opening = asyncio.Event()
        self.opening.set()

        class Account(Actor[int]):
            @receive
            async def deposit(self, message: Deposit) -> int:
                await bank.opening.wait()
                self.state += message.cents
                return self.state

            @receive
            async def withdraw(self, message: Withdraw) -> int:
                if message.cents > self.state:
                    raise Rejected("not so much")
                self.state -= message.cents
                return self.state

            if loose:

                @receive
                async def take(self, message: Loose) -> None:
                    self.state += message.cents

        bank = self
        self.Account = app.actor(self.accounts, name="Account")(Account)


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_class_actors_topic_takes_its_messages(loose: bool, is_named: bool):
    bank = Bank(loose=loose)
    with ActorTestDriver(bank.app) as driver:
        topic: Any = "accounts" if is_named else bank.accounts
        driver.post(topic, key="ada", value=Deposit(5))
        driver.post(topic, key="ada", value=Deposit(2))
        driver.settle()
        driver.send(topic, key="bob", value=Deposit(1))
        assert driver.items(bank.Account) == {"ada": 7, "bob": 1}
        assert [sent.value for sent in driver.outputs(topic) if sent.key == "ada"] == [Deposit(5), Deposit(2)]


@pytest.mark.parametrize("loose", [False, True])
def test_json_data_is_sent_to_a_class_actors_topic_as_other_programs_send_it(loose: bool):
    bank = Bank(loose=loose)
    with ActorTestDriver(bank.app) as driver:
        headers = {"fa-type": b"Deposit"} if loose else {}
        driver.send(bank.accounts, key="ada", value={"type": "deposit", "cents": 5}, headers=headers)
        assert driver.get(bank.Account, "ada") == 5


def test_a_name_that_is_no_topic_is_refused():
    bank = Bank()
    with ActorTestDriver(bank.app) as driver:
        with pytest.raises(UsageError, match="'acounts' is no topic of this app, which has: accounts"):
            driver.send("acounts", key="ada", value=Deposit(5))
        with pytest.raises(UsageError, match=r"driver.tell\(.*, settle=False\)"):
            driver.post(bank.Account, key="ada", value=Deposit(5))


def test_a_call_of_the_driver_in_a_handler_is_refused():
    app = App("nested", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic)
    async def work(ctx: Context, value: str) -> None:
        driver.send(topic, key="b", value=value)

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match="call it from the test"):
        driver.send(topic, key="a", value="x")


def test_a_message_is_told_without_waiting():
    bank = Bank()
    with ActorTestDriver(bank.app) as driver:
        driver.tell(bank.Account, "ada", Deposit(5), settle=False)
        assert driver.get(bank.Account, "ada") is None
        driver.settle()
        assert driver.get(bank.Account, "ada") == 5


async def test_what_the_program_asks_and_tells_reaches_the_driver():
    bank = Bank()
    with ActorTestDriver(bank.app) as driver:
        assert await bank.app.ask(bank.Account, "ada", Deposit(5)) == 5
        await bank.app.tell(bank.Account, "ada", Deposit(2))
        driver.settle()
        assert driver.get(bank.Account, "ada") == 7
        with pytest.raises(AskRejectedError, match="not so much"):
            await bank.app.ask(bank.Account, "ada", Withdraw(8))
        await (await bank.accounts.send(key="bob", value={"type": "deposit", "cents": 1}))
        await bank.app.close_asks()
        assert await bank.app.ask(bank.Account, "bob", Deposit(1)) == 2


async def test_a_route_of_a_web_app_reaches_the_driver():
    bank, api = Bank(), FastAPI()
    sent: list[Any] = []

    @api.post("/deposit/{name}")
    async def deposit(name: str, cents: int) -> int:
        answer: int = await bank.app.ask(bank.Account, name, Deposit(cents))
        return answer

    async def receive_nothing() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/deposit/ada", "query_string": b"cents=5", "headers": []}
    with ActorTestDriver(bank.app) as driver:
        await api(scope, receive_nothing, send)
        assert (sent[0]["status"], sent[1]["body"]) == (200, b"5")
        assert driver.get(bank.Account, "ada") == 5


def test_routes_of_other_threads_reach_the_driver():
    bank, answers = Bank(), list[int]()
    with ActorTestDriver(bank.app) as driver:

        def route() -> None:
            answers.append(asyncio.run(bank.app.ask(bank.Account, "ada", Deposit(1))))

        routes = [threading.Thread(target=route) for _ in range(4)]
        for thread in routes:
            thread.start()
        for thread in routes:
            thread.join()
        assert sorted(answers) == [1, 2, 3, 4]
        assert driver.get(bank.Account, "ada") == 4


async def test_a_time_out_of_the_program_passes_in_virtual_time():
    bank = Bank()
    bank.opening.clear()
    with ActorTestDriver(bank.app) as driver:
        with pytest.raises(AskTimeoutError, match="no answer within 600 s"):
            await bank.app.ask(bank.Account, "ada", Deposit(5), timeout=timedelta(minutes=10))
        assert driver.now_s >= 600
        bank.opening.set()
        driver.settle()
        assert driver.get(bank.Account, "ada") == 5


async def test_a_handler_that_fails_is_raised_where_the_program_asks():
    app = App("fails", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic)
    async def fails(ctx: Context, value: str) -> str:
        raise ValueError("not this one")

    with ActorTestDriver(app), pytest.raises(AskFailedError, match="not this one"):
        await app.ask(fails, "a", "x")


async def test_after_a_restart_the_newer_program_reaches_the_driver_and_after_the_end_none():
    bank, newer = Bank(), Bank()
    with ActorTestDriver(bank.app) as driver:
        assert await bank.app.ask(bank.Account, "ada", Deposit(5)) == 5
        driver.restart(newer.app)
        assert await newer.app.ask(newer.Account, "ada", Deposit(1)) == 6
        with pytest.raises(AskTimeoutError):
            await bank.app.ask(bank.Account, "ada", Deposit(5), timeout=timedelta(milliseconds=10))
    with pytest.raises(AskTimeoutError):
        await newer.app.ask(newer.Account, "ada", Deposit(5), timeout=timedelta(milliseconds=10))
    await bank.app.close_asks()
    await newer.app.close_asks()


async def test_an_effect_asks_and_tells_in_the_drivers_own_time():
    bank = Bank()
    answers: list[int] = []
    orders = bank.app.topic("orders", key_type=str, value_type=str)

    @bank.app.effect()
    async def pay(call: EffectCall) -> None:
        await bank.app.tell(bank.Account, "ada", Deposit(1))
        answers.append(await bank.app.ask(bank.Account, "ada", Deposit(5)))

    @bank.app.actor(orders, effects=[pay])
    async def order(ctx: Context, value: str) -> None:
        ctx.effect(pay)

    with ActorTestDriver(bank.app, effects={pay: pay}) as driver:
        driver.send(orders, key="ada", value="hat")
        assert driver.get(bank.Account, "ada") == 6
    assert answers == [6]


def test_an_effect_that_failed_for_good_is_seen():
    app = App("orders", broker="kafka://127.0.0.1:1")
    orders, is_broken = app.topic("orders", key_type=str, value_type=str), True

    @app.effect(attempts=2)
    async def ship(call: EffectCall, order: str, *, fast: bool = False) -> None:
        if is_broken:
            raise ConnectionError("no carrier")

    @app.actor(orders, effects=[ship])
    async def take(ctx: Context, order: str) -> None:
        ctx.effect(ship, order, fast=True)

    with ActorTestDriver(app, effects={ship: ship}) as driver:
        driver.send(orders, key="ada", value="hat")
        driver.send(orders, key="ada", value="cap")
        driver.send(orders, key="bob", value="tie")
        assert driver.parked(take) == [], "a call that is tried again isn't parked"
        driver.advance(60)
        first, second = driver.parked(take, "ada")
        assert (first.effect, first.value, first.attempts) == ("ship", (("hat",), {"fast": True}), 2)
        assert "no carrier" in (first.error or "")
        assert (second.effect, second.value, second.error) == ("ship", (("cap",), {"fast": True}), None)
        assert [call.key for call in driver.parked(take)].count("bob") == 1
        is_broken = False
        driver.retry_parked(take, "ada")
        driver.drop_parked(take, "bob")
        assert driver.parked(take) == []


def test_an_actor_that_parks_nothing_is_refused():
    bank = Bank()
    with ActorTestDriver(bank.app) as driver, pytest.raises(UsageError, match="actor Account parks nothing"):
        driver.parked(bank.Account)
