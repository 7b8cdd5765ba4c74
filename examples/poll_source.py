"""Poll a service for new items, each of them once (`faust -A examples.poll_source worker`).

Every source is an actor: its key is the source's name, its state the position. A timer polls. The items, the position
and the next timer are one commit, so that a crash repeats the poll and nothing else. `python -m examples.poll_source`
begins with a source; begun twice, it still polls once at a time.
"""

import asyncio
import os
from datetime import timedelta

import aiohttp
import msgspec

from actors import Actor, App, OnError, receive

URL = os.environ.get("SOURCE_URL", "http://127.0.0.1:8000/items")
EVERY, AT_ONCE = timedelta(seconds=float(os.environ.get("SOURCE_EVERY_S", "10"))), timedelta(milliseconds=1)

app = App("sources", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Item(msgspec.Struct):
    """Something that the service has."""

    id: str
    text: str


class Page(msgspec.Struct):
    """An answer of the service: the items after a cursor, and the cursor behind them."""

    items: list[Item]
    cursor: int


class Poll(msgspec.Struct, tag="poll"):
    """A source's message to itself."""


class Position(msgspec.Struct):
    """How far a source is read."""

    cursor: int = 0


class CursorWentBackError(Exception):
    """A source answers with a cursor before the one that was asked for."""


polls = app.topic("source-polls", key_type=str)
items = app.topic("source-items", key_type=str, value_type=Item)


async def read_page(source: str, cursor: int) -> Page:
    """Ask the service for what comes after a cursor."""
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.get(URL, params={"source": source, "after": cursor}) as answer,
    ):
        return msgspec.json.decode(await answer.read(), type=Page)


@app.actor(polls, timers=True, on_error=OnError(retries=8, first_wait=timedelta(seconds=1), then="park"))
class Source(Actor[Position]):
    """One source. After eight failures its poll is parked: `faust -A examples.poll_source parked retry Source KEY`."""

    @receive
    async def poll(self, _: Poll) -> None:
        """Send the next items, and note the position."""
        page = await read_page(self.key, self.state.cursor)
        if page.cursor < self.state.cursor:
            raise CursorWentBackError(
                f"source {self.key} answers with cursor {page.cursor}, before the {self.state.cursor} read so far: "
                "it lost items or was set up again. Nothing is sent: repair it, or begin with a source of a new name"
            )
        for item in page.items:
            self.ctx.send(items, key=item.id, value=item)
        self.state.cursor = page.cursor
        self.ctx.schedule(Poll(), after=AT_ONCE if page.items else EVERY, name="poll")


async def main() -> None:
    """Begin to poll."""
    await Source.at("news").poll.tell(Poll())
    await app.producer.stop()


if __name__ == "__main__":
    asyncio.run(main())
