"""Typed references: one handler at one key, whose messages and answers type checkers see.

A reference is an address without a connection. It is bound where it is used: to the message that is being handled, else
to the app that declared its actor. `Actor.at` is typed as returning the class itself, since that alone makes type
checkers find the methods: on the class a handler is a `Reference`, on an object it stays the method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from inspect import signature
from types import UnionType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, get_type_hints, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from actors.errors import UsageError
from actors.runtime.message.context import DEFAULT_ASK_TIMEOUT, Context, current_message, is_handling
from actors.runtime.message.tools import When

Message = TypeVar("Message")
Asked_contra = TypeVar("Asked_contra", contravariant=True)
Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)
Returned_co = TypeVar("Returned_co", covariant=True)
Class = TypeVar("Class", bound=type[Any])
Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")

_apps: WeakKeyDictionary[Any, WeakValueDictionary[str, Any]] = WeakKeyDictionary()
"""By class or function, the apps that declared it as an actor, by their ids."""
current_app: ContextVar[Any] = ContextVar("actors_app")
"""The app of a test driver that runs a program's code: it goes before the one that declared an actor."""


class _Done:
    """The awaitable of a tell in a handler: it returns at once, since the tell is a part of the message's commit."""

    def __await__(self) -> Any:
        yield from ()


_DONE = _Done()


@dataclass(frozen=True, slots=True)
class Reference(Generic[Asked_contra, Answer_co]):
    """A handler of an actor at a key: await a call of it to ask, use `tell` where no answer is wanted.

    Of a class actor it is `Account.at("ada").withdraw`, of a function actor `take.at("ada")`.

    Attributes:
        actor: the actor's class or function.
        key: which one of them.
        timeout: how long a question waits for its answer.
        method: of a class actor, the name of its method.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> @app.actor(app.topic("orders", key_type=str, value_type=int))
        ... async def take(ctx: Context, count: int) -> str:
        ...     return f"{count} for {ctx.key}"
        >>> with ActorTestDriver(app) as driver:
        ...     driver.run(take.at("ada")(2))
        '2 for ada'
    """

    actor: Any
    key: Any
    timeout: timedelta = DEFAULT_ASK_TIMEOUT
    method: str | None = None

    async def __call__(self, message: Asked_contra) -> Answer_co:
        """Ask: send `message` and return what the handler returns, as `Context.ask` and `App.ask` do.

        Raises:
            AskError: as `Context.ask` does.
            UsageError: the handler doesn't take the message; neither a handler nor one app alone is there.
        """
        self._check(message)
        asker: Any = current_message.get() if is_handling() else _app_of(self.actor)
        answer: Answer_co = await asker.ask(self.actor, self.key, message, timeout=self.timeout)
        return answer

    def tell(self, message: Asked_contra) -> Awaitable[None]:
        """Send `message`. In a handler it is a part of the commit at once; elsewhere await the call.

        Raises:
            UsageError: as for a question.
        """
        self._check(message)
        if not is_handling():
            return self._tell(message)
        current_message.get().tell(self.actor, self.key, message)
        return _DONE

    def schedule(self, message: Asked_contra, **when: Unpack[When]) -> str:
        """Send `message` later, as `Context.schedule` does, in a handler of the same key.

        Raises:
            UsageError: no message of that key is being handled; else as `Context.schedule`.
        """
        self._check(message)
        ctx: Any = current_message.get() if is_handling() else None
        if ctx is None or not ctx._is_own(self.actor, self.key):
            raise UsageError(
                f"{self}.schedule(): a timer is a part of its key's state, and no message of that key is being "
                "handled: tell it a message whose handler schedules"
            )
        timer: str = ctx.schedule(message, **when)
        return timer

    def __str__(self) -> str:
        """Show the expression that makes the reference."""
        method = "" if self.method is None else f".{self.method}"
        return f"{_name_of(self.actor)}.at({self.key!r}){method}"

    def _check(self, message: Any) -> None:
        """Refuse a message that another of the class's methods handles, or none."""
        if isinstance(message, type):
            raise UsageError(f"{self}: {message.__name__} is a class: send an object of it, {message.__name__}(…)")
        if self.method is not None and self.actor.method_for(message) != _inner(getattr(self.actor, self.method)):
            raise UsageError(f"{self}: the method doesn't take {type(message).__name__}")

    async def _tell(self, message: Any) -> None:
        await _app_of(self.actor).tell(self.actor, self.key, message)


@dataclass(frozen=True, slots=True)
class QueryReference(Generic[P, Answer_co]):
    """A query of an actor at a key, for `StateClient.ask` and the test driver's `query`."""

    actor: Any
    key: Any
    name: str
    function: Callable[Concatenate[Any, P], Answer_co]

    def names(self) -> tuple[str, str, Any]:
        """Return the actor's name, the query's and the key."""
        return _app_of(self.actor).definition_of(self.actor).name, self.name, self.key

    def arguments(self, args: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, as JSON has them."""
        bound = signature(self.function).bind(None, *args, **named).arguments
        own: dict[str, Any] = msgspec.to_builtins(dict(list(bound.items())[1:]))
        return own

    def answer(self, value: Any) -> Answer_co:
        """Return what JSON has of an answer in its own type."""
        answer: Answer_co = msgspec.convert(value, get_type_hints(self.function).get("return", Any))
        return answer


class References:
    """The handlers and queries of a class actor at a key, by the names of their methods."""

    def __init__(self, actor: Any, key: Any, timeout: timedelta) -> None:
        self._at = (actor, key, timeout)

    def __getattr__(self, name: str) -> Any:
        actor, key, timeout = self._at
        method = getattr(actor, name, None)
        if _inner(method) in actor.receivers.values():
            return Reference(actor, key, timeout, name)
        query = next((query for query in actor.queries.values() if query.function is method), None)
        if query is not None:
            return QueryReference(actor, key, query.name, query.function)
        raise AttributeError(f"{actor.__name__}.at({key!r}).{name}: only methods with @receive or @query are there")


def keyed(cls: type[Any], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the attribute of a class for one of its handlers: called without a key, it says that one is missing."""
    without = f"{cls.__name__}.{name} without a key: say which one, as {cls.__name__}.at(KEY).{name}"

    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError(without)

    @wraps(method)
    def handler(*args: Any, **named: Any) -> Any:
        # Of an object, or of a class with an object, there are two.
        return method(*args, **named) if len(args) + len(named) > 1 else refuse()

    vars(handler).update(tell=refuse, schedule=refuse)
    return handler


def _inner(handler: Any) -> Any:
    """Return the method inside of what `keyed` returned."""
    return getattr(handler, "__wrapped__", None)


def claim(declared: Any, app: Any) -> None:
    """Note that an app has a class or function as its actor, so that references reach it; give functions their `at`."""
    with suppress(TypeError, AttributeError):
        # A bound method takes neither.
        _apps.setdefault(declared, WeakValueDictionary())[app.app_id] = app
        if not isinstance(declared, type):
            declared.at = lambda key, *, timeout=DEFAULT_ASK_TIMEOUT: Reference(declared, key, timeout)


def _app_of(actor: Any) -> Any:
    """Return the app that references to an actor reach outside of handlers.

    Raises:
        UsageError: no app has the actor, or several have.
    """
    app = current_app.get(None)
    if app is not None:
        return app
    apps = list(_apps.get(actor, {}).values())
    if len(apps) == 1:
        return apps[0]
    if not apps:
        raise UsageError(f"{_name_of(actor)} is no actor of an app: declare it with @app.actor(…)")
    ids = " and ".join(sorted(app.app_id for app in apps))
    raise UsageError(f"{_name_of(actor)} is an actor of the apps {ids}: use ask(actor, key, message) of one of them")


def _name_of(actor: Any) -> str:
    return str(getattr(actor, "__name__", actor))


class Receiver(Protocol[Asked_contra, Returned_co, Answer_co]):
    """A method marked `@receive`, as type checkers see it."""

    @overload
    def __get__(self, instance: None, owner: Any) -> Reference[Asked_contra, Answer_co]: ...
    @overload
    def __get__(self, instance: Any, owner: Any) -> Callable[[Asked_contra], Returned_co]: ...


class Receive(Protocol):
    """The result of `receive(Type)`."""

    @overload
    def __call__(
        self, method: Callable[[Any, Message], Coroutine[Any, Any, Answer]], /
    ) -> Receiver[Message, Coroutine[Any, Any, Answer], Answer]: ...
    @overload
    def __call__(self, method: Callable[[Any, Message], Answer], /) -> Receiver[Message, Answer, Answer]: ...


class QueryMethod(Protocol[P, Answer_co]):
    """A method marked `@query`, as type checkers see it."""

    @overload
    def __get__(self, instance: None, owner: Any) -> QueryReference[P, Answer_co]: ...
    @overload
    def __get__(self, instance: Any, owner: Any) -> Callable[P, Answer_co]: ...


class FunctionActor(Protocol[Asked_contra, Returned_co, Answer_co]):
    """A function that an app has as its actor, as type checkers see it."""

    __name__: str

    def __call__(self, ctx: Context, message: Asked_contra, /) -> Returned_co:
        """Call the function itself."""

    def at(self, key: Any, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT) -> Reference[Asked_contra, Answer_co]:
        """Return a reference to the actor at a key."""

    def timer(self, function: Function, /) -> Function:
        """Make a function, called with its context, one that timers and effects of this actor call; no message does."""


class Declare(Protocol):
    """The decorator that `App.actor` returns."""

    @overload
    def __call__(self, declared: Class, /) -> Class: ...  # type: ignore[overload-overlap]  # its constructor fits too
    @overload
    def __call__(
        self, declared: Callable[[Context, Message], Coroutine[Any, Any, Answer]], /
    ) -> FunctionActor[Message, Coroutine[Any, Any, Answer], Answer]: ...
    @overload
    def __call__(self, declared: Callable[[Context, Message], Answer], /) -> FunctionActor[Message, Answer, Answer]: ...


Types = type[Any] | UnionType
