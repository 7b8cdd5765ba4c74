"""Webhooks with retries (`faust -A examples.webhooks worker`).

Every endpoint is an actor. An event is recorded with the call that delivers it. The call is made after the commit, in
the order of the events, and is repeated with growing waits until the endpoint accepts it. The header `Idempotency-Key`
is the same each time, so that the endpoint can recognise a repeat. After eight attempts the endpoint's events are
parked: `faust -A examples.webhooks parked list`.
"""

import os
from datetime import timedelta

import aiohttp
import msgspec

from actors import Actor, App, EffectCall, receive

app = App("webhooks", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Event(msgspec.Struct, tag="event"):
    """Something to tell the endpoint of."""

    body: str


class Deliveries(msgspec.Struct):
    """The deliveries to an endpoint."""

    sent: int = 0
    delivered: int = 0


@app.effect(attempts=8, first_wait=timedelta(seconds=float(os.environ.get("FIRST_WAIT_S", "1"))))
async def post(call: EffectCall, url: str, body: str) -> int:
    """Deliver one event; an answer that isn't a good one raises, and the delivery is tried again."""
    headers = {"Idempotency-Key": call.idempotency_key, "Fencing-Token": str(call.fencing_token)}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(url, data=body, headers=headers) as answer,
    ):
        return answer.status


@app.actor(app.topic("webhook-events", key_type=str), effects=[post])
class Endpoint(Actor[Deliveries]):
    """One endpoint; its key is its address."""

    @receive
    async def event(self, message: Event) -> None:
        """Have an event delivered."""
        self.state.sent += 1
        self.ctx.effect(post, self.key, message.body, then=self.delivered)

    async def delivered(self) -> None:
        """Note a delivery."""
        self.state.delivered += 1
