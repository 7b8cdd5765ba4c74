"""Aggregates over tables: an actor that folds the changes of a table's rows into a value for each group of them.

The changes come by the key of the group through a topic that the app makes, as records do that are read by another key:
see `actors.runtime.message.grouping`. What they make of a group is its row in an ordinary store.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors._core.aggregates import Aggregate, count, of_rows
from actors._core.task.policy import OnError, Then
from actors._core.windows.changes import Change, decode_added, decode_change, encode_added
from actors._core.windows.foreign_keys import within
from actors.declare.declared import as_coroutine
from actors.declare.streams.repartition import By, checked_repartition, key_function, record_key_function
from actors.declare.values.codecs import CodecError
from actors.declare.values.messages import function_codec
from actors.declare.values.schemas import key_codec
from actors.declare.values.stored import check_aggregate, own_store
from actors.errors import ConfigurationError, show_bytes
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.message.context import Context
from actors.runtime.message.grouping import Grouping
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table

Fold = Callable[[Any, Any], Any]


@dataclass(slots=True, kw_only=True)
class _Groups:
    """The handlers of an aggregate's actor.

    `rows` has, by group and row, what was added of the row. A row takes that out of its group, whatever became of the
    changes between. `encode` and `decode` are those of what a group has, `initial` is encoded: a function may change
    what it is given.
    """

    store: Store[Any, Any]
    rows: Store[bytes, bytes]
    decode_row: Callable[[bytes], Any]
    of: Callable[[Any], Any] | None
    add: Fold
    remove: Fold
    initial: bytes | None
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    result: Callable[[Any], Any]
    on_change: Callable[[Context, Any], Awaitable[Any]] | None

    async def fold(self, ctx: Context, raw: bytes) -> None:
        """Take what the message's group has of a row out of it, and put the row's new value in.

        Raises:
            RecordError: the record is no change of a row, or the value of the row doesn't decode.
        """
        change, (overlay, key) = self._change(ctx, raw), self.store.own_place(ctx)
        rows, place = self.rows.own_place(ctx)[0], within(key, change.row)
        former, group = rows.get(place), overlay.get(key)
        if former is None and change.new is None:
            return
        held = self._initial() if group is None else self.decode(group)
        if former is not None:
            held = self.remove(held, self._former(ctx, change.row, former))
        if change.new is None:
            rows.delete(place)
        else:
            value = self._value(ctx, change.new)
            added = encode_added(value, change.new)
            held = self.add(self._initial() if held is None else held, value)
            self.rows.write_raw(ctx._working("aggregate"), place, added)
        if held is not None:
            self.store.write_own(ctx, self.encode(held))
        elif not self.store.delete_own(ctx):
            # It had no value, and has none.
            return
        if self.on_change is not None:
            await self.on_change(ctx, None if held is None else self.result(held))

    def _change(self, ctx: Context, raw: bytes) -> Change:
        try:
            return decode_change(raw)
        except ValueError as error:
            raise ctx.undecodable(error) from error

    def _former(self, ctx: Context, row: bytes, added: bytes) -> Any:
        """Return the value that was added of a row."""
        try:
            value, raw = decode_added(added)
            if raw is None:
                return value
            value = self.decode_row(raw)
        except ValueError as error:
            text = f"the value that its group has of row {show_bytes(row)} can't be taken out: {error}"
            raise ctx.undecodable(ValueError(text)) from error
        return value if self.of is None else self.of(value)

    def _value(self, ctx: Context, raw: bytes) -> Any:
        """Return the value to add of a row."""
        try:
            value = self.decode_row(raw)
        except ValueError as error:
            raise ctx.undecodable(error) from error
        return value if self.of is None else self.of(value)

    def _initial(self) -> Any:
        return None if self.initial is None else self.decode(self.initial)


def aggregate_table(
    app: Any,
    table: Table[Any, Any],
    name: str,
    *,
    by: By,
    key_type: Any,
    on_change: Callable[[Context, Any], Any] | None,
    stores: Sequence[Any],
    on_error: OnError | Then,
    **folding: Any,
) -> Store[Any, Any]:
    """Declare an aggregate over a table; see `Table.aggregate`. `folding` is what its groups are made with.

    Raises:
        ConfigurationError: the arguments can't work together, the name is taken, or the table's actor is declared
            already.
    """
    owner = app.owner_of_store(table.name)
    if owner is not None:
        raise ConfigurationError(
            f"aggregate {name}: actor {owner.name} has table {table.name} already: declare the aggregate before the "
            "actor, which sends it the changes of the table's rows"
        )
    group_of = record_key_function(name, table.topic_name, by, table.topic.schema, key_type=key_type)
    target = checked_repartition(app, f"aggregate {name}", name, table.topic_name)
    handler = None if on_change is None else _checked_handler(name, on_change)
    groups = _groups(app, table, name, key_type=key_type, on_change=handler, **folding)
    changes = app.topic(target, key_type=key_type, value_type=bytes)
    changes.made_of = table.topic_name
    # The app's settings may not be there yet.
    keys = functools.cache(lambda: key_codec(app, changes.schema))
    grouping = Grouping(
        name,
        by=group_of,
        to=app.topic(target, key_type=bytes, value_type=bytes),
        encode_key=lambda key: keys().encode(key),
        decode_key=table.decode_key,
        decode_row=table.decode_value,
        taken=own_store(app, f"{name}-taken", "taken"),
        stops=lambda: app.owner_of_store(table.name).on_error.then == "stop",
    )
    app.actor(changes, stores=[groups.store, groups.rows, *stores], name=name, on_error=on_error)(groups.fold)
    table.groupings.append(grouping)
    return groups.store


def _groups(
    app: Any,
    table: Table[Any, Any],
    name: str,
    *,
    key_type: Any,
    value_type: Any,
    of: By | None,
    aggregate: Aggregate[Any] | None,
    on_change: Callable[[Context, Any], Awaitable[Any]] | None,
    **functions: Any,
) -> _Groups:
    """Declare the store of an aggregate, and return what its actor does."""
    values = table.topic.schema.value_type
    of_value = None if of is None else key_function(name, table.topic_name, of, values, option="of")
    if of is None and aggregate is count():
        # It needs nothing of a row, so nothing of it has to be kept.
        of_value = _nothing
    if aggregate is None:
        folds, remove = _own(name, **functions)
    else:
        folds, remove = _ready_made(name, aggregate, {**functions, "value_type": value_type})
    store = app.store(name, key_type=key_type, value_type=value_type if aggregate is None else bytes)
    encode, decode = store.encode_value, store.decode_value
    if aggregate is not None:
        encode, decode = folds.encoder(), folds.decoder()
        store.decode_value = lambda raw: folds.result(decode(raw))
    codec = functools.cache(lambda: function_codec(table.topic))
    return _Groups(
        store=store,
        rows=own_store(app, f"{name}-rows", "sized"),
        decode_row=lambda raw: codec().of_content(raw),
        of=of_value,
        add=folds.add,
        remove=remove,
        initial=_encoded(name, folds.initial, encode, decode),
        encode=encode,
        decode=decode,
        result=folds.result,
        on_change=on_change,
    )


def _nothing(_: Any) -> None:
    """Return a count's value of a row."""


def _ready_made(name: str, aggregate: Any, others: Mapping[str, Any]) -> tuple[Aggregate[Any], Fold]:
    """Return an aggregate with its function that takes a value out.

    Raises:
        ConfigurationError: it has none, or one of the arguments is given that it takes the place of.
    """
    check_aggregate(f"aggregate {name}", aggregate, **others)
    aggregate = of_rows(aggregate)
    if aggregate.remove is None:
        raise ConfigurationError(
            f"aggregate {name}: its aggregate= can't take a value out again, and rows of a table change: give "
            "aggregates.count(), sum() or mean(), or add= and remove= of your own"
        )
    return aggregate, aggregate.remove


def _own(name: str, *, add: Any, remove: Any, initial: Any) -> tuple[Aggregate[Any], Fold]:
    """Return functions of the user as an aggregate, and the one that takes a value out.

    Raises:
        ConfigurationError: one is missing, is async, or can't be called with two arguments.
    """
    for option, function, when in (("add", add, "comes"), ("remove", remove, "leaves")):
        line = f"def {option}(held: Held, value: Value) -> Held | None"
        if function is None:
            raise ConfigurationError(
                f"aggregate {name}: {option}= is missing, which returns what a group has when a row {when}: write "
                f"`{line}:`, or give aggregate=aggregates.sum()"
            )
        check_callable(function, f"aggregate {name}: {option}=", takes=2, line=line)
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"aggregate {name}: {option}= is async: make it a plain function")
    return Aggregate(initial, add), remove


def _checked_handler(name: str, function: Callable[[Context, Any], Any]) -> Callable[[Context, Any], Awaitable[Any]]:
    line = f"async def {name_of(function)}(ctx: Context, value: Value | None) -> None"
    check_callable(function, f"aggregate {name}: on_change=", takes=2, line=line)
    return as_coroutine(function)


def _encoded(name: str, initial: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> bytes | None:
    """Return an aggregate's value of no rows in bytes.

    Raises:
        ConfigurationError: it isn't of the type of the values.
    """
    try:
        raw = None if initial is None else encode(initial)
        if raw is not None:
            decode(raw)
    except CodecError as error:
        raise ConfigurationError(
            f"aggregate {name}: initial={initial!r} isn't of the type of its values, value_type=: {error}"
        ) from error
    return raw
