"""Class actors whose topics declare no types, for `faust send`: one by tags, one by header, and a function's topic."""

import msgspec

from actors import Actor, App, Context, receive

app = App("sends", broker="kafka://127.0.0.1:1")
tagged, headed = (app.topic(name, key_type=str) for name in ("tagged", "headed"))
words = app.topic("words", key_type=str, value_type=str)


class Deposit(msgspec.Struct, tag="deposit"):
    """Money that comes."""

    cents: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    """Money that goes."""

    cents: int


@app.actor(tagged, timers=True)
class Account(Actor[int]):
    """An account whose messages have tags."""

    @receive
    async def deposit(self, message: Deposit) -> None:
        """Add."""

    @receive
    async def withdraw(self, message: Withdraw) -> None:
        """Subtract."""


@app.actor(headed)
class Log(Actor[int]):
    """A log whose messages' types are in a header."""

    @receive
    async def text(self, message: str) -> None:
        """Keep a text."""

    @receive
    async def number(self, message: int) -> None:
        """Keep a number."""


told = app.topic("told", key_type=str, value_type=str, writers=["count"])


@app.actor(words)
async def count(ctx: Context, value: str) -> None:
    """Count words."""
