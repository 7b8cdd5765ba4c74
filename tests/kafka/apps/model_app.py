"""Timers, and handlers side by side that wait: what a kill must not lose or repeat."""

import asyncio
from datetime import timedelta

import msgspec

from actors import Actor, Context, receive
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()


class Wind(msgspec.Struct, tag="wind"):
    """Ring after so many seconds."""

    number: int
    seconds: float


class Unwind(msgspec.Struct, tag="unwind"):
    """Don't ring."""

    number: int


class Ring(msgspec.Struct, tag="ring"):
    """The clock's message to itself."""

    number: int
    due_ms: int


class Rung(msgspec.Struct):
    """How often a clock rang."""

    times: int = 0


clocks = app.topic(f"{NAME}-clocks", key_type=str)
rings = app.topic(f"{NAME}-rings", key_type=str, value_type=str)
waits = app.topic(f"{NAME}-waits", key_type=str, value_type=str)
waited = app.topic(f"{NAME}-waited", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)


@app.actor(clocks, timers=True)
class Clock(Actor[Rung]):
    """Rings when it was told to."""

    @receive
    async def wind(self, message: Wind) -> None:
        """Wind it up."""
        after = timedelta(seconds=message.seconds)
        due_ms = self.ctx.timestamp_ms + int(message.seconds * 1000)
        self.ctx.schedule(Ring(message.number, due_ms), after=after, name=str(message.number))

    @receive
    async def unwind(self, message: Unwind) -> None:
        """Stop it; says whether it was still to ring."""
        was_wound = self.ctx.cancel(str(message.number))
        self.ctx.send(rings, key=self.key, value=f"{message.number} {'cancelled' if was_wound else 'late'}")

    @receive
    async def ring(self, message: Ring) -> None:
        """Ring."""
        self.state.times += 1
        self.ctx.send(rings, key=self.key, value=f"{message.number} rang {self.state.times} {message.due_ms}")


@app.actor(waits, stores=[counts], concurrency=50)
async def wait(ctx: Context, value: str) -> None:
    """Count, after a wait that is different for each message."""
    seen = counts.get(ctx.key) or 0
    await asyncio.sleep((ctx.offset * 7919 % 20) / 1000)
    counts.set(ctx.key, seen + 1)
    ctx.send(waited, key=ctx.key, value=f"{value} {seen + 1}")
