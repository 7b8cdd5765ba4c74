"""The example of the bank, under an app id and topics of the test's own; `BANK_VERSION=2` has a newer state."""

import os

import msgspec

from actors import Actor, App, receive
from examples.bank_accounts import Deposit, Outcome, Transfer

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
)
accounts = app.topic(f"{NAME}-in", key_type=str)
outcomes = app.topic(f"{NAME}-out", key_type=str, value_type=Outcome)
is_newer = os.environ.get("BANK_VERSION") == "2"


class Balance(msgspec.Struct):
    """Version 1."""

    cents: int = 0


class Money(msgspec.Struct):
    """Version 2."""

    amount: int = 0
    currency: str = "EUR"

    @property
    def cents(self) -> int:
        """Version 1's name."""
        return self.amount

    @cents.setter
    def cents(self, cents: int) -> None:
        self.amount = cents


@app.actor(accounts, name="account")
class Account(Actor[Money if is_newer else Balance]):  # type: ignore[misc]
    """One account."""

    state_version = 2 if is_newer else 1
    state_upgrades = {1: lambda old: {"amount": old["cents"], "currency": "EUR"}} if is_newer else {}

    @receive
    async def deposit(self, message: Deposit) -> None:
        """Take money in."""
        self.state.cents += message.amount
        if message.transfer:
            self.ctx.send(outcomes, key=message.transfer, value=Outcome(message.transfer, "done"))

    @receive
    async def transfer(self, message: Transfer) -> None:
        """Send money on, if there is enough of it."""
        if self.state.cents < message.amount:
            self.ctx.send(outcomes, key=message.id, value=Outcome(message.id, "refused"))
            return
        self.state.cents -= message.amount
        self.ctx.tell("account", message.to, Deposit(message.amount, message.id))
