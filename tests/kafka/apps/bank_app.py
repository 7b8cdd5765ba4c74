"""A bank whose transfers are messages between accounts; `BANK_VERSION=2` has a newer state."""

import os

import msgspec

from actors import Actor, App, receive

NAME = os.environ.get("APP_NAME", "bank")
app = App(
    NAME,
    broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"),
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
)


class Deposit(msgspec.Struct, tag="deposit"):
    """Money that comes in; `transfer` names the transfer that it belongs to."""

    amount: int
    transfer: str = ""


class Transfer(msgspec.Struct, tag="transfer"):
    """An order to send money to another account."""

    id: str
    to: str
    amount: int


class Outcome(msgspec.Struct):
    """What became of a transfer: `done` or `refused`."""

    transfer: str
    outcome: str


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
