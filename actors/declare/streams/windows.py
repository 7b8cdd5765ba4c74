"""Window stores as they are declared."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from actors._core.aggregates import Aggregate, count_distinct, of_rows
from actors._core.task.policy import OnError, Then
from actors._core.windows.join_rows import shown_rest
from actors._core.windows.kinds import (
    LONGEST_SPAN,
    AlignedWindows,
    Session,
    Sliding,
    Windows,
    checked_ms,
    goes_by_clock,
)
from actors._core.windows.rows import LIST, VALUE, close_parts, decode_list, key_of, time_of
from actors.declare.arguments import check_arguments
from actors.declare.declared import check_idle
from actors.declare.streams.repartition import By, checked_repartition, key_function
from actors.declare.values.codecs import Codec, Format, resolve
from actors.declare.values.stored import check_aggregate, own_store, state_type, store_keys, use_keys
from actors.errors import ConfigurationError
from actors.runtime.handlers.callables import check_callable
from actors.runtime.message.store import Store
from actors.runtime.windows.across import Across, Feed, only_feed
from actors.runtime.windows.changes import ChangeStore
from actors.runtime.windows.closes import TimedStore
from actors.runtime.windows.distinct import DistinctValues
from actors.runtime.windows.store import WindowStore
from stores._core.windows import KEYS_AT

LEAST_RETENTION = timedelta(days=1)
Late = Any
"""The policy for messages that are too late for all windows: one of `LATE`, or a topic that they are sent to."""


class Every:
    """Intervals of stream time: a window that changes is handed to `on_emit` once in each in which it did."""

    __slots__ = ("every_ms",)

    def __init__(self, *, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0) -> None:
        parts = {"hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
        self.every_ms = checked_ms("Every", "interval", timedelta(0), parts)

    def __repr__(self) -> str:
        return f"Every({timedelta(milliseconds=self.every_ms)})"


class WindowStores:
    """The window stores of an `App`."""

    @check_arguments
    def window_store(
        self: Any,
        name: str,
        windows: Windows,
        *,
        grace: timedelta = timedelta(0),
        retention: timedelta | None = None,
        key_type: Any = str,
        value_type: Any = None,
        key_serializer: str | None = None,
        value_serializer: str | None = None,
        format: Format | None = None,
        aggregate: Aggregate[Any] | None = None,
        emit: Every | None = None,
        close_when_idle: timedelta | None = None,
        renamed_from: str | None = None,
    ) -> WindowStore[Any, Any]:
        """Declare windows over event time by key, kept as a store is.

        Args:
            name: as of `store`.
            windows: `Tumbling(…)`, `Hopping(…)`, `Sliding(…)` or `Session(…)`.
            grace: how long after its end a window takes records, by stream time.
            retention: how long after its start a window can be read, by stream time; at least its length and the grace.
                A day by default.
            key_type: as of `store`.
            value_type: what `set` and `update` write; of values of an `aggregate`, give it to that.
            key_serializer: as of `store`.
            value_serializer: likewise.
            format: likewise; not of an `aggregate`.
            aggregate: one of `actors.aggregates`, for `add`. Sessions need one.
            emit: `Every(seconds=…)`: how often windows that change are handed to `on_emit`, by stream time.
            close_when_idle: how far behind the clock windows close while the inputs are at their ends.
            renamed_from: as of `store`.

        Raises:
            ConfigurationError: the name can't be used, or the arguments contradict each other.
        """
        values = {"format": format, "value_type": value_type, "value_serializer": value_serializer}
        if aggregate is not None:
            check_aggregate(f"window store {name}", aggregate, **values)
        check_idle(f"window store {name}", close_when_idle)
        rows = self.store(name, key_type=bytes, renamed_from=renamed_from, **values)
        rows.layout, self.key_types[name] = "windows", key_type
        if aggregate is not None:
            self.value_types[name] = state_type(aggregate)
        made = window_store(
            rows,
            windows,
            grace=grace,
            retention=retention,
            close_when_idle=close_when_idle,
            keys=store_keys(self, key_type, key_serializer),
            value=self.value_codecs[name],
            aggregate=aggregate,
        )
        if aggregate is count_distinct():
            former = None if renamed_from is None else f"{renamed_from}-values"
            made.values = DistinctValues(_part(self, f"{name}-values", made, renamed_from=former))
        if emit is not None:
            former = None if renamed_from is None else f"{renamed_from}-changes"
            rows = self.store(f"{name}-changes", key_type=bytes, value_type=bytes, renamed_from=former)
            rows.layout, rows.whole = "windows", name
            emitting(made, rows, emit)
        made.declare_across = functools.partial(across_keys, self)
        return made


def _part(
    app: Any, name: str, whole: WindowStore[Any, Any], *, renamed_from: str | None = None
) -> WindowStore[bytes, bytes]:
    """Declare the windows of what another store has below its keys."""
    rows = own_store(app, name, "values", renamed_from=renamed_from)
    rows.whole = whole.name
    kept = {"grace": whole.grace_ms, "retention": whole.retention_ms}
    spans: dict[str, Any] = {option: timedelta(milliseconds=span_ms) for option, span_ms in kept.items()}
    keys, value = store_keys(app, bytes, None), resolve(bytes, None)
    part = window_store(rows, whole.windows, **spans, keys=keys, value=value, aggregate=None)
    part.is_part = True
    return part


def across_keys(
    app: Any,
    first: WindowStore[Any, Any],
    name: str,
    *,
    key: By,
    aggregate: Any,
    of: Callable[[Any, Any], Any] | None,
    key_type: Any,
    emit: Every | None,
    stores: Sequence[Any],
    on_error: OnError | Then,
) -> WindowStore[Any, Any]:
    """Declare a stage behind windows; see `WindowStore.across`.

    Raises:
        ConfigurationError: as there.
    """
    owner = app.owner_of_store(first.name)
    if not isinstance(first.windows, AlignedWindows) or goes_by_clock(first.windows):
        raise ConfigurationError(
            f"across {name}: windows of {first.windows} are those of one key, or of one partition's clock: across keys "
            "there are Tumbling(…) and Hopping(…) by event time, which are the same for all"
        )
    if owner is None:
        raise ConfigurationError(
            f"across {name}: no actor lists window store {first.name} yet: declare it below the actor, "
            f"`@app.actor(topic, stores=[{first.name}])`, whose tasks it follows"
        )
    if of is not None:
        line = "def of(key: Key, result: Result) -> Value"
        check_callable(of, f"across {name}: of=", takes=2, line=line)
        if inspect.iscoroutinefunction(of):
            raise ConfigurationError(f"across {name}: of= is async: make it a plain function")
    target = checked_repartition(app, f"across {name}", name, first.name)
    group_of = key_function(name, target, key, None, key_type=key_type, option="key")
    aggregate, windows = of_rows(aggregate), first.windows
    if first.changes is not None and aggregate is count_distinct():
        raise ConfigurationError(
            f"across {name}: aggregates.count_distinct() can't take a value out again, and window store {first.name} "
            "has emit=, whose changes do: leave emit out"
        )
    second: WindowStore[Any, Any] = app.window_store(
        name,
        windows,
        retention=timedelta(milliseconds=first.retention_ms),
        key_type=key_type,
        aggregate=aggregate,
        emit=emit,
    )
    second.fed_by = f", fed by {'closes' if first.changes is None else 'changes'}"
    rows = None if first.changes is None else _part(app, f"{name}-rows", second)
    topic = app.topic(target, key_type=key_type, value_type=bytes, writers=[owner.name])
    topic.made_of = owner.topic_name
    stage = Across(
        first=first,
        second=second,
        rows=rows,
        topic=topic,
        key=group_of,
        of=of or (lambda _, result: result),
        aggregate=aggregate,
    )
    own_stores = [second, *([] if rows is None else [rows]), *stores]
    app.actor(topic, stores=own_stores, name=name, on_error=on_error, late="handle")(stage.fold)
    _feed(first, stage.send)
    if first.changes is not None:
        _feed(first.changes, stage.send_change)
    return second


def _feed(store: WindowStore[Any, Any] | ChangeStore, feed: Feed) -> None:
    store.feeds.append(feed)
    if store.on_close_function is None:
        store.on_close_function = only_feed


def window_store(
    rows: Store[Any, Any],
    windows: Windows,
    *,
    grace: timedelta,
    retention: timedelta | None,
    close_when_idle: timedelta | None = None,
    keys: Callable[[], Codec],
    value: Codec,
    aggregate: Aggregate[Any] | None,
) -> WindowStore[Any, Any]:
    """Return the window store whose rows are in `rows`, which shows them as people read them.

    Raises:
        ConfigurationError: the arguments can't work together.
    """
    name = rows.name
    if not isinstance(windows, AlignedWindows | Sliding | Session):
        raise ConfigurationError(
            f"window store {name}: {windows!r}: give Tumbling(…), Hopping(…), Sliding(…) or Session(…)"
        )
    if not isinstance(grace, timedelta) or not timedelta(0) <= grace <= LONGEST_SPAN:
        raise ConfigurationError(
            f"window store {name}: grace={grace!r}: give a timedelta of 0 or more, up to {LONGEST_SPAN.days} days"
        )
    if goes_by_clock(windows) and (grace or close_when_idle is not None):
        option = "grace" if grace else "close_when_idle"
        raise ConfigurationError(
            f'window store {name}: {option}= is for event time, and with time="wall" no message is late and no window '
            "waits for one: leave it out"
        )
    # What a record does to sliding windows follows from those that end up to a length before it.
    lengths = 2 if isinstance(windows, Sliding) else 1
    if aggregate is count_distinct() and isinstance(windows, Sliding):
        raise ConfigurationError(
            f"window store {name}: aggregates.count_distinct() is for Tumbling(…) and Hopping(…), since sliding "
            "windows are made of one another: give aggregates.approx_distinct()"
        )
    length = lengths * timedelta(milliseconds=windows.longest_ms) + grace
    kept = max(LEAST_RETENTION, length) if retention is None else retention
    if not isinstance(kept, timedelta) or kept < length:
        raise ConfigurationError(
            f"window store {name}: retention={kept!r}: windows are needed for {length}, "
            f"{'twice ' if lengths == 2 else ''}their length and grace: keep them at least as long"
        )
    if isinstance(windows, Session) and (aggregate is None or aggregate.merge is None):
        raise ConfigurationError(
            f"window store {name}: sessions merge, so it needs aggregate=… with a merge function, as aggregates.count()"
        )
    store: WindowStore[Any, Any] = WindowStore(
        name,
        windows,
        rows,
        grace_ms=grace // timedelta(milliseconds=1),
        retention_ms=kept // timedelta(milliseconds=1),
        encode_key=lambda key: keys().encode(key),
        decode_key=lambda raw: keys().decode(raw),
        encode_value=value.encode if aggregate is None else aggregate.encoder(),
        decode_value=value.decode if aggregate is None else aggregate.decoder(),
        aggregate=aggregate,
    )
    store.close_when_idle = close_when_idle
    use_keys(store, keys)
    rows.decode_key, rows.decode_value = functools.partial(_shown_key, store), functools.partial(_shown_value, store)
    return store


def _shown_key(store: WindowStore[Any, Any], row: bytes) -> Any:
    """Return a row's key as people read it: (key, start, end) of a window, (key, start) of a list."""
    if row[:1] == b"w" and isinstance(store.windows, AlignedWindows):
        return store.decode_key(key_of(row)), *store.windows.starting(time_of(row))
    if row[:1] == b"k":
        return store.decode_key(key_of(row)), time_of(row) * store.segment_ms
    if row[:1] == b"e":
        end_ms, _, raw_key = close_parts(row)
        return "ends", store.decode_key(raw_key), end_ms
    if row[:1] in (b"W", b"E"):
        return "headers", store.decode_key(row[KEYS_AT[row[:1]] :]), time_of(row)
    return ("progress",)


def _shown_value(store: WindowStore[Any, Any], raw: bytes) -> Any:
    """Return a row's value as people read it."""
    if raw[:1] == VALUE:
        return store.result(raw[1:])
    if raw[:1] == LIST:
        return [(one.start_ms, one.end_ms, store.result(one.value)) for one in decode_list(raw)]
    return shown_rest(raw)


def emitting(store: WindowStore[Any, Any], rows: Store[Any, Any], emit: Every) -> None:
    """Keep the windows of a store that change in `rows`, until the interval is over.

    Raises:
        ConfigurationError: the interval isn't one, or is longer than windows are kept.
    """
    if not isinstance(emit, Every):
        raise ConfigurationError(
            f"window store {store.name}: emit={emit!r}: give Every(seconds=…). For final results use on_close, and for "
            "every change send what add() and update() return"
        )
    if emit.every_ms > store.retention_ms:
        raise ConfigurationError(
            f"window store {store.name}: emit={emit!r} is longer than windows are kept: "
            f"{timedelta(milliseconds=store.retention_ms)}: make it shorter, or retention= longer"
        )
    changes = ChangeStore(
        rows,
        every_ms=emit.every_ms,
        retention_ms=store.retention_ms,
        decode_key=store.decode_key,
        result=store.result,
    )
    rows.decode_key, rows.decode_value = changes.shown_key, changes.shown_value
    store.changes = changes


def timed(stores: Iterable[Any]) -> tuple[TimedStore, ...]:
    """Return the parts of an actor's stores that go by stream time."""
    found = (
        (store, store.changes, store.values and store.values.store)
        for store in stores
        if isinstance(store, WindowStore)
    )
    return tuple(one for parts in found for one in parts if one is not None)
