"""What `@app.actor(...)` may be told, and which of it fits together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

from actors._core.policy import Misplaced, OnError
from actors.errors import ConfigurationError
from actors.runtime.actor import Actor
from actors.runtime.context import Context, Store
from actors.runtime.dedupe import Identify
from actors.runtime.effects import Effect

MAX_CONCURRENCY = 10_000
Coroutine = Callable[[Context, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The options of an actor."""

    stores: tuple[Store[Any, Any], ...]
    dedupe_by: Identify | None
    dedupe_ttl: timedelta | None
    timers: bool
    effects: tuple[Effect, ...]
    on_error: OnError
    concurrency: int
    threads: bool
    answer_ttl: timedelta
    publish: Any = None
    misplaced: Misplaced = "stop"


def check_options(name: str, declared: Any, options: Declaration) -> None:
    """Refuse options that can't work.

    Raises:
        ConfigurationError: naming them.
    """
    if not (isinstance(options.concurrency, int) and 1 <= options.concurrency <= MAX_CONCURRENCY):
        raise ConfigurationError(
            f"actor {name}: concurrency={options.concurrency!r}: it is how many messages of a partition are handled at "
            f"once, 1 to {MAX_CONCURRENCY}"
        )
    if options.misplaced not in get_args(Misplaced):
        raise ConfigurationError(
            f"actor {name}: misplaced={options.misplaced!r}: it is one of {', '.join(get_args(Misplaced))}"
        )
    roaming = [store.name for store in options.stores if store.placement == "task"]
    if options.concurrency > 1 and roaming:
        raise ConfigurationError(
            f'actor {name}: store {roaming[0]} has placement="task", so that messages of different keys could write '
            "the same key, and concurrency handles them at the same time: leave one of the two out"
        )
    if options.threads and not _has_plain_handler(declared):
        raise ConfigurationError(
            f"actor {name}: threads=True, and every handler is async: only plain functions are called in threads"
        )
    if options.publish is not None and getattr(declared, "state_type", None) in (None, type(None)):
        raise ConfigurationError(
            f"actor {name}: publish= is for the state of a class, and this actor has none: publish one of its stores "
            "with app.store(..., publish=topic)"
        )
    names = [getattr(effect, "name", None) for effect in options.effects]
    for effect, its_name in zip(options.effects, names, strict=True):
        if not isinstance(effect, Effect):
            raise ConfigurationError(f"actor {name}: effects=[{effect!r}]: make it one with @app.effect()")
        if names.count(its_name) > 1:
            raise ConfigurationError(f"actor {name}: two of its effects are called {its_name}: give one name=…")


def _has_plain_handler(declared: Any) -> bool:
    is_class = isinstance(declared, type) and issubclass(declared, Actor)
    methods = declared.receivers.values() if is_class else [declared]
    return not all(inspect.iscoroutinefunction(method) for method in methods)


def as_coroutine(function: Callable[[Context, Any], Any]) -> Coroutine:
    """Give a handler that can be awaited."""
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def handle(ctx: Context, value: Any) -> Any:
        result = function(ctx, value)
        return await result if inspect.isawaitable(result) else result

    return handle
