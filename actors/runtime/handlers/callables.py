"""Requirements of a user's function, so that calling it runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from actors.errors import ConfigurationError


def check_callable(function: Callable[..., Any], what: str, *, takes: int, line: str) -> None:
    """Refuse a function that can't be called with so many arguments, or that runs nothing when it is called.

    `what` is the function for people, as in "the handler of actor place"; `takes` is how many positional arguments it
    is called with, `line` how to write it instead, without a colon at its end.

    Raises:
        ConfigurationError: saying why, and the line.
    """
    if not callable(function):
        raise ConfigurationError(f"{what} can't be called: it is {function!r}. Write `{line}:`")
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if any(is_generator(one) for one in (function, called)):
        raise ConfigurationError(
            f"{what} has a `yield`, so calling it runs nothing of it. Write `{line}:`, without a yield; to send, use "
            "ctx.send or ctx.tell"
        )
    try:
        inspect.signature(function, follow_wrapped=False).bind(*[None] * takes)
    except TypeError as error:
        counted = "one argument" if takes == 1 else f"{takes} arguments"
        raise ConfigurationError(f"{what} can't be called with {counted}: {error}. Write `{line}:`") from error
    except ValueError:
        # Some builtins have no signature.
        return


def is_generator(function: Any) -> bool:
    """Return whether calling it makes a generator, async or not."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def refuse_generator(result: Any, what: str) -> None:
    """Refuse a generator in the place of a handler's result: nothing of it has run.

    Raises:
        ConfigurationError: naming the handler.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(f"{what} returned a generator, of which nothing has run: remove its `yield`")


def name_of(function: Any) -> str:
    """Return a function's name, for the line to write."""
    return str(getattr(function, "__name__", None) or type(function).__name__)
