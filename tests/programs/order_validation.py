"""Validation of orders: three services check each, and it is valid if all agree within five minutes."""

from datetime import timedelta

import msgspec

from actors import Actor, App, receive, timer


class Order(msgspec.Struct, tag="order"):
    cents: int


class Checked(msgspec.Struct, tag="checked"):
    service: str
    is_valid: bool


SERVICES = {"fraud", "inventory", "details"}
app = App("orders", broker="kafka://127.0.0.1:9092")
checks = app.topic("checks", key_type=str, value_type=int)
validations = app.topic("validations", key_type=str, value_type=str)


@app.actor(app.topic("orders", key_type=str))
class Validation(Actor[set[str], str]):
    @receive
    async def order(self, order: Order) -> None:
        self.ctx.send(checks, key=self.key, value=order.cents)
        self.ctx.schedule(self.end, "late", after=timedelta(minutes=5), name="end")

    @receive
    async def checked(self, check: Checked) -> None:
        self.state.add(check.service)
        if (not check.is_valid or self.state == SERVICES) and self.ctx.cancel("end"):
            self.end("valid" if check.is_valid else f"refused: {check.service}")

    @timer
    def end(self, outcome: str) -> None:
        self.ctx.send(validations, key=self.key, value=outcome)
