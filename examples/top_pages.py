"""The most viewed pages of each minute, across all of them (`faust -A examples.top_pages worker`).

Views come by visitor. Each page's views of a minute are counted where the page's key is, and what all pages have in the
end is compared in one place: the three with the most views are sent once for each minute.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context, Tumbling, Window, aggregates

app = App("pages", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class View(msgspec.Struct):
    """A visitor's view of a page."""

    page: str


class Views(msgspec.Struct, order=True):
    """How often a page was viewed; of equal numbers the last name is the largest."""

    count: int
    page: str


class Top(msgspec.Struct):
    """The most viewed pages of the minute that begins at `minute_ms`, the first one first."""

    minute_ms: int
    pages: list[Views]


views = app.topic("page-views", key_type=str, value_type=View)
tops = app.topic("top-pages", key_type=str, value_type=Top)
minutes = app.window_store(
    "page-minutes", Tumbling(minutes=1), grace=timedelta(seconds=30), aggregate=aggregates.count()
)


@app.actor(views, by="page", stores=[minutes])
async def count_view(ctx: Context, view: View) -> None:
    """Count a view in its page's minute."""
    minutes.add(ctx.key, view)


top = minutes.across(
    "top",
    key=lambda page: "all",
    of=lambda page, count: Views(count, page),
    aggregate=aggregates.top_n(3, value_type=Views),
)


@top.on_close
async def send_top(ctx: Context, window: Window, pages: list[Views]) -> None:
    """Send the most viewed pages of a minute."""
    ctx.send(tops, key=ctx.key, value=Top(window.start_ms, pages))
