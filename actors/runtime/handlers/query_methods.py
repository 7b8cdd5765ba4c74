"""Queries that an actor answers itself: plain functions that look at the committed state of one key.

A query runs between two messages, on what RocksDB holds, with a context whose writes and sends raise. It can't wait:
what it reads is of one moment.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Concatenate, NoReturn, Protocol, overload

import msgspec

from actors.errors import ConfigurationError, ForeignKeyError, ReadOnlyQueryError
from actors.ports import TopicPartition
from actors.runtime.handlers.callables import is_generator
from actors.runtime.message.context import Context, enter_message
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.message.tools import Listing, Tools
from actors.runtime.requests.references import Answer, P, QueryMethod
from actors.runtime.windows.committed import CommittedTime, committed_time
from actors.runtime.windows.store import WindowStore
from stores._core.overlay import MessageScope, Overlay
from stores.ports import PartitionReader

QUERY_MARK = "_actors_query"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_REFUSED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@overload
def query(method: Callable[Concatenate[Any, P], Answer], /) -> QueryMethod[P, Answer]: ...


@overload
def query(*, name: str | None = None) -> Callable[[Callable[Concatenate[Any, P], Answer]], QueryMethod[P, Answer]]: ...


def query(method: Any = None, /, *, name: str | None = None) -> Any:
    """Make a method of an `Actor` a query: `GET /actors/{actor}/_ask/{name}/{key}` calls it with the URL's arguments.

    It sees the committed state of its key as `self.state`, may not change it, and isn't async.

    Args:
        method: the method.
        name: what it is called in the URL; the method's name by default.

    Examples:
        >>> from actors import Actor, query
        >>> class Door(Actor[bool]):
        ...     @query(name="is-open")
        ...     def is_open(self) -> bool:
        ...         return self.state
        >>> list(Door.queries)
        ['is-open']
    """

    def mark(function: Any) -> Any:
        setattr(function, QUERY_MARK, name or function.__name__)
        return function

    return mark if method is None else mark(method)


@dataclass(frozen=True, slots=True)
class Query:
    """A query as it was declared; `arguments` is the struct of its parameters."""

    name: str
    function: Callable[..., Any]
    arguments: type[msgspec.Struct]

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], what: str) -> Query:
        """Look at a function whose first parameter is the actor or the context.

        Raises:
            ConfigurationError: it can't be called as a query.
        """
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{what}: names have up to 100 letters, digits, dots, underscores and dashes")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{what}: a query reads one moment's state, so it can't wait: make it a plain def")
        if is_generator(function):
            raise ConfigurationError(f"{what}: it has a `yield`, and a query returns one value: return a list")
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            raise ConfigurationError(f"{what}: its annotations aren't to be found ({error})") from error
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise ConfigurationError(
                f"{what}: it takes no argument. Write `def {function.__name__}(self)` in a class, "
                f"`def {function.__name__}(ctx: Context)` for a function"
            )
        fields: list[Any] = []
        for parameter in parameters[1:]:
            if parameter.kind in _REFUSED:
                raise ConfigurationError(f"{what}: parameter {parameter} has no name that a URL could give")
            type_ = hints.get(parameter.name, Any)
            is_required = parameter.default is parameter.empty
            fields.append((parameter.name, type_) if is_required else (parameter.name, type_, parameter.default))
        arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        return cls(name, function, arguments)

    def bind(self, given: Mapping[str, Any], *, is_text: bool) -> dict[str, Any]:
        """Return the arguments with their declared types; `is_text` where all that is given is text.

        Raises:
            msgspec.ValidationError: one is missing, unknown or of another type.
        """
        bound = msgspec.convert(dict(given), self.arguments, strict=not is_text)
        return {name: getattr(bound, name) for name in self.arguments.__struct_fields__}


def queries_of(cls: type[Any], methods: Iterable[Any]) -> dict[str, Query]:
    """Return the queries among the methods of a class, by name."""
    found: dict[str, Query] = {}
    for method in methods:
        name = getattr(method, QUERY_MARK, None)
        if name is None:
            continue
        what = f"{cls.__name__}.{method.__name__}"
        if name in found:
            raise ConfigurationError(f"{what}: the class has another query called {name}")
        found[name] = Query.of(name, method, what)
    return found


class QueriedActor(Protocol):
    """A class actor, whose queries are methods: see `actors.runtime.handlers.actor.Actor`."""

    def __init__(self, ctx: Context, store: Store[Any, Any] | None = None) -> None: ...

    def is_changed(self) -> bool:
        """Return whether the state is another value than the one that is kept."""


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """The target of a query: a key, and the committed stores of its partition as of one moment.

    `windows` are the window stores whose rows are in some of the stores, `effects` are its effects that aren't done.
    """

    actor: str
    source: TopicPartition
    partition_count: int
    key: Any
    raw_key: bytes
    now_ms: int
    stores: Mapping[Store[Any, Any], PartitionReader]
    windows: Sequence[WindowStore[Any, Any]] = ()
    effects: Listing | None = None

    def answer(self, asked: Query, arguments: Mapping[str, Any], cls: type[QueriedActor] | None = None) -> Any:
        """Call a query; `cls` is the actor's class if it is one.

        Raises:
            ReadOnlyQueryError: it tried to write, to send, or to reach another key.
        """
        scope = MessageScope(0, 0, self.now_ms)
        state = TaskState(
            actor=self.actor,
            source=self.source,
            home=self.source,
            partition=self.source.partition,
            partition_count=self.partition_count,
            scope=scope,
            overlays={store: _ReadOnlyOverlay(held, scope) for store, held in self.stores.items()},
            max_record_bytes={store.name: sys.maxsize for store in self.stores},
            resolve_output=_refuse_to_send,
            outputs=[],
            tools=_QueryTools(self.effects),
            on_wait=_refuse_to_wait,
        )
        if self.windows:
            times = [committed_time(state.overlays[store.rows].get) for store in self.windows]
            state.windows = _CommittedWindows(
                max(time.stream_ms for time in times), max(time.latest_ms for time in times)
            )
        ctx = Context(state, InternalRecord(-1, self.now_ms, self.raw_key, None, id="query"), self.key, self.raw_key)
        enter_message(ctx)
        try:
            if cls is None:
                return asked.function(ctx, **arguments)
            own = next((store for store in self.stores if store.name == self.actor), None)
            actor = cls(ctx, own)
            result = asked.function(actor, **arguments)
            if actor.is_changed():
                _refuse("it changes the state")
        except ForeignKeyError as error:
            raise ReadOnlyQueryError(
                f"query {asked.name} of actor {self.actor}: it reached for another key than its own, or for all: use "
                "the range of a store, and ask each key alone"
            ) from error
        else:
            return result
        finally:
            ctx._state = None


class _ReadOnlyOverlay(Overlay):
    """Reads through to what is committed; whatever would write raises."""

    __slots__ = ()

    def set(self, key: bytes, value: bytes, expires_at_ms: int = 0) -> None:
        """Refuse."""
        _refuse("it writes")

    def delete(self, key: bytes) -> bool:
        """Refuse."""
        _refuse("it deletes")


@dataclass(slots=True)
class _CommittedWindows:
    """The time of committed windows, by which nothing is written; see `WindowTime` of the task's state."""

    stream_ms: int
    latest_ms: int
    is_closing: bool = False
    carried: Any = None
    key_ms: int = -1

    def visible_ms(self, store: WindowStore[Any, Any]) -> int:
        return CommittedTime(self.stream_ms, self.latest_ms).visible_ms(store)

    def time_of(self, ctx: Context) -> int:
        return max(0, min(ctx.timestamp_ms, self.latest_ms))

    def is_late(self, ctx: Context) -> bool:
        return False

    def _writes(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("it writes")

    is_open = closed_ms = handled = count_late_for = count_late = expect = arrived = _writes


class _QueryTools(Tools):
    """The stand-in for timers, effects and asks in a query."""

    def __init__(self, effects: Listing | None) -> None:
        object.__setattr__(self, "_effects", effects)

    def __getattribute__(self, name: str) -> Any:
        effects = object.__getattribute__(self, "_effects") if name == "effects" else None
        if effects is not None:
            return effects
        return None if name == "clock" else _refuse("it writes" if name == "published" else f"it uses {name}")


def _refuse(what: str) -> NoReturn:
    raise ReadOnlyQueryError(f"a query only reads, and {what}: send the actor a message for that")


def _refuse_to_send(_: Any) -> NoReturn:
    _refuse("it sends")


def _refuse_to_wait(_: int) -> None:
    _refuse("it waits")


NO_QUERIES: Mapping[str, Query] = MappingProxyType({})
