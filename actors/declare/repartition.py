"""Inputs that are keyed otherwise than their actor: an actor without state forwards them by another key.

The forwarding actor reads the topic, and sends each record with its new key to a topic that the app makes, in the same
transaction as its offset. The value's bytes, the timestamp and the headers stay as they are. Actors that read one topic
by different keys share it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actors._core.task.policy import OnError
from actors.errors import ActorsError, ConfigurationError
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.message.context import Context

By = str | Callable[[Any], Any]


class NoKeyError(ActorsError):
    """A record has no key by which its actor reads it."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where an actor reads a topic by another key: `to` is the topic that the app makes, with the values' bytes."""

    actor: str
    by: Callable[[Any], Any]
    to: Any

    def send(self, ctx: Context, value: Any) -> None:
        """Forward the record that is handled.

        Raises:
            NoKeyError: `by=` gives no key for it.
        """
        key = None if value is None else self.by(value)
        if key is None:
            raise NoKeyError(f"by= of actor {self.actor} gives no key for it")
        ctx.send(self.to, key=key, value=ctx._record.value, headers=ctx.headers)


@dataclass(slots=True)
class Repartition:
    """A topic that is read by other keys, and by whom."""

    source: Any
    on_error: OnError
    routes: list[Route] = field(default_factory=list)

    async def forward(self, ctx: Context, value: Any) -> None:
        """Forward a record to all actors that read the topic by another key."""
        for route in self.routes:
            route.send(ctx, value)


def key_function(actor: str, topic: str, by: By) -> Callable[[Any], Any]:
    """Return the function that gives a value's key; a name stands for the field, or the JSON object's entry.

    Raises:
        ConfigurationError: it can't be called that way.
    """
    if not isinstance(by, str):
        line = f"def {name_of(by)}(message: Message) -> str | None"
        check_callable(by, f"actor {actor}: by= of topic {topic}", takes=1, line=line)
        if inspect.iscoroutinefunction(by):
            raise ConfigurationError(f"actor {actor}: by= of topic {topic} is async: make it a plain function")
        return by
    return lambda value: value.get(by) if isinstance(value, Mapping) else getattr(value, by)


def by_topic(actor: str, topics: list[Any], by: By | Mapping[Any, By]) -> dict[str, By]:
    """Return `by=` of each topic by its name; a mapping says it for some of several.

    Raises:
        ConfigurationError: it isn't said of which topic it is, or of one that isn't an input.
    """
    names = [str(topic.get_topic_name()) for topic in topics]
    if isinstance(by, Mapping):
        found = {str(topic.get_topic_name()): function for topic, function in by.items()}
        unknown = sorted(found.keys() - set(names))
        if unknown:
            raise ConfigurationError(f"actor {actor}: by= is for topic {unknown[0]}, which isn't one of its inputs")
        return found
    if len(names) > 1:
        raise ConfigurationError(
            f"actor {actor} has several inputs: say of which by= is, as in by={{{names[-1]}: {by!r}}}, or of each"
        )
    return {names[0]: by}
