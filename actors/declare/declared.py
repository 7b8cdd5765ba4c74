"""The options of `@app.actor(...)`, and which of them fit together."""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, TypeVar, get_args

from actors._core.task.policy import Misplaced
from actors._core.unions import allows_none
from actors._core.windows.kinds import goes_by_clock
from actors.declare.arguments import check_span
from actors.declare.values.codecs import is_record
from actors.errors import ConfigurationError
from actors.runtime.handlers.actor import Actor
from actors.runtime.handlers.callables import check_callable, is_generator, name_of, refuse_generator
from actors.runtime.handlers.dedupe import Identify
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.spec import HandlingOptions
from actors.runtime.windows.changes import ChangeStore

MAX_CONCURRENCY = 10_000
LATE = ("drop", "warn", "stop", "handle")
"""The values of `late=` beside a topic."""
LEAST_IDLE = timedelta(seconds=1)
Coroutine = Callable[[Context, Any], Awaitable[Any]]
Wrap = TypeVar("Wrap", bound=Callable[[Context], Iterator[None] | AsyncIterator[None]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(HandlingOptions):
    """The options of an actor; those that the runtime reads as they are come from `HandlingOptions`."""

    stores: tuple[Store[Any, Any], ...]
    dedupe_by: Identify | None = None
    dedupe_ttl: timedelta | None = None
    timers: bool = False
    effects: tuple[Effect, ...] = ()
    threads: bool = False
    answer_ttl: timedelta | None = None
    publish: Any = None
    misplaced: Misplaced = "stop"
    tombstones: bool = False
    close_when_idle: timedelta | None = None
    order: str | None = None
    by: Any = None
    late: Any = "drop"


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
    _check_tables(name, options)
    roaming = [store.name for store in options.stores if store.placement == "task"]
    if options.concurrency > 1 and roaming:
        raise ConfigurationError(
            f'actor {name}: store {roaming[0]} has placement="task", so that messages of different keys could write '
            "the same key, and concurrency handles them at the same time: leave one of the two out"
        )
    _check_windows(name, options)
    _check_functions(name, declared, options)
    if options.threads and not _has_plain_handler(declared):
        raise ConfigurationError(
            f"actor {name}: threads=True, and every handler is async: only plain functions are called in threads"
        )
    if options.publish is not None and getattr(declared, "state_type", None) in (None, type(None)):
        raise ConfigurationError(
            f"actor {name}: publish= is for the state of a class, and this actor has none: publish one of its stores "
            "with app.store(..., publish=topic)"
        )
    _check_effects(name, options.effects)


def _check_tables(name: str, options: Declaration) -> None:
    for table in options.stores if options.concurrency > 1 else ():
        if isinstance(table, Table) and (table.history is not None or table.groupings):
            what = "a history, which is the partition's" if table.history else "aggregates, which get changes in order"
            raise ConfigurationError(
                f"actor {name}: table {table.name} has {what}, and concurrency handles messages side by side: leave "
                "one of the two out"
            )


def _check_windows(name: str, options: Declaration) -> None:
    late = options.late
    if not (late in LATE if isinstance(late, str) else hasattr(late, "get_topic_name")):
        words = ", ".join(f'"{word}"' for word in LATE)
        raise ConfigurationError(f"actor {name}: late={late!r}: it is {words}, or a topic of app.topic(...)")
    if late != "drop" and not options.windows and options.order is None:
        raise ConfigurationError(f"actor {name}: late= is for actors with a window store, and it lists none")
    if options.order not in (None, "time"):
        raise ConfigurationError(f'actor {name}: order={options.order!r}: it is "time"')
    if options.order is not None and options.concurrency > 1:
        raise ConfigurationError(
            f'actor {name}: order="time" handles messages one after the other, and concurrency side by side: leave one '
            "of the two out"
        )
    by_time = {
        goes_by_clock(getattr(store, "windows", None)): store.name
        for store in options.windows
        if not isinstance(store, ChangeStore)
    }
    if len(by_time) > 1:
        raise ConfigurationError(
            f"actor {name}: stores {by_time[True]} and {by_time[False]}: the first goes by the clock, the other one by "
            "event time, and an actor's windows close by one of the two: give each an actor of its own"
        )
    if True in by_time and late != "drop":
        raise ConfigurationError(
            f'actor {name}: late={late!r}: no message is late for store {by_time[True]}, which has time="wall": leave '
            "late out"
        )
    check_idle(f"actor {name}", options.close_when_idle)
    if options.close_when_idle is not None and not (options.windows or options.timers or options.order):
        raise ConfigurationError(
            f"actor {name}: close_when_idle= is for actors with a window store or timers, and nothing of it goes by "
            "stream time: leave it out"
        )


def least_idle(options: Declaration) -> timedelta | None:
    """Return how far behind the clock the stream time of an actor follows it: the least that it or a store declares."""
    spans = (options.close_when_idle, *(store.close_when_idle for store in options.windows))
    return min((span for span in spans if span is not None), default=None)


def check_idle(owner: str, close_when_idle: Any) -> None:
    """Refuse a distance from the clock that is shorter than looks at the inputs are apart.

    Raises:
        ConfigurationError: naming it.
    """
    check_span(owner, "close_when_idle", close_when_idle)
    if close_when_idle is not None and close_when_idle < LEAST_IDLE:
        raise ConfigurationError(
            f"{owner}: close_when_idle={close_when_idle}: it has to be {LEAST_IDLE.total_seconds():.0f} s or longer: "
            "what comes later than that, while an input is idle, is late"
        )


def check_expiry(store: str, on_expire: Any, ttl: timedelta | None, expires: bool) -> None:
    """Refuse a store whose expiry can't work.

    Raises:
        ConfigurationError: naming what.
    """
    check_span(f"store {store}", "ttl", ttl)
    if on_expire is None:
        return
    if ttl is None and not expires:
        raise ConfigurationError(f"store {store}: on_expire without ttl or expires=True: nothing would ever expire")
    line = f"async def {name_of(on_expire)}(ctx: Context, value: Value) -> None"
    check_callable(on_expire, f"store {store}: on_expire", takes=2, line=line)


def _check_functions(name: str, declared: Any, options: Declaration) -> None:
    if not isinstance(declared, type):
        check_handler(name, declared)
    check_span(f"actor {name}", "max_task_idle", options.max_task_idle, may_be_zero=True)
    if options.dedupe_ttl is not None and options.dedupe_by is None:
        raise ConfigurationError(f"actor {name}: dedupe_ttl without dedupe_by: say what identifies a message")
    for option in ("dedupe_ttl", "answer_ttl"):
        check_span(f"actor {name}", option, getattr(options, option))
    if options.dedupe_by is not None:
        line = f"def {name_of(options.dedupe_by)}(ctx: Context, message: Message) -> str | None"
        check_callable(options.dedupe_by, f"actor {name}: dedupe_by", takes=2, line=line)


def check_handler(actor: str, function: Any) -> None:
    """Refuse a function that can't be called with a context and a message.

    Raises:
        ConfigurationError: with the line to write instead.
    """
    check_callable(function, f"the handler of actor {actor}", takes=2, line=_line(function))


def _check_effects(name: str, effects: Sequence[Any]) -> None:
    names = [getattr(effect, "name", None) for effect in effects]
    for effect, its_name in zip(effects, names, strict=True):
        if not isinstance(effect, Effect):
            raise ConfigurationError(f"actor {name}: effects=[{effect!r}]: make it one with @app.effect()")
        if names.count(its_name) > 1:
            raise ConfigurationError(f"actor {name}: two of its effects are called {its_name}: give one name=…")


def _line(handler: Any) -> str:
    parameters = list(getattr(inspect.unwrap(handler), "__annotations__", {}).items())
    shown = next((type_ for name, type_ in parameters[1:] if name != "return"), "Message")
    return f"async def {name_of(handler)}(ctx: Context, message: {_shown(shown)}) -> None"


def check_value_type(name: str, topic: Any, declared: Any) -> None:
    """Refuse a function whose message is annotated with a model where the topic says nothing: it would get a dict.

    Raises:
        ConfigurationError: with the topic to declare instead; a class has keys of another type than the topic.
    """
    key_type, own = topic.schema.key_type, getattr(declared, "key_type", Any)
    if own is not Any and key_type not in (None, own):
        raise ConfigurationError(
            f"actor {name}: keys are {_shown(own)} in {declared.__name__}, an Actor[…, {_shown(own)}], and "
            f"key_type={_shown(key_type)} of topic {topic.get_topic_name()}: make them the same"
        )
    if isinstance(declared, type) or topic.schema.value_type is not None:
        return
    parameter, found = _message_of(declared)
    if isinstance(found, type) and (hasattr(found, "__struct_config__") or is_dataclass(found) or is_record(found)):
        raise ConfigurationError(
            f"actor {name}: {parameter} is annotated as {found.__name__}, and topic {topic.get_topic_name()} has no "
            f"value_type, so that it would be a dict: write app.topic({topic.get_topic_name()!r}, key_type=str, "
            f"value_type={found.__name__})"
        )


def takes_tombstones(name: str, declared: Any, options: Declaration) -> bool:
    """Return whether null values of all inputs are messages of the actor.

    Raises:
        ConfigurationError: they are to be, and no method of the class takes them.
    """
    if not isinstance(declared, type):
        return options.tombstones
    takes = NoneType in getattr(declared, "receivers", ())
    if options.tombstones and not takes:
        raise ConfigurationError(
            f"actor {name}: tombstones=True, and no method of {declared.__name__} takes None: add one, as in "
            "`@receive async def deleted(self, _: None) -> None`"
        )
    return takes


def takes_none(topic: Any, function: Any) -> bool:
    """Return whether the type of a topic's values, or of a function's message, allows None."""
    return allows_none(topic.schema.value_type) or allows_none(_message_of(function)[1])


def _shown(type_: Any) -> str:
    return str(getattr(type_, "__name__", type_))


def _message_of(declared: Any) -> tuple[str, Any]:
    """Return the name and the type of a handler's message; the type is None if unknown."""
    try:
        function = inspect.unwrap(declared)
        parameter = list(inspect.signature(function).parameters)[1]
        return parameter, typing.get_type_hints(function).get(parameter)
    except (NameError, TypeError, ValueError, IndexError):
        # An annotation for type checkers only, or a builtin.
        return "", None


def _has_plain_handler(declared: Any) -> bool:
    is_class = isinstance(declared, type) and issubclass(declared, Actor)
    methods = declared.receivers.values() if is_class else [declared]
    return not all(inspect.iscoroutinefunction(method) for method in methods)


class Wraps:
    """The functions around the handlers of an `App`."""

    def wrap(self: Any, function: Wrap) -> Wrap:
        """Run a function around every handler of the app: for sessions of a database, tenants, traces.

        It has one `yield`, in whose place the handler runs, and may be async. It is called with the message's context,
        in the order of the declarations, and again whenever a message is tried again. An error that the handler raises
        comes out of the `yield`; one that the function raises is one of the handler.

        Raises:
            ConfigurationError: it has no `yield`, or can't be called with a context.
        """
        check_wrap(function)
        self.wraps.append(function)
        return function


def check_wrap(function: Any) -> None:
    """Refuse what can't be run around a handler.

    Raises:
        ConfigurationError: it isn't a generator function of a context.
    """
    what, line = f"wrap {name_of(function)}", f"async def {name_of(function)}(ctx: Context) -> AsyncIterator[None]"
    if not is_generator(function):
        raise ConfigurationError(
            f"{what} has no `yield`, so that nothing of it would be behind the handler: write `{line}:`, with one "
            "yield, in whose place the handler runs"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ConfigurationError(f"{what} can't be called with one argument: {error}. Write `{line}:`") from error


def wrapped(handler: Coroutine, functions: Sequence[Callable[[Context], Any]]) -> Coroutine:
    """Return a handler within functions of `App.wrap`, the first outermost."""
    for function in reversed(functions):
        handler = _around(handler, function)
    return handler


def _around(handler: Coroutine, function: Callable[[Context], Any]) -> Coroutine:
    if inspect.isasyncgenfunction(function):
        enter = contextlib.asynccontextmanager(function)

        async def handle(ctx: Context, value: Any) -> Any:
            async with enter(ctx):
                return await handler(ctx, value)

        return handle
    enter_now = contextlib.contextmanager(function)

    async def handle_within(ctx: Context, value: Any) -> Any:
        with enter_now(ctx):
            return await handler(ctx, value)

    return handle_within


def as_coroutine(function: Callable[[Context, Any], Any]) -> Coroutine:
    """Return a handler that can be awaited."""
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def handle(ctx: Context, value: Any) -> Any:
        result = function(ctx, value)
        if inspect.isawaitable(result):
            return await result
        refuse_generator(result, f"the handler {name_of(function)}")
        return result

    return handle
