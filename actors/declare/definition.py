"""An actor as it was declared, and how its messages become bytes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from actors._core.task.commit import MAX_METADATA_BYTES, largest_mark
from actors._core.task.policy import Misplaced
from actors.declare.arguments import single_topic
from actors.declare.declared import as_coroutine, check_handler, check_value_type, takes_none
from actors.declare.names import check_apart
from actors.declare.values.messages import MessageCodec, function_codec, message_codec
from actors.errors import ConfigurationError
from actors.runtime.handlers.query_methods import Query
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.requests.replies import ReplyTypes
from actors.runtime.spec import ActorParts
from actors.runtime.windows.across import only_feed
from actors.runtime.windows.changes import ChangeStore

Asking = TypeVar("Asking", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class InputHandler:
    """The handler of one of several inputs; with `tombstones` null values of this input are messages, None.

    With `is_feed` it only writes the row of a table, and its messages aren't the actor's.
    """

    handler: Callable[[Context, Any], Awaitable[Any]]
    tombstones: bool
    is_feed: bool = False

    @classmethod
    def of(cls, actor: str, topic: Any, function: Any, wrap: Callable[[Any], Any]) -> InputHandler:
        """Check a function and make it a handler.

        Raises:
            ConfigurationError: it can't be called with a context and a message, or the topic says nothing of its type.
        """
        check_handler(actor, function)
        check_value_type(actor, topic, function)
        return cls(wrap(function), takes_none(topic, function))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorDefinition(ActorParts):
    """An actor as it was declared: `declared` is the function or class.

    `answers` and `ids` are the stores of what it uses; `answer_types` is what it answers with, `queries` what can be
    asked without a message. With `tombstones` null values of all inputs are messages, None. `topics` are the inputs;
    `handlers` has by topic those of `app.on`, which `wrap` makes of functions. `close_when_idle` is how far behind the
    clock stream time follows it while inputs are at their ends. `late` is what becomes of records that come too late
    for windows, or for the order of time.
    """

    topics: tuple[Any, ...]
    handler: Callable[[Context, Any], Awaitable[Any]]
    declared: Any
    answers: Store[bytes, bytes] | None = None
    answer_types: ReplyTypes | None = None
    queries: dict[str, Query] = field(default_factory=dict)
    misplaced: Misplaced = "stop"
    ids: Store[bytes, bytes] | None = None
    tombstones: bool = False
    close_when_idle: timedelta | None = None
    late: Any = "drop"
    wrap: Callable[[Any], Callable[[Context, Any], Awaitable[Any]]] = as_coroutine
    handlers: dict[str, InputHandler] = field(default_factory=dict)

    @property
    def places_by_key(self) -> bool:
        """True if any state belongs to keys. Parked messages alone don't count: they are temporary."""
        extras = (self.timers, self.effects, self.answers, self.ids)
        is_by_key = any(store.placement == "key" or store in extras for store in self.stores)
        return is_by_key or bool(self.windows)

    @property
    def buries(self) -> bool:
        """True if messages that can't be handled go to the dead-letter topic."""
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

    def check_windows(self) -> None:
        """Refuse an actor whose windows' closes would lose their order, or whose changes nothing is called for.

        Functions of `on_close` and `on_emit` may be set late.

        Raises:
            ConfigurationError: naming the store.
        """
        for store in self.windows:
            if isinstance(store, ChangeStore) and store.on_close_function is None:
                raise ConfigurationError(
                    f"actor {self.name}: store {store.name} keeps the windows that change, because of emit=…, and "
                    "nothing is called for them: set a function by on_emit of the window store, or leave emit out"
                )
        closing = [store for store in self.windows if store.on_close_function is not None]
        if self.concurrency > 1 and closing:
            call = "on_emit" if isinstance(closing[0], ChangeStore) else "on_close"
            call = "stages across keys" if closing[0].on_close_function is only_feed else call
            raise ConfigurationError(
                f"actor {self.name}: window store {closing[0].name} has {call}, whose calls have an order, and "
                "concurrency handles messages side by side: leave one of the two out"
            )

    def messages(self, topic: Any = None) -> MessageCodec:
        """Return how the messages of an input, the first by default, become bytes.

        Raises:
            ConfigurationError: the topic and the class's handlers don't fit together.
        """
        topic = self.topic if topic is None else topic
        own = self.handlers.get(str(topic.get_topic_name()))
        if isinstance(self.declared, type) and not (own is not None and own.is_feed):
            return message_codec(self.declared, topic)
        return function_codec(topic)

    def takes_tombstones(self, topic: Any) -> bool:
        """Return whether null values of an input are messages."""
        name = str(topic.get_topic_name())
        own = self.handlers.get(name)
        if self.table_fed_by(name) is not None:
            return True
        if self.tombstones or isinstance(self.declared, type):
            return self.tombstones
        return takes_none(topic, self.declared) if own is None else own.tombstones

    def on(self, topic: Any) -> Callable[[Asking], Asking]:
        """Return a decorator that makes a function the handler of an input; see `App.on`.

        Raises:
            ConfigurationError: the actor is a class, or the topic isn't one of its inputs behind the first.
        """
        declared = single_topic(f"actor {self.name}: app.on(): the input", topic)
        name = next((made for made, source in self.sources.items() if source == declared), declared)

        def decorate(function: Asking) -> Asking:
            if name in self.handlers:
                raise ConfigurationError(f"actor {self.name}: topic {name} has a handler already")
            self.handlers[name] = InputHandler.of(self.name, topic, function, self.wrap)
            return function

        if isinstance(self.declared, type):
            raise ConfigurationError(f"actor {self.name} is a class: its methods take messages by their types")
        if name not in self.topic_names[1:]:
            known = ", ".join(self.sources.get(one, one) for one in self.topic_names[1:]) or "none"
            raise ConfigurationError(
                f"actor {self.name}: app.on() is for its inputs behind the first, {known}, not for topic {declared}: "
                "the first one's messages go to the actor's own function"
            )
        return decorate

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

    def table_fed_by(self, topic: str) -> Table[Any, Any] | None:
        """Return the table whose rows the records of an input write, None if it is no table's."""
        return next((table for table in self.tables if table.topic_name == topic), None)

    @property
    def topic_name(self) -> str:
        """The first input's name."""
        return str(self.topic.get_topic_name())

    @property
    def topic(self) -> Any:
        """The first input."""
        return self.topics[0]

    def input_called(self, topic: str) -> Any:
        """Return the input with this name, the first where none has it: messages of earlier programs may be parked."""
        return next((one for one in self.topics if one.get_topic_name() == topic), self.topic)

    @property
    def sources(self) -> dict[str, str]:
        """By input that the app makes, the topic from whose records it makes it."""
        return {str(topic.get_topic_name()): topic.made_of for topic in self.topics if topic.made_of}

    @property
    def topic_names(self) -> list[str]:
        """The names of all inputs."""
        return [str(topic.get_topic_name()) for topic in self.topics]


def messages_of(actors: Iterable[ActorDefinition], topic: Any) -> MessageCodec:
    """Return how the messages of a topic become bytes: as the class actor that reads it says, else as the topic does.

    Raises:
        ConfigurationError: the topic and the class's handlers don't fit together.
    """
    name = str(topic.get_topic_name())
    for actor in actors:
        if isinstance(actor.declared, type) and name in (*actor.topic_names, *actor.sources.values()):
            return actor.messages(topic)
    return function_codec(topic)


def check_name(kind: str, name: str) -> None:
    """Refuse a name that topics and folders can't have.

    Raises:
        ConfigurationError: naming it.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigurationError(
            f"{kind} {name!r}: names have up to 100 letters, digits, dots, underscores and dashes, and more than dots"
        )


def name_store(app: Any, name: str, former: str | None) -> None:
    """Refuse the name of a store of an app that can't be used, and note the former one.

    Raises:
        ConfigurationError: naming it.
    """
    check_name("store", name)
    if name in app.stores:
        raise ConfigurationError(f"store {name}: the app has a store of that name: rename one")
    check_apart("store", name, app.stores)
    if former is not None:
        check_name("store", former)
        app.renamed_stores[name] = former


def check_disjoint(new: ActorDefinition, other: ActorDefinition) -> None:
    """Refuse two actors that would own the same.

    Raises:
        ConfigurationError: naming what both have.
    """
    for topic in set(new.topic_names) & set(other.topic_names):
        remedy = (
            f"declare it with app.topic({topic!r}, ..., shared=True), so that each of its actors gets the records "
            "through a topic of its own, or call both functions from one actor"
        )
        if new.table_fed_by(topic) or other.table_fed_by(topic):
            remedy = "as a table it is one actor's: let the other one read it through a view, app.view(topic)"
        raise ConfigurationError(
            f"actor {new.name}: topic {topic} is the input of actor {other.name}, and a partition has one owner: "
            f"{remedy}"
        )
    for store in new.stores:
        if store in other.stores:
            raise ConfigurationError(
                f"actor {new.name}: store {store.name} belongs to actor {other.name}, and a store has one owner"
            )
