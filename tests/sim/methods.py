"""The private methods of the simulated actor: they do what the handler does for a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from actors.runtime.handlers.effect import GivenUp, Unknown
from actors.runtime.handlers.methods import Call, Methods, timer
from actors.runtime.message.context import Context
from tests.sim import app


@timer
def again(ctx: Context, message: str) -> None:
    """What a timer or a result says is a message."""


def told(ctx: Context, outcome: GivenUp | Unknown) -> None:
    """A call was given up, or how it ended is unknown."""


_DECLARED = SimpleNamespace(_actors_functions={"again": again, "told": told})


def methods_of(handler: Callable[[Context, str], Awaitable[Any]]) -> Methods:
    """Give the methods of an actor with that handler."""

    async def handle(ctx: Context, call: Call) -> None:
        (argument,) = call.args
        await handler(ctx, f"outcome:{argument.id}" if isinstance(argument, GivenUp | Unknown) else argument)

    return Methods(app.ACTOR, _DECLARED, handle)
