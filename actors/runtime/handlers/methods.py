"""Private methods: what an actor's own timers and effects call, and nobody outside.

A class actor has its methods, a function actor the functions that its `timer` registers. A call is kept with the name
of the method and its arguments, as the JSON `[args, kwargs]`. Only the records of internal messages name a method, so
that no record of a topic calls one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from actors._core.logs import text_of
from actors._core.outside import MALFORMED
from actors.errors import ConfigurationError, UnknownTypeError, UsageError
from actors.runtime.handlers.call_arguments import Arguments, decode_arguments
from actors.runtime.handlers.callables import is_generator
from actors.runtime.handlers.effect import Effect, GivenUp, Unknown

if TYPE_CHECKING:
    from actors.runtime.message.context import Context

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_actors_timer"
_FUNCTIONS = "_actors_functions"


def timer(method: F) -> F:
    """Make a method of an `Actor` one that `ctx.schedule` takes; no message calls it.

    Examples:
        >>> from datetime import timedelta
        >>> from actors import Actor, App, receive, timer
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> orders = app.topic("orders", key_type=str, value_type=str)
        >>> @app.actor(orders)
        ... class Order(Actor[str]):
        ...     @receive
        ...     async def place(self, article: str) -> None:
        ...         self.ctx.schedule(self.cancel, article, after=timedelta(hours=1))
        ...
        ...     @timer
        ...     async def cancel(self, article: str) -> None:
        ...         self.state = f"{article} is cancelled"
        >>> with ActorTestDriver(app) as driver:
        ...     driver.send(orders, key="o-1", value="hat")
        ...     driver.advance(3600)
        ...     driver.get(Order, "o-1")
        'hat is cancelled'
    """
    if is_generator(method):
        raise ConfigurationError(
            f"the timer {method.__qualname__} has a `yield`, so calling it runs nothing of it: remove the yield"
        )
    setattr(method, _MARK, True)
    return method


def has_timers(declared: Any) -> bool:
    """Return whether a class has a method marked `@timer`."""
    return isinstance(declared, type) and any(hasattr(getattr(declared, name, None), _MARK) for name in dir(declared))


def add_timer(declared: Any) -> None:
    """Set the `timer` of a function actor, which makes functions its private methods."""
    if isinstance(declared, type) or not hasattr(declared, "__dict__") or inspect.ismethod(declared):
        return
    functions: dict[str, Any] = vars(declared).setdefault(_FUNCTIONS, {})

    def register(function: F) -> F:
        name = function.__name__
        if functions.setdefault(name, timer(function)) is not function:
            raise ConfigurationError(f"{declared.__name__}.timer: two functions are called {name}: rename one")
        return function

    declared.timer = register


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a private method with its arguments, behind the actor or the context."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def caller(threaded: Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]] | None) -> Callable[..., Any]:
    """Return what makes a call with an actor or a context; `threaded` makes a plain function run in a thread."""

    def make(first: Any, call: Call) -> Any:
        function = functools.partial(call.function, first, *call.args, **call.kwargs)
        is_awaited = threaded is None or inspect.iscoroutinefunction(call.function)
        return function() if is_awaited or threaded is None else threaded(function)()

    return make


@dataclass(frozen=True, slots=True)
class Methods:
    """The private methods of an actor.

    Attributes:
        actor: its name.
        declared: its class or function.
        handler: makes a `Call`.
    """

    actor: str
    declared: Any
    handler: Callable[[Context, Any], Awaitable[Any]]
    _arguments: dict[Any, Arguments] = field(default_factory=dict, compare=False)

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return a method, None if the actor has none of that name."""
        if not isinstance(self.declared, type):
            functions: Mapping[str, Callable[..., Any]] = getattr(self.declared, _FUNCTIONS, {})
            return functions.get(name)
        function = getattr(self.declared, name, None)
        return function if inspect.isfunction(function) else None

    def name_of(self, method: Any, call: str, *, is_timer: bool = False) -> str:
        """Return the name by which a method is kept.

        Raises:
            UsageError: it is none of the actor's, or no timer; `call` is the caller's.
        """
        function = getattr(method, "__func__", method)
        name = str(getattr(function, "__name__", type(function).__name__))
        own = self.find(name)
        if own is None or own is not function or (is_timer and not hasattr(own, _MARK)):
            mark = "mark a method of its class @timer"
            if not isinstance(self.declared, type):
                mark = f"mark the function @{getattr(self.declared, '__name__', self.actor)}.timer"
            elif not is_timer:
                mark = "take a method of its class"
            raise UsageError(f"{call}: {name} isn't called by actor {self.actor} itself: {mark}")
        return name

    def encode(self, name: str, args: tuple[Any, ...], call: str) -> bytes:
        """Return a call's arguments as JSON, after a look whether the method gets the same back.

        Raises:
            UsageError: it doesn't take them, or they don't become JSON; `call` is the caller's.
        """
        function = self.find(name)
        try:
            raw = msgspec.json.encode((args, {}))
            if function is not None:
                self._arguments_of(function).check(args, {}, decode_arguments(raw))
        except Exception as error:
            raise UsageError(
                f"{call}: the arguments have to become JSON, and to come back from it as what {name} takes: "
                f"{text_of(error)}"
            ) from error
        return raw

    def told(self, name: str, value: Any) -> tuple[Any, ...]:
        """Return the arguments of a method that is told how an effect ended: none if it has no parameter for that."""
        function = self.find(name)
        return () if function is not None and len(inspect.signature(function).parameters) == 1 else (value,)

    def check(self, effects: Iterable[Effect]) -> None:
        """Refuse effects whose outcomes nothing of the actor takes.

        Raises:
            ConfigurationError: naming the effect and the method.
        """
        for effect in effects:
            outcomes = (
                ("on_give_up", effect.on_give_up, GivenUp(effect.name, "", 1, "")),
                ("on_unknown", effect.on_unknown, Unknown(effect.name, "", "")),
            )
            for option, name, outcome in outcomes:
                if name is None:
                    continue
                function, why = self.find(name), "the actor has no such method"
                try:
                    if function is not None:
                        self._arguments_of(function).bind(msgspec.to_builtins(self.told(name, outcome)), {})
                        continue
                except (TypeError, *MALFORMED) as error:
                    why = text_of(error)
                line = f"async def {name}(self, outcome: {type(outcome).__name__}) -> None"
                if not isinstance(self.declared, type):
                    line = f"@{self.actor}.timer` above `{line.replace('self', 'ctx: Context')}"
                raise ConfigurationError(
                    f"actor {self.actor}: effect {effect.name} has {option}={name!r}: {why}. Write `{line}:`"
                )

    async def handle(self, ctx: Context, raw: Any) -> None:
        """Make the call that an internal message's record names.

        Raises:
            RecordError: the actor doesn't have the method any more, or it takes other arguments.
        """
        name = str(getattr(ctx._record, "method", ""))
        function = self.find(name)
        if function is None:
            missing = f"a call of {name}, which actor {self.actor} doesn't have: was the method renamed or removed?"
            raise ctx.undecodable(UnknownTypeError(missing))
        try:
            call = Call(function, *self._arguments_of(function).bind(*decode_arguments(raw)))
        except (TypeError, *MALFORMED) as error:
            wrong = ValueError(f"the arguments of {name} of actor {self.actor}: {text_of(error)}")
            raise ctx.undecodable(wrong) from error
        await self.handler(ctx, call)

    def _arguments_of(self, function: Callable[..., Any]) -> Arguments:
        if function not in self._arguments:
            self._arguments[function] = Arguments(function)
        return self._arguments[function]
