"""Orders by HTTP (`WRITE_TOKENS=… faust -A examples.http_orders worker`): `POST /actors/Order/{number}/place`."""

import os

import msgspec

from actors import Actor, App, Rejected, receive

app = App("http-orders", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Place(msgspec.Struct, tag="place"):
    """Place an order of some items."""

    items: list[str]


@app.actor(app.topic("http-orders", key_type=str))
class Order(Actor[list[str]]):
    """One order."""

    @receive
    async def place(self, order: Place) -> int:
        """Keep the items, and answer how many there are."""
        if not order.items:
            raise Rejected("an order has items")
        self.state += order.items
        return len(self.state)
