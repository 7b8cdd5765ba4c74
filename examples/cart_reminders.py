"""Reminders for carts that were left behind (`faust -A examples.cart_reminders worker`).

Every shopper's cart is an actor. Each added thing resets a durable timer, and a checkout cancels it. An abandoned cart
causes a reminder after an hour and another one after a day, exactly once each, at whichever worker owns it then.
"""

import os
from datetime import timedelta

import msgspec

from actors import Actor, App, receive, timer

app = App("carts", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
PATIENCE = timedelta(seconds=float(os.environ.get("CART_PATIENCE_S", "3600")))
LAST = 24 * PATIENCE


class Put(msgspec.Struct, tag="put"):
    """Something that goes into the cart."""

    thing: str


class Checkout(msgspec.Struct, tag="checkout"):
    """The shopper pays."""


class Cart(msgspec.Struct):
    """The content of a cart."""

    things: list[str] = []


carts = app.topic("carts", key_type=str)
orders = app.topic("cart-orders", key_type=str, value_type=Cart)
reminders = app.topic("cart-reminders", key_type=str, value_type=str)


@app.actor(carts)
class Shopper(Actor[Cart]):
    """One shopper's cart."""

    @receive
    async def put(self, message: Put) -> None:
        """Add a thing, and begin to wait anew."""
        self.state.things.append(message.thing)
        self.ctx.schedule(self.remind, False, after=PATIENCE, name="remind")

    @receive
    async def checkout(self, _: Checkout) -> None:
        """Order what is there."""
        self.ctx.cancel("remind")
        self.ctx.send(orders, key=self.key, value=self.state)
        self.forget()

    @timer
    async def remind(self, is_last: bool) -> None:
        """Remind the shopper of the cart."""
        self.ctx.send(reminders, key=self.key, value=f"{', '.join(self.state.things)} still in your cart")
        if not is_last:
            self.ctx.schedule(self.remind, True, after=LAST, name="remind")
