"""A typed program: `mypy --strict` and pyright refuse the lines that name their codes, and take all others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from actors import (
    Actor,
    App,
    Context,
    EffectCall,
    GivenUp,
    PendingEffect,
    Reference,
    Unknown,
    query,
    receive,
    timer,
)
from actors.client import StateClient
from actors.testing import ActorTestDriver


class Deposit(msgspec.Struct, tag="deposit"):
    cents: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    cents: int


class Close(msgspec.Struct, tag="close"):
    pass


class Move(msgspec.Struct, tag="move"):
    """A class whose constructor takes as many arguments as a method."""

    source: str
    target: str


class Balance(msgspec.Struct):
    cents: int = 0


app = App("bank", broker="kafka://127.0.0.1:9092")


@app.actor(app.topic("accounts", key_type=str), timers=True, concurrency=10)
class Account(Actor[Balance, str]):
    @receive
    async def deposit(self, message: Deposit) -> int:
        key: str = self.key
        Account.at(key).close.schedule(Close(), after=timedelta(days=1))
        Account.at("bank").deposit.tell(message)
        self.state.cents += message.cents + await Account.at("bank").withdraw(Withdraw(1))
        return self.withdraw(Withdraw(1))

    @receive
    def withdraw(self, message: Withdraw) -> int:
        return self.state.cents

    @receive(Move)
    async def move(self, message: Move) -> str:
        return await take.at(message.source)(1)

    @receive(Close, name="end")
    async def close(self, message: Close) -> None:
        await self.deposit(Deposit(1))

    @query
    def can_pay(self, cents: int, *, is_large: bool = False) -> bool:
        return self.state.cents >= cents

    def helper(self) -> int:
        return 1


class Savings(Account):
    @receive
    async def deposit(self, message: Deposit) -> int:
        return await super().deposit(message)


@app.actor(app.topic("audits", key_type=int))
class Audit(Actor[None]):
    @receive
    def note(self, message: str) -> None:
        self.ctx.tell("take", "ada", 1)


@app.actor(app.topic("orders", key_type=str, value_type=int))
async def take(ctx: Context, count: int) -> str:
    return await ctx.ask(Account, "ada", Deposit(count)) or str(ctx.key)


@app.actor(app.topic("plain", key_type=str, value_type=int), timers=True)
def plain(ctx: Context, count: int) -> list[int]:
    plain.at(ctx.key).schedule(count, after=timedelta(seconds=1))
    return [count]


@dataclass
class Reminder:
    text: str


@app.effect(attempts=4, on_give_up="failed")
async def draft(call: EffectCall, text: str, words: int) -> str:
    return call.idempotency_key


@app.effect(repeat="never", on_unknown="unclear")
def charge(call: EffectCall, cents: int, *, note: str = "") -> bool:
    return True


@app.effect()
async def ship(call: EffectCall) -> None: ...


@app.actor(app.topic("texts", key_type=str), effects=[draft, charge, ship])
class Texts(Actor[list[str], str]):
    @receive
    async def begin(self, message: str) -> None:
        name: str = self.ctx.schedule(self.close, message, 5, at=datetime.now(UTC), name="close")
        self.ctx.schedule(self.stop, after=timedelta(days=1))
        self.ctx.schedule(Reminder(name), every=timedelta(days=1))
        self.ctx.schedule(Deposit(1), after=timedelta(days=1))
        self.ctx.schedule("text", after=timedelta(days=1))
        self.ctx.effect(draft, message, 5, then=self.drafted)
        self.ctx.effect(draft, message, words=5)
        self.ctx.effect(draft, message, 5, then=self.stop)
        self.ctx.effect(charge, 5, then=self.charged)
        self.ctx.effect(charge, 5, note="x")
        id: str = self.ctx.effect(ship, then=self.stop)
        self.state.append(id)

    @timer
    async def close(self, text: str, count: int) -> None:
        await self.drafted(text * count)

    @timer
    def stop(self) -> None: ...

    async def drafted(self, text: str) -> None: ...

    async def charged(self, is_charged: bool) -> None: ...

    async def failed(self, outcome: GivenUp) -> None:
        self.state.append(f"{outcome.error} {outcome.attempts}")

    async def unclear(self, outcome: Unknown) -> None:
        self.state.append(outcome.id)

    @query
    def pending(self) -> list[PendingEffect]:
        return self.ctx.effects()

    def wrong(self) -> None:
        self.ctx.schedule(self.close, "text", after=timedelta(1))  # refused: arg-type, reportArgumentType
        self.ctx.schedule(self.close, 5, "text", after=timedelta(1))  # refused: arg-type, reportArgumentType
        self.ctx.schedule(self.stop, 5, after=timedelta(1))  # refused: arg-type, reportArgumentType
        self.ctx.schedule(self.stop, after=5)  # refused: call-overload, reportArgumentType
        self.ctx.effect(draft, 5, 5, then=self.drafted)  # refused: arg-type, reportCallIssue
        self.ctx.effect(draft, "text", 5, then=self.charged)  # refused: misc, reportCallIssue
        self.ctx.effect(draft, "text")  # refused: call-overload, reportCallIssue
        self.ctx.effect(charge, "text")  # refused: call-overload, reportArgumentType
        self.ctx.effect(charge, 5, then=self.drafted)  # refused: arg-type, reportCallIssue
        self.ctx.effect(ship, then=self.drafted)  # refused: misc, reportCallIssue


@plain.timer
async def close_plain(ctx: Context, count: int) -> None:
    ctx.schedule(close_plain, count, after=timedelta(seconds=1))
    ctx.effect(charge, count, then=charged_plain)


@plain.timer
def charged_plain(ctx: Context, is_charged: bool) -> None:
    ctx.schedule(close_plain, "one", after=timedelta(1))  # refused: arg-type, reportArgumentType
    ctx.effect(draft, "text", 5, then=charged_plain)  # refused: misc, reportCallIssue


async def right(state: StateClient) -> None:
    ada = Account.at("ada", timeout=timedelta(seconds=5))
    cents: int = await ada.deposit(Deposit(5)) + await ada.withdraw(Withdraw(1))
    text: str = await ada.move(Move("a", "b")) + await take.at("ada")(cents)
    counts: list[int] = await plain.at("ada")(1)
    withdraw: Reference[Withdraw, int] = Savings.at("eve").withdraw
    await withdraw.tell(Withdraw(counts[0]))
    await ada.close(Close())
    await Audit.at(7).note(text)
    can: bool = await state.ask(ada.can_pay, 5, is_large=True)
    assert can


def tested(driver: ActorTestDriver) -> None:
    cents: int = driver.run(Account.at("ada").withdraw(Withdraw(1)))
    driver.run(take.at("ada").tell(cents))
    can: bool = driver.query(Account.at("ada").can_pay, cents=5)
    assert can


async def wrong(driver: ActorTestDriver, state: StateClient) -> None:
    ada = Account.at("ada")
    Account.at(3)  # refused: arg-type, reportArgumentType
    await ada.withdraw(Deposit(5))  # refused: arg-type, reportArgumentType
    await ada.withdraw(5)  # refused: arg-type, reportArgumentType
    await ada.withdraw()  # refused: call-arg, reportCallIssue
    text: str = await ada.withdraw(Withdraw(5))  # refused: assignment, reportAssignmentType
    cents: int = ada.deposit(Deposit(5))  # refused: assignment, reportAssignmentType
    ada.deposit(Deposit(5))  # refused: unused-coroutine, reportUnusedCoroutine
    ada.withdraw.tell(Close())  # refused: arg-type, reportArgumentType
    ada.close.schedule(Withdraw(1), after=timedelta(1))  # refused: arg-type, reportArgumentType
    ada.close.schedule(Close(), after=5)  # refused: arg-type, reportArgumentType
    ada.draw(Withdraw(5))  # refused: attr-defined, reportAttributeAccessIssue
    ada.state.cents  # refused: attr-defined, reportAttributeAccessIssue
    ada.helper()  # refused: call-arg, reportCallIssue
    await take.at("ada")("one")  # refused: arg-type, reportArgumentType
    cents = await take.at("ada")(1)  # refused: assignment, reportAssignmentType
    take.at("ada").tell("one")  # refused: arg-type, reportArgumentType
    cents = await plain.at("ada")(1)  # refused: assignment, reportAssignmentType
    await ada.can_pay(5)  # refused: operator, reportCallIssue
    cents = driver.run(take.at("ada")(1))  # refused: assignment, reportAssignmentType
    driver.query(ada.can_pay, cents="one")  # refused: call-overload, reportArgumentType
    text = await state.ask(ada.can_pay, cents=5)  # refused: call-overload, reportAssignmentType


@app.cron("0 9 * * *", tz="Europe/Berlin", missed="each")
async def report(ctx: Context, at: datetime) -> None:
    due: datetime | None = ctx.scheduled("close")
    ctx.log.info("%s after %s", due, at.isoformat())


@app.wrap
async def session(ctx: Context) -> AsyncIterator[None]:
    yield


@app.wrap
def tenant(ctx: Context) -> Iterator[None]:
    yield


async def without_yield(ctx: Context) -> None: ...


app.cron("0 9 * * *", missed="all")  # refused: arg-type, reportArgumentType
app.cron("0 9 * * *")(without_yield)  # refused: type-var, reportArgumentType
app.wrap(without_yield)  # refused: type-var, reportArgumentType
