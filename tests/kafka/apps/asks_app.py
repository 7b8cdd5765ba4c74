"""Accounts that ask each other for money; also made by tests, to ask from outside."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import msgspec

from actors import Actor, App, AskRejectedError, Context, OnError, receive


class Deposit(msgspec.Struct, tag="deposit"):
    """Put money in."""

    cents: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    """Take money out."""

    cents: int


class Fetch(msgspec.Struct, tag="fetch"):
    """Have so much withdrawn from another account, then put it in here."""

    id: str
    source: str
    cents: int


class Look(msgspec.Struct, tag="look"):
    """Tell the balance, after so many seconds."""

    wait_s: float = 0.0


class Ring(msgspec.Struct, tag="ring"):
    """Ask the first of these accounts with the rest; give all keys."""

    keys: list[str]


class Spread(msgspec.Struct, tag="spread"):
    """Put these amounts into another account, side by side."""

    id: str
    target: str
    cents: list[int]


class Break(msgspec.Struct, tag="break"):
    """Fail."""


class NotEnoughError(ValueError):
    """An account has less than is wanted."""


class Balance(msgspec.Struct):
    """An account; `withdrawals` counts them."""

    cents: int = 0
    withdrawals: int = 0


async def spread_out(ctx: Context, account: Any, message: Spread) -> None:
    """Put each amount into the account after its time, then wait."""
    *ios_s, then_s = map(float, os.environ["SPREAD_S"].split())

    async def put(cents: int, io_s: float) -> None:
        await asyncio.sleep(io_s)
        await account.at(message.target).deposit(Deposit(cents))

    await asyncio.gather(*(put(cents, io_s) for cents, io_s in zip(message.cents, ios_s, strict=True)))
    await asyncio.sleep(then_s)


def make(name: str, brokers: str) -> SimpleNamespace:  # noqa: C901  one class with a handler for each message
    """Make the app."""
    app = App(
        name,
        broker=brokers,
        broker_session_timeout=6.0,
        broker_heartbeat_interval=0.5,
        broker_commit_interval=0.05,
    )
    accounts = app.topic(f"{name}-in", key_type=str)
    outcomes = app.topic(f"{name}-out", key_type=str, value_type=str)

    @app.actor(accounts, concurrency=8, on_error=OnError(retries=2, reject=(NotEnoughError,)))
    class Account(Actor[Balance, str]):
        """One account."""

        @receive
        async def deposit(self, message: Deposit) -> int:
            """Take money in."""
            self.state.cents += message.cents
            return self.state.cents

        @receive
        async def withdraw(self, message: Withdraw) -> int:
            """Give money out, if there is enough of it."""
            if self.state.cents < message.cents:
                raise NotEnoughError(f"{self.key} has {self.state.cents}")
            self.state.cents -= message.cents
            self.state.withdrawals += 1
            return message.cents

        @receive
        async def fetch(self, message: Fetch) -> None:
            """Get money from another account."""
            outcome = "done"
            try:
                self.state.cents += await Account.at(message.source).withdraw(Withdraw(message.cents))
            except AskRejectedError:
                outcome = "refused"
            self.ctx.send(outcomes, key=message.id, value=outcome)

        @receive
        async def look(self, message: Look) -> Balance | None:
            """Tell the balance, None if there never was one."""
            await asyncio.sleep(message.wait_s)
            return self.state if self.state != Balance() else None

        @receive
        async def ring(self, message: Ring) -> list[str]:
            """Ask along a chain of accounts."""
            if not message.keys:
                return [self.key]
            return [self.key, *await Account.at(message.keys[0]).ring(Ring(message.keys[1:]))]

        @receive
        async def spread(self, message: Spread) -> None:
            """Ask from branches that reach their question after so many seconds as the environment says."""
            await spread_out(self.ctx, Account, message)
            self.ctx.send(outcomes, key=message.id, value="done")

        @receive
        def broken(self, message: Break) -> int:
            """Fail."""
            raise ValueError("broken on purpose")

    return SimpleNamespace(app=app, Account=Account)


if "APP_NAME" in os.environ:
    app = make(os.environ["APP_NAME"], os.environ["KAFKA_URL"]).app
