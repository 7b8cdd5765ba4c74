"""Visits to a shop, separated by pauses (`faust -A examples.sessions worker`).

Every visitor is an actor that collects the pages of a visit. Half an hour after the last page the visit's state
expires, and the collected pages are sent as one record: exactly once, at whichever worker owns the visitor then.
"""

import os
from datetime import timedelta

import msgspec

from actors import Actor, App, receive

app = App("visits", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
PAUSE = timedelta(seconds=float(os.environ.get("VISIT_PAUSE_S", "1800")))


class Visit(msgspec.Struct):
    """A visit as far as it is known."""

    pages: list[str] = []


pages = app.topic("pages", key_type=str, value_type=str)
visits = app.topic("visits", key_type=str, value_type=Visit)


@app.actor(pages)
class Visitor(Actor[Visit]):
    """One visitor."""

    state_ttl = PAUSE

    @receive
    async def see(self, page: str) -> None:
        """Add a page to the visit."""
        self.state.pages.append(page)

    async def on_expire(self) -> None:
        """Send the visit when it is over."""
        self.ctx.send(visits, key=self.key, value=self.state)
