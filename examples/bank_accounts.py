"""Accounts that send each other money (`faust -A examples.bank_accounts worker`).

Every account is an actor with its balance as state. A transfer asks one account to withdraw the money, then tells the
other one to deposit it. No money is lost or doubled, even if workers are killed. If the question is repeated after a
crash, the account returns its first answer. The balance can be queried over HTTP, without a message:
`curl 'localhost:6066/actors/Account/_ask/can_pay/ada?cents=300'`.
"""

import os

import msgspec

from actors import Actor, App, AskRejectedError, Context, Rejected, query, receive

app = App("bank", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Deposit(msgspec.Struct, tag="deposit"):
    """Money that comes in, in cents; `transfer` names the transfer that it belongs to."""

    amount: int
    transfer: str = ""


class Withdraw(msgspec.Struct, tag="withdraw"):
    """Money to go out, in cents. The answer is what is left."""

    amount: int


class Show(msgspec.Struct, tag="show"):
    """The question for the balance."""


class Transfer(msgspec.Struct):
    """An order to send money from one account to another."""

    sender: str
    receiver: str
    amount: int


class Outcome(msgspec.Struct):
    """The outcome of a transfer: `done`, or why it was refused."""

    outcome: str


class Balance(msgspec.Struct):
    """The state of an account, in cents."""

    cents: int = 0


accounts = app.topic("bank-accounts", key_type=str)
transfers = app.topic("bank-transfers", key_type=str, value_type=Transfer)
outcomes = app.topic("bank-outcomes", key_type=str, value_type=Outcome)


@app.actor(accounts)
class Account(Actor[Balance, str]):
    """One account."""

    @receive
    async def deposit(self, message: Deposit) -> None:
        """Take money in."""
        self.state.cents += message.amount
        if message.transfer:
            self.ctx.send(outcomes, key=message.transfer, value=Outcome("done"))

    @receive
    async def withdraw(self, message: Withdraw) -> int:
        """Pay money out, if there is enough of it."""
        if self.state.cents < message.amount:
            raise Rejected(f"{self.key} has {self.state.cents} cents, not {message.amount}")
        self.state.cents -= message.amount
        return self.state.cents

    @receive
    async def show(self, _: Show) -> Balance:
        """Return the balance."""
        return self.state

    @query
    def can_pay(self, cents: int) -> bool:
        """Return whether there is enough of it."""
        return self.state.cents >= cents


@app.actor(transfers, concurrency=50)
async def transfer(ctx: Context, order: Transfer) -> None:
    """Make a transfer; its key is its id."""
    try:
        await Account.at(order.sender).withdraw(Withdraw(order.amount))
    except AskRejectedError as error:
        ctx.send(outcomes, key=ctx.key, value=Outcome(str(error)))
    else:
        Account.at(order.receiver).deposit.tell(Deposit(order.amount, ctx.key))
