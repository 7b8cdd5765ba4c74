"""Tables as they are declared, the inputs that feed them, and joins of two tables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args

from actors.declare.arguments import check_arguments, check_inputs, check_span, single_topic
from actors.declare.declared import Declaration, as_coroutine
from actors.declare.definition import InputHandler, name_store
from actors.declare.streams.aggregates import aggregate_table
from actors.declare.streams.repartition import rekeyed
from actors.declare.values.messages import function_codec
from actors.declare.values.schemas import check_schema, key_codec
from actors.declare.values.shapes import ValueType
from actors.declare.values.stored import own_store
from actors.errors import ConfigurationError
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.message.table import Changes, Table
from actors.runtime.rows.stores import RowStore
from actors.runtime.windows.store import WindowStore

How = Literal["inner", "left", "outer"]
Joined = TypeVar("Joined", bound=Callable[[Context, Any, Any], Any])
AnyStore = Store[Any, Any] | WindowStore[Any, Any] | RowStore
Handler = Callable[[Context, Any], Awaitable[Any]]
TwoValues = Callable[[Context, Any, Any], Awaitable[Any]]

JOIN_LINE = "async def {}(ctx: Context, left: Left | None, right: Right | None) -> None"


class Tables:
    """The tables of an `App`."""

    @check_arguments
    def table(
        self: Any,
        topic: Any,
        *,
        name: str | None = None,
        history: timedelta | None = None,
        cdc: Literal["debezium"] | None = None,
    ) -> Table[Any, Any]:
        """Declare a table: the latest value of each key of a compacted topic, for handlers of the actor that lists it.

        The topic becomes an input of that actor: it has as many partitions as the others, and the same keys.

        Args:
            topic: a topic of `app.topic(...)`, the input of no other actor.
            name: of the store of its rows; the topic's by default.
            history: how far behind the newest record former values are kept, for `table.get(key, as_of=…)`.
            cdc: "debezium" if the topic has the changes of a database's table, whose rows the table has then.

        Raises:
            ConfigurationError: the name can't be used, or the topic isn't one.
        """
        topic_name = single_topic("app.table(): the topic", topic)
        name = name or topic_name
        check_span(f"table {name}", "history", history)
        history_ms = 0 if history is None else history // timedelta(milliseconds=1)
        if history is not None and not history_ms:
            raise ConfigurationError(f"table {name}: history={history}: it has to be a millisecond or longer")
        check_schema(f"table {name}: topic {topic_name}", topic.schema)
        name_store(self, name, None)
        changes = None if cdc is None else _changes_of(self, name, topic, cdc)
        topic = topic if changes is None else changes.topic
        # The app's settings may not be there yet.
        keys = functools.cache(lambda: key_codec(self, topic.schema))
        values = functools.cache(lambda: function_codec(topic))
        table: Table[Any, Any] = Table(
            name,
            topic,
            encode_key=lambda key: keys().encode(key),
            decode_key=lambda raw: keys().decode(raw),
            decode_value=lambda raw: values().of_content(raw),
            history=None if history is None else own_store(self, f"{name}-history", "history"),
            history_ms=history_ms,
            declare_aggregate=functools.partial(aggregate_table, self),
            changes=changes,
        )
        self.stores[name], self.value_types[name] = table, ValueType(bytes, 1)
        return table


def _changes_of(app: Any, name: str, topic: Any, cdc: str) -> Changes:
    if cdc not in ("debezium",):
        raise ConfigurationError(f'app.table(): cdc={cdc!r}: it is "debezium", or left out')
    # Formats are beside the engine, which knows them by name only.
    changes: Changes = import_module("actors.formats.debezium").Debezium(app, name, topic)
    return changes


def owned(stores: Iterable[AnyStore]) -> tuple[Store[Any, Any], ...]:
    """Return the stores that an actor owns which lists these: rows of windows, tables with what they keep beside."""
    found: list[Store[Any, Any]] = []
    for store in stores:
        found.append(store.rows if isinstance(store, WindowStore | RowStore) else store)
        if isinstance(store, WindowStore) and store.changes is not None:
            found.append(store.changes.rows)
        if isinstance(store, WindowStore) and store.values is not None:
            found.append(store.values.store.rows)
        if isinstance(store, Table):
            found += [] if store.history is None else [store.history]
            found += [] if store.changes is None else [store.changes.owned]
            found += [grouping.taken for grouping in store.groupings]
    return tuple(found)


def inputs_of(
    app: Any, actor: str, topics: list[Any], options: Declaration, *, key_type: Any = Any
) -> tuple[list[Any], dict[str, InputHandler]]:
    """Return the inputs of an actor, whose class may say the type of its keys, and the feeds of its tables.

    A table's topic is an input behind those that are listed, unless it is listed itself, or the table is.

    Raises:
        ConfigurationError: the topics can't be inputs of one actor.
    """
    tables = [store for store in options.stores if isinstance(store, Table)]
    listed = [topic for topic in topics if not isinstance(topic, Table)]
    _check_tables(actor, topics, tables, options)
    found = listed
    if options.by is not None or any(topic.is_shared for topic in listed):
        like = tables[0].topic if tables else None
        kind = _key_type(app, options, key_type)
        found = rekeyed(app, actor, listed, options.by, options.on_error, like=like, key_type=kind)
    names = {str(topic.get_topic_name()) for topic in found}
    fed = [table for table in tables if table.topic_name not in names]
    left = iter(found)
    inputs = [topic.topic if isinstance(topic, Table) else next(left) for topic in topics]
    inputs += [table.topic for table in fed if table not in topics]
    for table in tables:
        if table.changes is not None:
            table.changes.feed(table, options.on_error)
    for topic in inputs:
        check_schema(f"actor {actor}: topic {topic.get_topic_name()}", topic.schema)
    return inputs, {table.topic_name: InputHandler(table.only_feed, True, is_feed=True) for table in fed}


def _key_type(app: Any, options: Declaration, key_type: Any) -> Any:
    """Return the type of an actor's keys, text or int, as its class or its stores have it; None if they don't."""
    kinds = {app.key_types.get(store.name) for store in options.stores if store.placement == "key"} & {int, str}
    kinds = kinds if key_type is Any else {key_type}
    return kinds.pop() if len(kinds) == 1 else None


def _check_tables(actor: str, topics: list[Any], tables: Sequence[Table[Any, Any]], options: Declaration) -> None:
    check_inputs(actor, [topic.topic if isinstance(topic, Table) else topic for topic in topics])
    fed = [table.topic for table in tables]
    check_inputs(actor, fed)
    listed = [topic for topic in topics if not isinstance(topic, Table)]
    check_inputs(actor, list({str(topic.get_topic_name()): topic for topic in [*listed, *fed]}.values()))
    for topic in topics:
        if isinstance(topic, Table) and (topic is topics[0] or topic not in tables):
            raise ConfigurationError(
                f"actor {actor}: table {topic.name} is listed as an input, which gives its topic a place behind the "
                "first input: list a topic of app.topic(...) first, and the table in stores= too"
            )
    for table in tables:
        for topic in listed:
            _check_keys(actor, table, topic, options)


def _check_keys(actor: str, table: Table[Any, Any], topic: Any, options: Declaration) -> None:
    """Refuse a table whose keys are of another type than an input's: no message would find its row."""
    ours, theirs = table.topic.schema, topic.schema
    kinds = {ours.key_type, theirs.key_type}
    if options.by is not None or None in kinds or len(kinds) == 1 or kinds == {str, bytes}:
        return
    names = [getattr(kind, "__name__", str(kind)) for kind in (ours.key_type, theirs.key_type)]
    raise ConfigurationError(
        f"actor {actor}: the keys of table {table.name} (topic {table.topic_name}) are declared as {names[0]}, and "
        f"those of topic {topic.get_topic_name()} as {names[1]}: no message would find its row. Declare both alike, or "
        "read the topic by another key, by="
    )


def join_tables(
    app: Any,
    left: Table[Any, Any],
    right: Table[Any, Any],
    *,
    how: str,
    stores: Sequence[AnyStore],
    name: str | None = None,
    **options: Any,
) -> Callable[[Joined], Joined]:
    """Return a decorator that makes a function the handler of the join of two tables by key; see `App.join`.

    Raises:
        ConfigurationError: there is no such join, or the function can't be called with a context and two values.
    """
    if how not in get_args(How):
        raise ConfigurationError(f"app.join(): how={how!r}: it is one of {', '.join(get_args(How))}")
    if left is right:
        raise ConfigurationError(f"app.join(): both sides are table {left.name}: join two tables")
    for option in ("timers", "effects"):
        if options.get(option):
            raise ConfigurationError(
                f"app.join(): {option}= is for actors whose handler takes messages, and that of a join takes the rows "
                "of two tables: send results to a topic, and have an actor of that topic do it"
            )

    def decorate(function: Joined) -> Joined:
        called = name or name_of(function)
        check_callable(function, f"the handler of join {called}", takes=3, line=JOIN_LINE.format(name_of(function)))
        left_changed, right_changed = _sides(left, right, how, two_values(function))
        declare = app.actor(left.topic, right.topic, stores=[left, right, *stores], name=called, **options)
        declare(left_changed, named_by=function)
        app.on(called, right.topic)(right_changed)
        return function

    return decorate


def _sides(left: Table[Any, Any], right: Table[Any, Any], how: str, call: TwoValues) -> tuple[Handler, Handler]:
    """Return the handlers of the changes of either table. Its row is written, or removed, before."""

    def is_there(of_left: Any, of_right: Any) -> bool:
        has_left, has_right = of_left is not None, of_right is not None
        return has_left and has_right if how == "inner" else has_left or (has_right and how == "outer")

    async def joined(ctx: Context, of_left: Any, of_right: Any, *, was_there: bool) -> None:
        if is_there(of_left, of_right):
            await call(ctx, of_left, of_right)
        elif was_there:
            await call(ctx, None, None)

    # A value that was written made no result cease, and one that was removed had been there.
    async def left_changed(ctx: Context, value: Any) -> None:
        other = right.get(ctx.key)
        await joined(ctx, value, other, was_there=value is None and is_there(True, other))

    async def right_changed(ctx: Context, value: Any) -> None:
        other = left.get(ctx.key)
        await joined(ctx, other, value, was_there=value is None and is_there(other, True))

    return left_changed, right_changed


def two_values(function: Callable[[Context, Any, Any], Any]) -> TwoValues:
    """Return a handler of two values that can be awaited."""
    if inspect.iscoroutinefunction(function):
        return function

    def call(ctx: Context, values: tuple[Any, Any]) -> Any:
        return function(ctx, *values)

    handle = as_coroutine(functools.wraps(function)(call))

    async def handler(ctx: Context, left: Any, right: Any) -> Any:
        return await handle(ctx, (left, right))

    return handler
