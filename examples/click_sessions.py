"""Sessions of clicks, by the time of the clicks (`faust -A examples.click_sessions worker`).

A session ends with a pause of more than half an hour. Clicks may come in any order: one that comes later and lies
between two sessions makes them one. A session is sent once, five minutes after it can't become longer any more.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context, Session, Window, aggregates

app = App("click-sessions", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
PAUSE = timedelta(minutes=30)
LONGEST = 1_000
"""How many clicks of a session are kept."""


class Visit(msgspec.Struct):
    """A session: the times of its first and its last click, Unix milliseconds, and the pages that were seen."""

    first_ms: int
    last_ms: int
    pages: list[str]


clicks = app.topic("clicks", key_type=str, value_type=str)
visits = app.topic("click-visits", key_type=str, value_type=Visit)
sessions = app.window_store(
    "sessions", Session(PAUSE), grace=timedelta(minutes=5), aggregate=aggregates.collect(limit=LONGEST)
)


@app.actor(clicks, stores=[sessions])
async def see_click(ctx: Context, page: str) -> None:
    """Add a click to its visitor's session."""
    sessions.add(ctx.key, page)


@sessions.on_close
async def send_visit(ctx: Context, window: Window, pages: list[str]) -> None:
    """Send a session that is over."""
    ctx.send(visits, key=ctx.key, value=Visit(window.start_ms, window.end_ms, pages))
