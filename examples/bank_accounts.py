"""Accounts that send each other money (`faust -A examples.bank_accounts worker`).

Every account is an actor with its balance as state. A transfer takes the money from one account and tells the other to
take it in the same commit: it is never lost, and never there twice, whichever worker is killed when.
"""

import os

import msgspec

from actors import Actor, App, receive

app = App("bank", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


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


class Balance(msgspec.Struct):
    """The state of an account, in cents."""

    cents: int = 0


accounts = app.topic("bank-accounts", key_type=str)
outcomes = app.topic("bank-outcomes", key_type=str, value_type=Outcome)


@app.actor(accounts)
class Account(Actor[Balance]):
    """One account."""

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
        self.ctx.tell(Account, message.to, Deposit(message.amount, message.id))
