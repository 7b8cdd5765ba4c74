"""The `Table` handles, by which handlers read the latest value of each key of a topic.

A table is a store whose rows are written by the records of its topic, which is an input of the actor that lists it. A
row is the time of its record, 8 bytes, and the record's value as it came. A table with a history has a second store for
the values before: see `actors._core.windows.versions`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeVar

from mypy_extensions import mypyc_attr

from actors._core.aggregates import Aggregate
from actors._core.task.policy import OnError, Then
from actors._core.windows.versions import MARK_KEY, History, Latest, Mark, decode_mark, segment_ms
from actors.errors import NewerVersionError, UsageError
from actors.runtime.message.context import Context
from actors.runtime.message.failures import wrong_timestamp
from actors.runtime.message.grouping import TIME_BYTES, Grouping, Row
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import Overlay

K = TypeVar("K")
V = TypeVar("V")

CLEARED_AT_ONCE = 256
"""How many rows of what is before the history one record removes."""


class _HistoryRows:
    """The rows of a table's history, as a message sees them."""

    __slots__ = ("_overlay", "_state", "_store", "delete", "get", "items")

    def __init__(self, store: Store[bytes, bytes], overlay: Overlay, state: TaskState) -> None:
        self._store, self._overlay, self._state = store, overlay, state
        self.get = overlay.get
        self.delete = overlay.delete
        self.items: Callable[[bytes | None, bytes | None], Iterator[tuple[bytes, bytes]]] = overlay.items

    def set(self, row: bytes, value: bytes) -> None:
        """Write a row."""
        self._store.write_raw(self._state, row, value)


class Changes(Protocol):
    """The changes of a database's table, in the order of the database, whatever comes twice.

    Attributes:
        topic: what brings them to the table, by its keys.
        owned: a store that is kept beside the rows.
    """

    topic: Any
    owned: Store[bytes, bytes]

    def feed(self, table: Table[Any, Any], on_error: OnError | Then) -> None:
        """Have changes brought to a table, with the policy of its actor."""

    def settle(self, ctx: Context, value: Any) -> tuple[bool, Any]:
        """Return whether the record that is handled changes its key's row, and the new row, None if it is deleted.

        It may give the record another content, which the row is made of.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class Table(Store[K, V]):
    """A handle to the latest values of a topic's keys, made by `app.table(...)` and read in handlers of its actor.

    Its topic is an input of the actor that lists it in `stores=`. Only records of that topic change it.

    Attributes:
        topic: the topic.
        history: the store of former values; None if it keeps none.
        history_ms: how far behind the newest record former values are kept; 0 if they aren't.
        groupings: its aggregates, which get each change of a row.
        changes: what its topic's records are, if they are changes of a database.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> orders, labels = (app.topic(name, key_type=str, value_type=str) for name in ("orders", "labels"))
        >>> customers = app.table(app.topic("customers", key_type=str, value_type=str))
        >>> @app.actor(orders, stores=[customers])
        ... async def label(ctx: Context, order: str) -> None:
        ...     ctx.send(labels, key=ctx.key, value=f"{order} for {customers.get(ctx.key)}")
        >>> with ActorTestDriver(app) as driver:
        ...     driver.send(customers.topic, key="ada", value="Ada L.")
        ...     driver.send(orders, key="ada", value="hat")
        ...     [sent.value for sent in driver.outputs(labels)]
        ['hat for Ada L.']
    """

    def __init__(
        self,
        name: str,
        topic: Any,
        *,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        decode_value: Callable[[bytes], Any],
        history: Store[bytes, bytes] | None,
        history_ms: int,
        declare_aggregate: Callable[..., Store[Any, Any]],
        changes: Changes | None = None,
    ) -> None:
        super().__init__(
            name,
            encode_key=encode_key,
            decode_key=decode_key,
            encode_value=self._refuse,
            decode_value=lambda row: decode_value(row[TIME_BYTES:]),
        )
        self.topic = topic
        self.history = history
        self.history_ms = history_ms
        self.groupings: list[Grouping] = []
        self._declare_aggregate = declare_aggregate
        self.changes = changes

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    @property
    def topic_name(self) -> str:
        """The topic's name."""
        return str(self.topic.get_topic_name())

    def get(self, key: K, default: V | None = None, *, as_of: SupportsIndex | None = None) -> V | None:
        """Return the value of a key as of the records that were handled so far, or as of a time.

        Args:
            key: whose value.
            default: returned where there is none.
            as_of: Unix milliseconds: the last value at or before that time. Of a time before the history it is the
                latest value if that is as old, else `default`.

        Raises:
            UsageError: `as_of` of a table without a history, or one that isn't a number.
        """
        if as_of is None:
            return super().get(key, default)
        if not isinstance(as_of, int):
            raise UsageError(
                f"table {self.name}: as_of={as_of!r}: give Unix milliseconds, as in as_of=ctx.timestamp_ms"
            )
        overlay, state, raw_key = self._place(key)
        history = self._history(state)
        raw = history.as_of(raw_key, _latest(overlay.get(raw_key), history, raw_key), as_of)
        return default if raw is None else self._decoded(raw, state)

    def committed_history(self, former: Callable[[bytes], bytes | None]) -> tuple[History, int]:
        """Return the history as it is committed, and since when it has former values, Unix milliseconds; for queries.

        Args:
            former: gives the value of a row of `history`, which isn't None; None where it is missing.

        Raises:
            NewerVersionError: the rows are of another history.
            ValueError: a row of the history can't be read.
        """
        rows: Any = SimpleNamespace(get=former)
        raw = former(MARK_KEY)
        history = History(rows, self.history_ms, None if raw is None else self._checked_mark(raw))
        return history, max(0, history.mark.newest_ms - self.history_ms)

    def committed_as_of(self, history: History, row: bytes | None, raw_key: bytes, as_of: int) -> bytes | None:
        """Return the row that a key had as of a time, Unix milliseconds; `row` is its row in the table now.

        Before the history only a latest value that is as old is known, and None says nothing.

        Raises:
            ValueError: a row of the history can't be read.
        """
        return history.as_of(raw_key, _latest(row, history, raw_key), as_of)

    def timestamp_ms(self, key: K) -> int | None:
        """Return the time of the record that wrote a key's latest value, Unix milliseconds; None if there is none."""
        overlay, _, raw_key = self._place(key)
        row = overlay.get(raw_key)
        return None if row is None else _time_of(row)

    def _refuse(self, *_: Any) -> NoReturn:
        raise UsageError(
            f"table {self.name} has what topic {self.topic_name} says, so handlers can only read it: send the topic a "
            "record, or keep values of your own in a store of app.store(...)"
        )

    def set(self, key: K, value: V, *, ttl: timedelta | None = None) -> None:
        """Refuse: a table is read only."""
        self._refuse()

    def delete(self, key: K) -> bool:
        """Refuse: a table is read only."""
        self._refuse()

    def put_if_absent(self, key: K, value: V, *, ttl: timedelta | None = None) -> V | None:
        """Refuse: a table is read only."""
        self._refuse()

    def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Refuse: a table is read only."""
        self._refuse()

    def aggregate(
        self,
        name: str,
        *,
        by: str | Callable[..., Any],
        add: Callable[[Any, Any], Any] | None = None,
        remove: Callable[[Any, Any], Any] | None = None,
        initial: Any = None,
        aggregate: Aggregate[Any] | None = None,
        of: str | Callable[[Any], Any] | None = None,
        key_type: Any = str,
        value_type: Any = None,
        on_change: Callable[[Context, Any], Any] | None = None,
        stores: Sequence[Any] = (),
        on_error: OnError | Then = "stop",
    ) -> Store[Any, Any]:
        """Declare a value for each group of rows, which follows the rows: see "Aggregates" in the reference.

        It is an actor, `name`, with a store of that name, by the key of the group. Declare it before the actor that
        lists the table.

        Args:
            name: of the actor and of its store.
            by: the key of a row's group: the name of a field, `key.` and one of the key, or a function of the value, or
                of key and value. None is for a row in no group.
            add: called as `(held, value)` when a row comes into a group; returns what the group has then.
            remove: likewise, when a row leaves. Both return a new value; None ends the group, and deletes its row.
            initial: what a group without rows has.
            aggregate: one of `actors.aggregates` that has `remove`, in place of `add`, `remove` and `initial`.
            of: what of a row is added and removed: the name of a field, or a function of the value; the value if left
                out.
            key_type: what `by` gives.
            value_type: what `add` and `remove` return; not used with `aggregate`.
            on_change: called as `(ctx, value)` after each change of a group, with None when the group has ended.
            stores: further stores that `on_change` uses.
            on_error: what becomes of a change whose functions raise; one that is skipped stays missing in its group.

        Returns:
            The store of the groups' values.

        Raises:
            ConfigurationError: the arguments can't work together, the name is taken, or the table's actor is declared
                already.
        """
        return self._declare_aggregate(
            self,
            name,
            by=by,
            add=add,
            remove=remove,
            initial=initial,
            aggregate=aggregate,
            of=of,
            key_type=key_type,
            value_type=value_type,
            on_change=on_change,
            stores=stores,
            on_error=on_error,
        )

    def feeding(self, handler: Callable[[Context, Any], Awaitable[Any]]) -> Callable[[Context, Any], Awaitable[Any]]:
        """Return a handler of the topic: it writes the record's row, and then calls `handler` if the row changed."""

        async def feed(ctx: Context, value: Any) -> Any:
            record = ctx._record
            if isinstance(record, InternalRecord) and not record.is_input:
                # A timer's message, or the result of an effect, is no row.
                return await handler(ctx, value)
            if self.changes is None:
                return await handler(ctx, value) if self._take(ctx, value) else None
            is_new, row = self.changes.settle(ctx, value)
            return await handler(ctx, row) if is_new and self._take(ctx, row) else None

        return feed

    async def only_feed(self, ctx: Context, value: Any) -> None:
        """Write the row of a record of the topic."""
        is_new, row = (True, value) if self.changes is None else self.changes.settle(ctx, value)
        if is_new:
            self._take(ctx, row)

    def _take(self, ctx: Context, value: Any) -> bool:
        """Write the row of the record that is handled; tell whether there is another latest value than before.

        Aggregates of the table get the change. A tombstone of a key without a value is no change, neither is a record
        that came after a later one of its key where the table has a history.

        Raises:
            RecordError: the table has a history, and the record's timestamp can't be its time.
        """
        if not self.groupings:
            return self._put(ctx, value)
        _, rows, state = self._reach(ctx)
        bounds = [grouping.take_up(ctx, state, rows) for grouping in self.groupings]
        if not self._put(ctx, value):
            return False
        raw = ctx._record.value
        new = None if raw is None or value is None else Row(raw, value)
        for grouping, bound in zip(self.groupings, bounds, strict=True):
            # A row from there on is taken up later, with the value that it has then.
            if bound is None or ctx._raw_key < bound:
                grouping.change(ctx, state, new)
        return True

    def _put(self, ctx: Context, value: Any) -> bool:
        _, overlay, state = self._reach(ctx)
        raw = None if value is None else ctx._record.value
        if self.history is not None and not self._take_version(ctx, overlay, state, raw):
            return False
        if raw is None:
            return overlay.delete(ctx._raw_key)
        self._write(overlay, state, ctx._raw_key, max(0, ctx._record.timestamp or 0).to_bytes(TIME_BYTES) + raw, None)
        return True

    def _take_version(self, ctx: Context, overlay: Overlay, state: TaskState, raw: bytes | None) -> bool:
        """Put the record into the history; tell whether it is its key's latest."""
        history = self._history(state)
        at_ms = self._checked_ms(ctx, state, history.mark.newest_ms)
        if history.is_forgotten(at_ms):
            state.tools.count_late_for(self.name, ctx, history.mark.newest_ms)
            return False
        history.move_on(at_ms, CLEARED_AT_ONCE)
        row = None if raw is None else at_ms.to_bytes(TIME_BYTES) + raw
        return history.put(ctx._raw_key, _latest(overlay.get(ctx._raw_key), history, ctx._raw_key), at_ms, row)

    def _checked_ms(self, ctx: Context, state: TaskState, newest_ms: int) -> int:
        """Return the record's time; one that is far ahead would make a history of it alone."""
        record, timestamps = ctx._record, state.tools.timestamps
        at_ms = record.timestamp
        if at_ms is None or at_ms < 0:
            raise wrong_timestamp(ctx._source, record, f"its timestamp is {at_ms}, and table {self.name} goes by it")
        if timestamps is not None and timestamps.is_unusual(at_ms):
            harm = f"end the history of table {self.name}"
            timestamps.check(ctx._source, record, reached_ms=newest_ms, harm=harm)
        return at_ms

    def _history(self, state: TaskState) -> History:
        store = self.history
        if store is None:
            raise UsageError(
                f"table {self.name}: as_of= is for a table that keeps former values: declare it with "
                f"app.table({self.topic_name!r}, history=timedelta(hours=1))"
            )
        rows = _HistoryRows(store, state.overlays[store], state)
        raw = rows.get(MARK_KEY)
        mark: Any = None if raw is None else self._decoded(raw, state, self._checked_mark)
        return History(rows, self.history_ms, mark)

    def _checked_mark(self, raw: bytes) -> Mark:
        mark = decode_mark(raw)
        if mark.segment_ms != segment_ms(self.history_ms):
            raise NewerVersionError(
                f"table {self.name} was declared with another history than {timedelta(milliseconds=self.history_ms)}: "
                "its former values lie in other segments of time. Run the program as it was, or give the table "
                "another name"
            )
        return mark


def turns_of(are_tables: Sequence[bool]) -> tuple[int, ...]:
    """Return by input what goes first among records of one timestamp, lowest first: tables, then as they are declared.

    So a message meets the row of its own time.
    """
    return tuple(place - len(are_tables) * is_table for place, is_table in enumerate(are_tables))


def _latest(row: bytes | None, history: History, raw_key: bytes) -> Latest | None:
    """Return the latest version of a key, whose row in the table is given."""
    if row is not None:
        return Latest(_time_of(row), row)
    deleted_ms = history.deleted_ms(raw_key)
    return None if deleted_ms is None else Latest(deleted_ms, None)


def _time_of(row: bytes) -> int:
    return int.from_bytes(row[:TIME_BYTES])
