"""Visits that expire after `PAUSE_S`, and payments with ids: what a kill must not lose or repeat."""

import os
from datetime import timedelta

from actors import Actor, Context, receive
from actors.runtime.handlers import expiry
from tests.kafka.apps.quick import NAME, quick_app

expiry.PASS_REST_S = 0.3
app = quick_app()
pages = app.topic(f"{NAME}-in", key_type=str, value_type=str)
visits = app.topic(f"{NAME}-out", key_type=str, value_type=list)
payments = app.topic(f"{NAME}-payments", key_type=str, value_type=int)
booked = app.topic(f"{NAME}-booked", key_type=str, value_type=int)


@app.actor(pages)
class Visitor(Actor[list]):
    """One visitor."""

    state_ttl = timedelta(seconds=float(os.environ.get("PAUSE_S", "2")))

    @receive
    async def see(self, page: str) -> None:
        """Add a page to the visit."""
        self.state.append(page)

    async def on_expire(self) -> None:
        """Give the visit out."""
        self.ctx.send(visits, key=self.key, value=self.state)


@app.actor(payments, dedupe_by="payment-id", dedupe_ttl=timedelta(minutes=10))
async def book(ctx: Context, amount: int) -> None:
    """Book a payment once."""
    ctx.send(booked, key=ctx.key, value=amount)
