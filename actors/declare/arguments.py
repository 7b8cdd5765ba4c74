"""Arguments of declarations that can't be meant, refused with the right ones."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from actors.errors import ConfigurationError
from stores._core.record import MAX_INPUTS

P = ParamSpec("P")
R = TypeVar("R")


def check_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method of `App` say which argument was meant, and how it is called."""
    signature = inspect.signature(method)
    known = [name for name in signature.parameters if name != "self"]

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = sorted(kwargs.keys() - set(known))
        if unknown:
            raise ConfigurationError(f"app.{method.__name__}(…): {say_unknown('argument', unknown, known)}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigurationError(f"app.{method.__name__}(…): {error}{_without_brackets(method, args)}") from error
        return method(*args, **kwargs)

    return call


def _without_brackets(method: Callable[..., Any], args: Collection[Any]) -> str:
    """Return the line to write for a decorator that was used as a plain one."""
    if len(args) == 2 and inspect.isfunction(list(args)[1]):
        return f". Write `@app.{method.__name__}()` above the function"
    if len(args) == 1 and method.__name__ == "actor":
        return '. Write `@app.actor(app.topic("orders", key_type=str, value_type=Order))` above the handler'
    return ""


def check_bare(topic: Any) -> None:
    """Refuse `@app.actor` without brackets, which would declare nothing.

    Raises:
        ConfigurationError: with the line to write instead.
    """
    if inspect.isroutine(topic) or isinstance(topic, type):
        raise ConfigurationError(
            f"@app.actor has no topic, so that {topic.__name__} would never be called: write "
            '`@app.actor(app.topic("orders", key_type=str, value_type=Order))` above it'
        )


def say_unknown(what: str, unknown: Collection[str], known: Collection[str]) -> str:
    """Name the unknown arguments, each with the nearest known one."""
    said = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        said.append(f"there is no {what} {name!r}{f', did you mean {near[0]}?' if near else ''}")
    return "; ".join(said)


def check_span(owner: str, name: str, given: Any, *, may_be_zero: bool = False) -> None:
    """Refuse a duration that isn't a timedelta, or is negative.

    Raises:
        ConfigurationError: with the line to write instead.
    """
    if given is None:
        return
    if not isinstance(given, timedelta):
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        wanted = f": write {name}=timedelta(seconds={given!r})" if is_number else ", as timedelta(seconds=60)"
        raise ConfigurationError(f"{owner}: {name}={given!r} has to be a timedelta{wanted}")
    if given < timedelta(0) or (given == timedelta(0) and not may_be_zero):
        raise ConfigurationError(f"{owner}: {name}={given} has to be {'0 or more' if may_be_zero else 'more than 0'}")


def single_topic(owner: str, topic: Any) -> str:
    """Return the name of a topic.

    Raises:
        ConfigurationError: it isn't one topic of `app.topic(...)`.
    """
    example = 'app.topic("orders", key_type=str, value_type=Order)'
    if getattr(topic, "topics", None) is None:
        raise ConfigurationError(f"{owner} has to be a topic of app.topic(...), not {topic!r}: write {example}")
    if topic.pattern is not None:
        raise ConfigurationError(
            f"{owner} can't be a pattern ({topic.pattern.pattern!r}): state is kept by the partitions of one topic. "
            f"Write {example}"
        )
    if len(topic.topics) != 1:
        names = ", ".join(topic.topics) or "none"
        raise ConfigurationError(
            f"{owner} has to be one topic, not {names}: write {example}, and give an actor with several inputs each "
            "topic by itself, @app.actor(orders, payments)"
        )
    return str(topic.topics[0])


def check_inputs(actor: str, topics: Sequence[Any]) -> None:
    """Refuse inputs that aren't different topics of `app.topic(...)`.

    Raises:
        ConfigurationError: naming them.
    """
    names = [single_topic(f"actor {actor}: its input", topic) for topic in topics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"actor {actor}: topic {twice[0]} is listed twice: an actor reads a topic once")
    if len(names) > MAX_INPUTS:
        raise ConfigurationError(f"actor {actor} has {len(names)} inputs, up to {MAX_INPUTS} are possible")
