"""Orders that are reserved, paid and confirmed, or cancelled (`faust -A examples.order_saga worker`).

A saga across three parties: an order reserves its things in the stock, then has them paid by a call outside Kafka. If a
step fails or takes too long, the earlier steps are compensated. Every step is a message, so the saga continues if a
worker is killed at any point.
"""

import os
from datetime import timedelta
from typing import Literal

import msgspec

from actors import Actor, App, EffectCall, GivenUp, receive, timer

app = App("orders", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
DEADLINE = timedelta(minutes=10)


class Place(msgspec.Struct, tag="place"):
    """A new order; its key is its id."""

    article: str
    count: int
    card: str


class Reserved(msgspec.Struct, tag="reserved"):
    """The stock's answer."""

    is_there: bool


class Order(msgspec.Struct):
    """Where an order is."""

    article: str = ""
    count: int = 0
    card: str = ""
    step: Literal["new", "reserving", "paying", "confirmed", "failed"] = "new"


class Reserve(msgspec.Struct, tag="reserve"):
    """A wish for things from the stock."""

    order: str
    count: int


class Release(msgspec.Struct, tag="release"):
    """Release the things that were reserved for an order."""

    order: str


class Supply(msgspec.Struct, tag="supply"):
    """New things."""

    count: int


class Shelf(msgspec.Struct):
    """How many there are of an article, and for whom some are kept."""

    free: int = 0
    kept: dict[str, int] = {}


orders = app.topic("orders", key_type=str)
stock = app.topic("order-stock", key_type=str)
results = app.topic("order-results", key_type=str, value_type=str)


@app.effect(attempts=5, on_give_up="unpaid")
async def charge(call: EffectCall, card: str, count: int) -> bool:
    """Have the card charged; a real one would hand `call.idempotency_key` to the payment service."""
    return not card.startswith("empty")


@app.actor(stock)
class Stock(Actor[Shelf]):
    """One article."""

    @receive
    async def supply(self, message: Supply) -> None:
        """Put new things on the shelf."""
        self.state.free += message.count

    @receive
    async def reserve(self, message: Reserve) -> None:
        """Keep things for an order, if they are there."""
        is_there = self.state.free >= message.count
        if is_there:
            self.state.free -= message.count
            self.state.kept[message.order] = message.count
        self.ctx.tell(Process, message.order, Reserved(is_there))

    @receive
    async def release(self, message: Release) -> None:
        """Put back what was kept for an order."""
        self.state.free += self.state.kept.pop(message.order, 0)


@app.actor(orders, effects=[charge])
class Process(Actor[Order]):
    """One order."""

    @receive
    async def place(self, message: Place) -> None:
        """Begin: have the things kept."""
        self.state = Order(message.article, message.count, message.card, "reserving")
        self.ctx.tell(Stock, message.article, Reserve(self.key, message.count))
        self.ctx.schedule(self.timed_out, after=DEADLINE, name="deadline")

    @receive
    async def reserved(self, message: Reserved) -> None:
        """Have the things paid."""
        if not message.is_there:
            self._end("failed", "out of stock")
        elif self.state.step == "reserving":
            self.state.step = "paying"
            self.ctx.effect(charge, self.state.card, self.state.count, then=self.paid)
        else:
            # It timed out in between.
            self.ctx.tell(Stock, self.state.article, Release(self.key))

    async def paid(self, is_paid: bool) -> None:
        """Confirm, or give the things back."""
        if is_paid:
            self._end("confirmed", "confirmed")
        else:
            self._give_back("payment refused")

    async def unpaid(self, _: GivenUp) -> None:
        """Release the things if the payment service can't be reached."""
        self._give_back("payment failed")

    @timer
    async def timed_out(self) -> None:
        """Cancel an order whose things weren't there in time; one that is being paid has to wait for the outcome."""
        if self.state.step == "reserving":
            self._end("failed", "timed out")

    def _give_back(self, result: str) -> None:
        self.ctx.tell(Stock, self.state.article, Release(self.key))
        self._end("failed", result)

    def _end(self, step: Literal["confirmed", "failed"], result: str) -> None:
        if self.state.step in ("confirmed", "failed"):
            return
        self.state.step = step
        self.ctx.cancel("deadline")
        self.ctx.send(results, key=self.key, value=result)
