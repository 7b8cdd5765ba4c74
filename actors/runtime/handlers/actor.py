"""Class actors: a handler for each type of message, and a state for each key.

An `Actor` object lives as long as one message. What outlasts it is its state: read from the store when the handler
first looks at it, written back after the handler if its encoding changed meanwhile, in the message's commit: a state
that was only read isn't written, however it was encoded before. So an actor exists as soon as its key is named, costs
nothing while it is idle, and what a handler that raises did to it never was.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from types import NoneType
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

import typing_extensions

from actors._core.unions import arms_of
from actors.errors import ConfigurationError, UsageError
from actors.runtime.handlers.callables import check_callable, refuse_generator
from actors.runtime.handlers.expiry import remove_own
from actors.runtime.handlers.methods import Call, caller
from actors.runtime.handlers.query_methods import NO_QUERIES, QUERY_MARK, Query, queries_of
from actors.runtime.message.context import DEFAULT_ASK_TIMEOUT, Context
from actors.runtime.message.store import Store
from actors.runtime.requests.references import Answer, Message, Receive, Receiver, References, Types, keyed

S = TypeVar("S")
K = typing_extensions.TypeVar("K", default=Any)

_MARK = "_actors_receives"
_UNREAD: Any = object()


@overload
def receive(  # type: ignore[overload-overlap]  # a class may be called with two arguments too
    type_: Types | None = None, /, *, name: str | None = None
) -> Receive: ...


@overload
def receive(
    type_: Callable[[Any, Message], Coroutine[Any, Any, Answer]], /
) -> Receiver[Message, Coroutine[Any, Any, Answer], Answer]: ...


@overload
def receive(type_: Callable[[Any, Message], Answer], /) -> Receiver[Message, Answer, Answer]: ...


def receive(type_: Any = None, /, *, name: str | None = None) -> Any:
    """Make a method of an `Actor` the handler of a type of message.

    Args:
        type_: the type, or a union of several; the annotation of the method's parameter when left out.
        name: what a record's header `fa-type` calls the type, where types are told apart by it; its `__name__` by
            default.

    Examples:
        >>> from actors import Actor, receive
        >>> class Door(Actor[None]):
        ...     @receive
        ...     async def knock(self, message: str) -> None: ...
        ...
        ...     @receive(int | float)
        ...     async def push(self, message: float) -> None: ...
        >>> sorted(type_.__name__ for type_ in Door.receivers)
        ['float', 'int', 'str']
    """
    if inspect.isfunction(type_):
        setattr(type_, _MARK, (None, name))
        return type_

    def mark(method: Any) -> Any:
        setattr(method, _MARK, (type_, name))
        return method

    return mark


class Actor(Generic[S, K]):
    """The base of class actors: `class Account(Actor[AccountState])`; `Actor[None]` keeps no state.

    `Actor[AccountState, str]` says what keys are, for type checkers; the topic has to say the same.

    Attributes:
        ctx: the message's `Context`.
        state_type: the type in the brackets.
        state_format: how states become bytes, one of `actors.formats`; JSON when left out.
        state_version: the version of `state_type`; raise it together with a change that old values don't fit.
        state_ttl: how long a state is there after it was last changed or set; for ever by default.
        key_type: the second type in the brackets, `Any` if there is none.
        type_arguments: both types, a type parameter where a class leaves one open.
        state_upgrades: by version, the function that turns a state of it, as plain JSON data, into one of the next.
        receivers: by type of message, its handler.
        type_names: by type of message, its name in the header `fa-type`.
        queries: the methods marked `@query`, by name.

    Examples:
        >>> import msgspec
        >>> from actors import Actor, App, Rejected, query, receive
        >>> from actors.testing import ActorTestDriver
        >>> class Deposit(msgspec.Struct, tag="deposit"):
        ...     cents: int
        >>> class Withdraw(msgspec.Struct, tag="withdraw"):
        ...     cents: int
        >>> class Balance(msgspec.Struct):
        ...     cents: int = 0
        >>> app = App("bank", broker="kafka://127.0.0.1:9092")
        >>> @app.actor(app.topic("accounts", key_type=str))
        ... class Account(Actor[Balance]):
        ...     @receive
        ...     async def deposit(self, message: Deposit) -> int:
        ...         self.state.cents += message.cents
        ...         return self.state.cents
        ...
        ...     @receive
        ...     async def withdraw(self, message: Withdraw) -> int:
        ...         if message.cents > self.state.cents:
        ...             raise Rejected(f"{self.ctx.key} has {self.state.cents} cents")
        ...         self.state.cents -= message.cents
        ...         return self.state.cents
        ...
        ...     @query
        ...     def can_pay(self, cents: int) -> bool:
        ...         return self.state.cents >= cents
        >>> ada = Account.at("ada")
        >>> with ActorTestDriver(app) as driver:
        ...     driver.run(ada.deposit(Deposit(500)))
        ...     driver.run(ada.withdraw(Withdraw(200)))
        ...     driver.query(ada.can_pay, cents=400)
        500
        300
        False
    """

    state_type: ClassVar[Any] = NoneType
    key_type: ClassVar[Any] = Any
    type_arguments: ClassVar[tuple[Any, Any]] = NoneType, Any
    state_format: ClassVar[Any] = None
    state_version: ClassVar[int] = 1
    state_ttl: ClassVar[timedelta | None] = None
    state_upgrades: ClassVar[Mapping[int, Callable[[Any], Any]]] = {}
    receivers: ClassVar[Mapping[Any, Callable[..., Any]]] = {}
    type_names: ClassVar[Mapping[Any, str]] = {}
    queries: ClassVar[Mapping[str, Query]] = NO_QUERIES

    def __init_subclass__(cls, **options: Any) -> None:
        """Find the state's type and the handlers.

        Raises:
            ConfigurationError: a handler doesn't say which class it takes, or two take one; a query can't be called.
        """
        super().__init_subclass__(**options)
        if "on_expire" in vars(cls):
            line = "async def on_expire(self) -> None"
            check_callable(vars(cls)["on_expire"], f"{cls.__name__}.on_expire", takes=1, line=line)
        cls.type_arguments = _types(cls)
        state_type, key_type = cls.type_arguments
        cls.state_type = NoneType if isinstance(state_type, TypeVar) else state_type
        cls.key_type = Any if isinstance(key_type, TypeVar) else key_type
        receivers, names = dict(cls.receivers), dict(cls.type_names)
        own: set[Any] = set()
        methods = _own_methods(cls)
        for attribute, method in methods.items():
            given, name = getattr(method, _MARK, (None, None))
            if not hasattr(method, _MARK):
                continue
            setattr(cls, attribute, keyed(cls, attribute, method))
            check_callable(
                method,
                f"the handler {cls.__name__}.{method.__name__}",
                takes=2,
                line=f"async def {method.__name__}(self, message: {_show(given) if given else 'Message'}) -> None",
            )
            for type_ in arms_of(given if given is not None else _annotated(cls, method)):
                if type_ in own:
                    raise ConfigurationError(f"{cls.__name__}: two handlers take {_show(type_)}")
                if not _is_class(type_):
                    raise ConfigurationError(
                        f"{cls.__name__}.{method.__name__}: handlers are chosen by the class of a message, and {type_} "
                        "isn't one: take a class, as a msgspec.Struct with such a field"
                    )
                own.add(type_)
                receivers[type_] = method
                if type_ is not NoneType:
                    names[type_] = name or _show(type_)
        _refuse_unmarked(cls)
        cls.receivers, cls.type_names = receivers, names
        cls.queries = {**cls.queries, **queries_of(cls, methods.values())}

    def __init__(self, ctx: Context, store: Store[Any, Any] | None = None) -> None:
        self.ctx = ctx
        self._store = store
        self._state: Any = _UNREAD
        self._raw: bytes | None = None
        self._is_set = False

    @classmethod
    def at(cls, key: K, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT) -> type[Self]:
        """Return the references to the handlers and queries of a key, by the names of their methods.

        Args:
            key: which actor.
            timeout: how long a question waits for its answer.
        """
        return cast(type[Self], References(cls, key, timeout))

    @classmethod
    def method_for(cls, message: Any) -> Callable[..., Any] | None:
        """Return the method that handles a message, None if the class doesn't take it."""
        return next((cls.receivers[base] for base in type(message).__mro__ if base in cls.receivers), None)

    @property
    def key(self) -> K:
        """The actor's key, decoded."""
        key: K = self.ctx.key
        return key

    @property
    def state(self) -> S:
        """The state of this key: what was kept, or `initial_state()`. Change it, or set it, and it is kept."""
        if self._state is _UNREAD:
            store = self._stateful()
            found = store.own(self.ctx, _UNREAD)
            self._state = self.initial_state() if found is _UNREAD else found
            # So that looking alone writes nothing, even if an earlier version wrote other bytes.
            self._raw = store.encode_value(self._state)
        state: S = self._state
        return state

    @state.setter
    def state(self, state: S) -> None:
        if self._state is _UNREAD:
            self._raw = self._stateful().replaced_own(self.ctx)
        self._state, self._is_set = state, True

    def initial_state(self) -> S:
        """Return the state of a key that has none; `state_type()` unless it is overridden.

        Raises:
            UsageError: the type needs arguments.
        """
        try:
            state: S = self.state_type()
        except TypeError as error:
            raise UsageError(
                f"{type(self).__name__}: {_show(self.state_type)} can't be made without arguments ({error}): give its "
                "fields defaults, or override initial_state()"
            ) from error
        return state

    async def on_expire(self) -> None:
        """Act when this key's state has expired, which `self.state` still shows; what is set then begins a new one."""

    def forget(self) -> None:
        """Remove this key's state, and its rows in map, list and set stores: the next message begins without."""
        if self._state is _UNREAD:
            self._stateful().replaced_own(self.ctx)
        self._stateful().delete_own(self.ctx)
        for store in [store for store in self.ctx._working("forget").overlays if isinstance(store, Store)]:
            if store.below is not None:
                store.below.at(self.key).clear()
        self._state, self._raw, self._is_set = _UNREAD, None, False

    def show_expired(self, state: S) -> None:
        """Show a state that isn't kept any more; it is stored again if it is changed."""
        self._state, self._raw = state, self._stateful().encode_value(state)

    def is_changed(self) -> bool:
        """Return whether the state is another value than the one that is kept.

        For queries: where the type's bytes aren't always the same, equal values are told by `==`.
        """
        if self._state is _UNREAD:
            return False
        store = self._stateful()
        if store.encode_value(self._state) == self._raw:
            return False
        kept = store.own(self.ctx, _UNREAD)
        if kept is _UNREAD:
            kept = self.initial_state()
        return bool(self._state != kept)

    def keep(self) -> None:
        """Write the state if it changed. Called after each handler; of use before an await that may be cut short."""
        if self._state is _UNREAD:
            return
        store = self._stateful()
        raw = store.encode_value(self._state)
        # Setting an equal state is a write as well where that makes it live longer.
        if raw != self._raw or (self._is_set and store.ttl_ms is not None):
            store.write_own(self.ctx, raw)
        self._raw, self._is_set = raw, False

    def _stateful(self) -> Store[Any, Any]:
        if self._store is None:
            raise UsageError(f"{type(self).__name__} has no state: declare it as Actor[TheState]")
        return self._store


def handler_of(
    cls: type[Actor[Any, Any]],
    store: Store[Any, Any] | None,
    *,
    threaded: Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]] | None = None,
    stops: bool = True,
) -> Callable[[Context, Any], Awaitable[Any]]:
    """Return the function that handles a message of any of the class's types, already decoded, or a `Call`.

    `threaded` makes a method that isn't async one that runs in a thread; `stops` says whether an error stops the
    partition, also one of an `on_expire` that is called ahead of a message.
    """
    receivers = {
        type_: method if threaded is None or inspect.iscoroutinefunction(method) else threaded(method)
        for type_, method in cls.receivers.items()
    }
    receivers[Call] = caller(threaded)

    async def handle(ctx: Context, message: Any) -> Any:
        if store is not None and store.on_expire is not None:
            # The message came before the round that removes: what it writes would take the expired state's place.
            await remove_own(ctx, store, stops=stops)
        method = receivers.get(type(message))
        if method is None:
            method = _inherited(cls, receivers, message)
        actor = cls(ctx, store)
        result = method(actor, message)
        if inspect.isawaitable(result):
            result = await result
        elif result is not None:
            refuse_generator(result, f"the handler {method.__qualname__}")
        actor.keep()
        return result

    handle.__name__ = handle.__qualname__ = cls.__name__
    return handle


def expiry_of(cls: type[Actor[Any, Any]]) -> Callable[[Context, Any], Awaitable[None]] | None:
    """Return the function that is called when a state expired; None if the class doesn't override `on_expire`."""
    if cls.on_expire is Actor.on_expire:
        return None

    async def expire(ctx: Context, state: Any) -> None:
        actor = cls(ctx, ctx.expired_in)
        actor.show_expired(state)
        result: Any = actor.on_expire()
        if inspect.isawaitable(result):
            await result
        actor.keep()

    return expire


def _inherited(
    cls: type[Actor[Any, Any]], receivers: Mapping[Any, Callable[..., Any]], message: Any
) -> Callable[..., Any]:
    for base in type(message).__mro__:
        method = receivers.get(base)
        if method is not None:
            return method
    known = ", ".join(sorted(_show(type_) for type_ in cls.receivers))
    raise UsageError(f"{cls.__name__} takes {known}, not {type(message).__name__}")


def _types(cls: type[Actor[Any, Any]]) -> tuple[Any, Any]:
    """Return the types of the state and of keys; a class with type parameters may have one of these in their place."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin, arguments = typing.get_origin(base), typing.get_args(base)
        if origin is Actor:
            state, key = (*arguments, Any)[:2]
            return NoneType if state is None else state, key
        if isinstance(origin, type) and issubclass(origin, Actor):
            named = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
            state, key = (_filled(type_, named) for type_ in origin.type_arguments)
            return NoneType if state is None else state, key
    return cls.type_arguments


def _filled(type_: Any, named: Mapping[Any, Any]) -> Any:
    """Return a type with the arguments of type parameters in their places."""
    if isinstance(type_, TypeVar):
        return named.get(type_, type_)
    parameters = getattr(type_, "__parameters__", ())
    return type_[tuple(named.get(parameter, parameter) for parameter in parameters)] if parameters else type_


def _own_methods(cls: type[Actor[Any, Any]]) -> dict[str, Any]:
    """Return what a class itself has, and what it has of parents that are no actors, by name."""
    parents = [part for parent in cls.__bases__ if not issubclass(parent, Actor) for part in parent.__mro__]
    names = {name: inspect.getattr_static(cls, name) for parent in parents for name in vars(parent)}
    marked = {name: method for name, method in names.items() if hasattr(method, _MARK) or hasattr(method, QUERY_MARK)}
    own = {name: method for name, method in marked.items() if any(vars(part).get(name) is method for part in parents)}
    return {**own, **vars(cls)}


def _refuse_unmarked(cls: type[Actor[Any, Any]]) -> None:
    """Refuse a method that takes the place of a handler or query of a parent class, and would never be called."""
    for name, method in vars(cls).items():
        above = getattr(super(cls, cls), name, None)
        mark = "@receive" if hasattr(above, _MARK) else "@query" if hasattr(above, QUERY_MARK) else None
        if mark is not None and not (hasattr(method, _MARK) or hasattr(method, QUERY_MARK)):
            raise ConfigurationError(
                f"{cls.__name__}.{name} has no {mark}, and the method of the parent class would be called: mark it "
                f"{mark}, or give it another name"
            )


def _annotated(cls: type[Actor[Any, Any]], method: Callable[..., Any]) -> Any:
    parameters = list(inspect.signature(method).parameters)
    try:
        found = typing.get_type_hints(method).get(parameters[1]) if len(parameters) == 2 else None
    except NameError as error:
        raise ConfigurationError(
            f"{cls.__name__}.{method.__name__}: its annotation isn't to be found ({error}): say @receive(TheType)"
        ) from error
    if found is None:
        raise ConfigurationError(
            f"{cls.__name__}.{method.__name__} has to take one message whose type is annotated, as in "
            f"`async def {method.__name__}(self, message: Deposit)`, or be marked @receive(Deposit)"
        )
    return found


def _is_class(type_: Any) -> bool:
    """Return whether there are objects whose class is `type_`."""
    # A TypedDict, whose objects are dicts, has `__total__`.
    is_plain = typing.get_origin(type_) is None and not hasattr(type_, "__total__")
    return isinstance(type_, type) and type_ is not Any and is_plain


def _show(type_: Any) -> str:
    return str(getattr(type_, "__name__", type_))
