"""An actor as it was declared, and how its messages become bytes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors._core.task.commit import MAX_METADATA_BYTES, largest_mark
from actors._core.task.policy import STOP_ON_ERROR, Misplaced, OnError
from actors.declare.values.messages import MessageCodec, function_codec, message_codec
from actors.errors import ConfigurationError
from actors.runtime.handlers.effect import Effect
from actors.runtime.handlers.query_methods import Query
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.requests.replies import ReplyTypes

Asking = TypeVar("Asking", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class ActorDefinition:
    """An actor as it was declared: `declared` is the function or class, `stores` all of its stores.

    `timers`, `effects`, `parked`, `answers` and `ids` are the stores of what it uses; `answer_types` is what it answers
    with, `queries` what can be asked without a message. With `tombstones` null values are messages, None.
    """

    name: str
    topic: Any
    stores: tuple[Store[Any, Any], ...]
    handler: Callable[[Context, Any], Awaitable[Any]]
    declared: Any
    concurrency: int = 1
    on_error: OnError = STOP_ON_ERROR
    effect_functions: Mapping[str, Effect] = field(default_factory=dict)
    timers: Store[bytes, bytes] | None = None
    effects: Store[bytes, bytes] | None = None
    parked: Store[bytes, bytes] | None = None
    answers: Store[bytes, bytes] | None = None
    answer_types: ReplyTypes | None = None
    queries: dict[str, Query] = field(default_factory=dict)
    misplaced: Misplaced = "stop"
    ids: Store[bytes, bytes] | None = None
    tombstones: bool = False

    @property
    def places_by_key(self) -> bool:
        """Whether what it keeps belongs to keys; what is parked does in so far as others of the key wait, and goes."""
        extras = (self.timers, self.effects, self.answers, self.ids)
        return any(store.placement == "key" or store in extras for store in self.stores)

    @property
    def buries(self) -> bool:
        """Whether messages that can't be handled go to the dead-letter topic."""
        return self.parked is not None or self.on_error.dead_letters

    def check_marks(self) -> None:
        """Refuse an actor whose commits brokers would refuse: each names the changelogs in its offset's metadata.

        Raises:
            ConfigurationError: it has too many stores.
        """
        count = len(self.stores)
        size = largest_mark(count, is_parallel=self.concurrency > 1)
        if size > MAX_METADATA_BYTES:
            raise ConfigurationError(
                f"actor {self.name} has {count} stores and concurrency={self.concurrency}: the metadata of its "
                f"committed offsets, which has the id of each store's changelog, may take {size} bytes, and brokers "
                f"take {MAX_METADATA_BYTES} (offset.metadata.max.bytes). Keep values of several kinds in one store, "
                "under keys that tell them apart"
            )

    def messages(self) -> MessageCodec:
        """Return how its messages become bytes.

        Raises:
            ConfigurationError: the topic and the class's handlers don't fit together.
        """
        if isinstance(self.declared, type):
            return message_codec(self.declared, self.topic)
        return function_codec(self.topic)

    def query(self, name: str | None) -> Callable[[Asking], Asking]:
        """Return a decorator that makes a function a query of this actor; see `App.query`.

        Raises:
            ConfigurationError: the actor is a class.
        """

        def decorate(function: Asking) -> Asking:
            called = name or function.__name__
            if called in self.queries:
                raise ConfigurationError(f"actor {self.name}: it has a query {called} already")
            self.queries[called] = Query.of(called, function, f"query {called} of actor {self.name}")
            return function

        if isinstance(self.declared, type):
            raise ConfigurationError(f"actor {self.name} is a class: mark a method of it with @query")
        return decorate

    @property
    def topic_name(self) -> str:
        """The input topic's name."""
        return str(self.topic.get_topic_name())


def check_name(kind: str, name: str) -> None:
    """Refuse a name that topics and folders can't have.

    Raises:
        ConfigurationError: naming it.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigurationError(
            f"{kind} {name!r}: names have up to 100 letters, digits, dots, underscores and dashes, and more than dots"
        )


def check_disjoint(new: ActorDefinition, other: ActorDefinition) -> None:
    """Refuse two actors that would own the same.

    Raises:
        ConfigurationError: naming what both have.
    """
    if new.topic_name == other.topic_name:
        raise ConfigurationError(
            f"actor {new.name}: topic {new.topic_name} is the input of actor {other.name}, and a partition has "
            "one owner: "
            "call both functions from one actor"
        )
    for store in new.stores:
        if store in other.stores:
            raise ConfigurationError(
                f"actor {new.name}: store {store.name} belongs to actor {other.name}, and a store has one owner"
            )
