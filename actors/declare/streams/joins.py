"""`app.join`: an actor with two inputs that is called for pairs of their records.

It is an actor like any other: its inputs are handled as those of several-input actors are, and its one store has the
records that may still be matched. See `actors.runtime.windows.joins`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar, get_args

from actors._core.task.policy import Misplaced, OnError, Then
from actors._core.windows.join_rows import LEFT, RIGHT, One, decode_chunk, decode_early
from actors.declare.arguments import check_arguments, check_inputs, check_span
from actors.declare.declared import Declaration
from actors.declare.definition import ActorDefinition
from actors.declare.streams.foreign_joins import join_by_foreign_key
from actors.declare.streams.repartition import By, forwarder
from actors.declare.streams.tables import join_tables, owned, two_values
from actors.declare.streams.windows import LEAST_RETENTION, timed
from actors.declare.values.messages import function_codec
from actors.declare.values.schemas import key_codec
from actors.errors import ConfigurationError, UsageError
from actors.ports import InputRecord, TopicPartition
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.inputs.event_times import TimedRecord, written_ms
from actors.runtime.message.context import Context
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.windows.joins import How, JoinStore, OneStore
from actors.runtime.windows.late import divert
from actors.runtime.windows.store import LAST_MS, WindowStore

Pair = Callable[[Context, Any, Any], Awaitable[Any] | Any]
Joined = TypeVar("Joined", bound=Pair)
Within = timedelta | tuple[timedelta, timedelta]
Until = Callable[[Any], int | None]
_MS = timedelta(milliseconds=1)


class Joins:
    """The joins of an `App`."""

    @check_arguments
    def join(
        self,
        left: Any = None,
        right: Any = None,
        *,
        one: Any = None,
        many: Any = None,
        until: Until | None = None,
        retention: timedelta | None = None,
        order: Literal["time"] | None = None,
        within: Within | None = None,
        on: By | None = None,
        how: How = "inner",
        grace: timedelta = timedelta(0),
        name: str | None = None,
        stores: Sequence[Store[Any, Any] | WindowStore[Any, Any]] = (),
        on_error: OnError | Then = "stop",
        misplaced: Misplaced = "stop",
        max_task_idle: timedelta = timedelta(0),
        close_when_idle: timedelta | None = None,
        by: By | Mapping[Any, By] | None = None,
        late: Any = "drop",
    ) -> Callable[[Joined], Joined]:
        """Call a function as `(ctx, left, right)` for pairs of records of two topics, or for rows of two tables.

        Topics: for each pair of records of one key that are close in event time. `ctx.timestamp_ms` is the later one's.
        With `how="left"` also as `(ctx, left, None)` for each left record that matched none when its window closed,
        with `how="outer"` also as `(ctx, None, right)`: at the record's own time. Null values match none.

        One and many: as `(ctx, one, many)` for each of `many` that is before the end of its key's `one`, whichever
        comes first; with `how="left"` as `(ctx, one, None)` at its end if there was none.

        Tables: after each change of either for which there is a result, and as `(ctx, None, None)` when there is none
        any more. `how` says of which keys: those in both, in the left one or in either. With `on` by a foreign key.

        Args:
            left: a topic, the input of no other actor, or a table.
            right: another one, with the same keys and partitions, or read by the same keys through `by`.
            one: in the place of `left`, a topic of whose records the latest of a key counts.
            many: in the place of `right`.
            until: gives the end of a `one` by its value, Unix milliseconds; None is for `retention` after its time.
            retention: how long `many` wait for their `one`; a day if it is left out.
            order: as of `actor`; of one and many.
            within: how far the times of a pair may be apart, both bounds included; of two, before and after the left.
            on: of tables: what of a left row is its right row's key, or None: a field's name, or a function.
            how: "inner", "left" or "outer".
            grace: how long after the end of its window a record is still taken, and waits for a match, by stream time.
            name: of the actor and of its store; the function's by default.
            stores: further stores that the function uses.
            on_error: as of `actor`; what is skipped or parked is the record that is handled, or one without a match.
            misplaced: as of `actor`.
            max_task_idle: as of `actor`.
            close_when_idle: as of `actor`; of topics.
            by: as of `actor`.
            late: "drop" counts what comes when its window is closed, "warn" warns too, "stop", or a topic that gets it.

        Raises:
            ConfigurationError: the arguments can't work together, or the name is taken.
        """
        pair: dict[str, Any] = {"left": left, "right": right, "within": within, "on": on}
        ones = {"one": one, "many": many, "until": until, "retention": retention, "order": order}
        options: dict[str, Any] = {"how": how, "name": name, "stores": stores, "on_error": on_error, "by": by}
        options["misplaced"] = misplaced
        options |= {"grace": grace, "late": late, "max_task_idle": max_task_idle, "close_when_idle": close_when_idle}
        return _decorator(self, pair, ones, options)


def _decorator(
    app: Any, pair: Mapping[str, Any], ones: Mapping[str, Any], options: dict[str, Any]
) -> Callable[[Joined], Joined]:
    """Return the decorator of a join of the kind that the arguments say.

    Raises:
        ConfigurationError: they are of several kinds; the decorator's as of `App.join`.
    """
    left, right = pair["left"], pair["right"]
    if ones["one"] is not None or ones["many"] is not None:
        _refuse(f"app.join(one={ones['one']!r}, many={ones['many']!r})", pair, "app.join(left, right)")
        return _of_one(app, **ones, **options)
    _refuse(f"app.join({left!r}, {right!r})", ones, "app.join(one=topic, many=topic)")
    if isinstance(left, Table) or isinstance(right, Table):
        of_topics = {option: options.pop(option) for option in ("grace", "late", "by", "close_when_idle")}
        of_topics |= {"grace": of_topics["grace"] or None, "within": pair["within"]}
        of_topics["late"] = None if of_topics["late"] == "drop" else of_topics["late"]
        if not options["max_task_idle"]:
            del options["max_task_idle"]
        return _of_tables(app, left, right, of_topics=of_topics, on=pair["on"], **options)
    return _of_topics(app, **pair, **options)


def _refuse(call: str, options: Mapping[str, Any], kind: str) -> None:
    """Refuse options of another kind of joins.

    Raises:
        ConfigurationError: naming the first.
    """
    for option, value in options.items():
        if value is not None:
            raise ConfigurationError(f"{call}: {option}= is for {kind}: leave it out")


def _of_topics(
    app: Any,
    left: Any,
    right: Any,
    *,
    on: By | None,
    within: Within | None,
    how: How,
    grace: timedelta,
    late: Any,
    **options: Any,
) -> Callable[[Joined], Joined]:
    """Return the decorator of a join of two topics.

    Raises:
        ConfigurationError: `on` is of tables; the decorator's as of `App.join`.
    """
    if on is not None:
        raise ConfigurationError(
            f"app.join({left!r}, {right!r}): on= is for two tables of app.table(topic). To join topics by another key "
            "than their records', read one by that key: by={topic: function}"
        )

    def make(called: str, function: Pair) -> _Join:
        spans = _checked(f"join {called}", within, how, grace, late)
        joining = _Join(function, late)
        rows = app.store(called, key_type=bytes, value_type=bytes)
        joining.store = JoinStore(rows, how=how, decode_key=joining.decode_key, **spans)
        return joining

    return _joined(app, (left, right), make, names=("left: Left", "right: Right"), **options)


def _of_one(
    app: Any,
    *,
    one: Any,
    many: Any,
    until: Until | None,
    retention: timedelta | None,
    how: Any,
    grace: timedelta,
    late: Any,
    **options: Any,
) -> Callable[[Joined], Joined]:
    """Return the decorator of a join of one with many."""

    def make(called: str, function: Pair) -> _Join:
        owner = f"join {called}"
        _check_ones(owner, until, retention, how)
        spans = {"retention_ms": (retention or LEAST_RETENTION) // _MS, "grace_ms": _grace_ms(owner, grace, late)}
        joining = _OneMany(function, late, until)
        # No row ends with its message's key in the way that tools know of window stores.
        rows = app.store(called, key_type=bytes, value_type=bytes, placement="task")
        joining.store = joining.ones = OneStore(rows, how=how, decode_key=joining.decode_key, **spans)
        joining.ones.on_close_function = joining.unmatched
        return joining

    return _joined(app, (one, many), make, names=("one: One", "many: Many"), **options)


def _joined(
    app: Any,
    topics: tuple[Any, Any],
    make: Callable[[str, Pair], _Join],
    *,
    names: tuple[str, str],
    name: str | None,
    stores: Sequence[Any],
    on_error: OnError | Then,
    **inputs: Any,
) -> Callable[[Joined], Joined]:
    """Return a decorator that declares the join that `make` returns; `inputs` is how its topics are read."""

    def decorate(function: Joined) -> Joined:
        called = name or name_of(function)
        check_inputs(called, topics)
        line = f"async def {name_of(function)}(ctx: Context, {names[0]}, {names[1]} | None) -> None"
        check_callable(function, f"the handler of join {called}", takes=3, line=line)
        joining = make(called, function)
        joining.declare(app, called, topics, options=replace(_options(joining.store, stores, on_error), **inputs))
        return function

    return decorate


def _check_ones(owner: str, until: Any, retention: Any, how: Any) -> None:
    """Refuse a join of one with many that can't be meant.

    Raises:
        ConfigurationError: naming the argument.
    """
    if how not in ("inner", "left"):
        raise ConfigurationError(f'{owner}: how={how!r}: of one with many it is "inner" or "left"')
    if until is None and retention is None:
        raise ConfigurationError(
            f"{owner}: give until=, a function that returns when a value's end is, or retention=, how long records wait"
        )
    if until is not None:
        check_callable(until, f"{owner}: until=", takes=1, line="def until(one: One) -> int | None")
    check_span(owner, "retention", retention)


def _options(store: JoinStore, stores: Sequence[Any], on_error: OnError | Then) -> Declaration:
    """Return the options of the actor that a join is."""
    return Declaration(
        stores=(store.rows, *owned(stores)),
        windows=(store, *timed(stores)),
        # Late records are seen to by the join's own handlers, since each input has another window.
        late="handle",
        on_error=OnError(then=on_error) if isinstance(on_error, str) else on_error,
        tombstones=True,
    )


class _Join:
    """The handlers of a join. `store` is set before, and `definition` by `declare`."""

    store: JoinStore
    definition: ActorDefinition

    def __init__(self, function: Pair, late: Any) -> None:
        self._function, self._pair = function, two_values(function)
        self._late = late

    def declare(self, app: Any, name: str, inputs: Sequence[Any], *, options: Declaration) -> None:
        """Make it an actor of the app.

        Raises:
            ConfigurationError: the name or a topic is taken, or the keys of the inputs are of different types.
        """
        store, rows = self.store, self.store.rows
        rows.decode_key, rows.decode_value = store.shown_key, store.shown_value
        rows.decode_row = lambda row, raw: store.shown_row(self._decode, row, raw)
        app._add_actor(name, list(inputs), self.handler(LEFT), options, named_by=self._function)
        self.definition = definition = app.actors[name]
        # Of an input that is read by another key, the records come from the topic that has them by it.
        self._late = forwarder(app, definition.topics, self._late)
        definition.on(inputs[RIGHT])(self.handler(RIGHT))
        _check_keys(f"join {name}", definition)
        if store.reports[LEFT]:
            store.on_close_function = self.unmatched

    @functools.cached_property
    def _decode(self) -> tuple[Callable[[bytes], Any], ...]:
        # Codecs follow the app's settings, which aren't final when it is declared.
        return tuple(function_codec(topic).of_content for topic in self.definition.topics)

    @functools.cached_property
    def _keys(self) -> Callable[[bytes], Any]:
        topic = self.definition.topic
        return key_codec(topic.app, topic.schema).decode

    def decode_key(self, raw_key: bytes) -> Any:
        """Return the key of records."""
        return self._keys(raw_key)

    def handler(self, side: int) -> Callable[[Context, Any], Awaitable[None]]:
        """Return the handler of one of the inputs."""
        store = self.store

        async def handle(ctx: Context, value: Any) -> None:
            if value is None:
                return
            if ctx.key is None:
                # Nothing has its key.
                if store.reports[side]:
                    await self._call(ctx, side, value, None)
                return
            found = store.keep_and_match(ctx, side)
            if found:
                record, decode = ctx._record, self._decode[1 - side]
                for one in found:
                    ctx._record = record if one.at_ms <= record.timestamp else _at(record, one.at_ms)
                    await self._call(ctx, side, value, decode(one.value))
                ctx._record = record
            elif found is None:
                ctx._working("join").windows.count_late_for(store, ctx, is_warned=self._late == "warn")
                divert(ctx, value, self._late, "the windows")

        return handle

    async def unmatched(self, ctx: Context, side: int, raw: bytes) -> None:
        """Hand out a record without a match."""
        await self._call(ctx, side, self._decode[side](raw), None)

    def _call(self, ctx: Context, side: int, value: Any, other: Any) -> Awaitable[Any]:
        return self._pair(ctx, value, other) if side == LEFT else self._pair(ctx, other, value)


class _OneMany(_Join):
    """The handlers of a join of one with many. `ones` is its store."""

    ones: OneStore

    def __init__(self, function: Pair, late: Any, until: Until | None) -> None:
        super().__init__(function, late)
        self._until = until

    def handler(self, side: int) -> Callable[[Context, Any], Awaitable[None]]:
        """Return the handler of one of the inputs."""
        return self._many if side == RIGHT else self._one

    async def _one(self, ctx: Context, value: Any) -> None:
        if value is None or ctx.key is None:
            if value is not None and self.store.reports[LEFT]:
                await self._pair(ctx, value, None)
            elif ctx.key is not None:
                self.ones.remove(ctx)
            return
        early, record = self.ones.put(ctx, self._end_of(ctx, value)), ctx._record
        if early is None:
            self._was_late(ctx, value)
            return
        for match in early:
            ctx._record = record if match.at_ms <= record.timestamp else _at(record, match.at_ms)
            await self._pair(ctx, value, self._decode[RIGHT](decode_early(match.value).value))
        ctx._record = record

    async def _many(self, ctx: Context, value: Any) -> None:
        if value is None or ctx.key is None:
            return
        one, record = self.ones.one_of(ctx), ctx._record
        if isinstance(one, One):
            ctx._record = record if one.at_ms <= record.timestamp else _at(record, one.at_ms)
            await self._pair(ctx, self._decode[LEFT](one.value), value)
            ctx._record = record
        elif not one:
            self._was_late(ctx, value)

    async def unmatched(self, ctx: Context, side: int, raw: bytes) -> None:
        """Hand out a `one` without a match, or have those that waited in vain go where late ones go."""
        if side == LEFT:
            await super().unmatched(ctx, side, raw)
            return
        record, source = ctx._record, ctx._source
        ctx._source = TopicPartition(self.definition.topic_names[RIGHT], source.partition)
        for kept in decode_chunk(raw):
            waited = decode_early(kept.value)
            ctx._record = TimedRecord(waited.offset, kept.at_ms, record.key, waited.value, waited.headers, kept.at_ms)
            self._was_late(ctx, self._decode[RIGHT](waited.value), has_waited=True)
        ctx._record, ctx._source = record, source

    def _was_late(self, ctx: Context, value: Any, *, has_waited: bool = False) -> None:
        """Do with a late record what `late=` says; one that has waited was handled, so it stops no partition."""
        is_warned = self._late == "warn" or (has_waited and self._late == "stop")
        ctx._working("join").windows.count_late_for(self.store, ctx, is_warned=is_warned)
        if self._late != "stop" or not has_waited:
            divert(ctx, value, self._late, f"join {self.store.name}")

    def _end_of(self, ctx: Context, value: Any) -> int | None:
        """Return the end of a `one`, None where its value has none.

        Raises:
            UsageError: `until` returns something else.
        """
        until_ms = None if self._until is None else self._until(value)
        if until_ms is None or (type(until_ms) is int and 0 <= until_ms < LAST_MS):
            return until_ms
        raise UsageError(
            f"join {self.store.name}: until= returned {until_ms!r} for the record at {ctx.topic}[{ctx.partition}] "
            f"offset {ctx.offset}: return the end of its time as Unix milliseconds, an int, or None"
        )


def _at(record: InputRecord, at_ms: int) -> InputRecord:
    """Return a record with the time of the record that it matches."""
    if isinstance(record, InternalRecord):
        return replace(record, timestamp=at_ms)
    return TimedRecord(record.offset, at_ms, record.key, record.value, record.headers, written_ms(record))


def _of_tables(
    app: Any, left: Any, right: Any, *, on: By | None, of_topics: Mapping[str, Any], **options: Any
) -> Callable[[Joined], Joined]:
    """Return the decorator of a join of two tables: by key, or with `on` by a foreign key.

    Raises:
        ConfigurationError: one isn't a table, there is no such join, or an option is for topics.
    """
    if not (isinstance(left, Table) and isinstance(right, Table)):
        raise ConfigurationError(
            f"app.join({left!r}, {right!r}): give two topics, or two tables of app.table(topic). To join a topic's "
            "records with a table, list the table in the stores= of the topic's actor"
        )
    _refuse(f"app.join({left!r}, {right!r})", of_topics, "two topics")
    if on is None:
        return join_tables(app, left, right, **options)
    return join_by_foreign_key(app, left, right, on=on, **options)


def _checked(owner: str, within: Any, how: Any, grace: Any, late: Any) -> dict[str, int]:
    """Return the spans of a `JoinStore` in milliseconds.

    Raises:
        ConfigurationError: an argument can't be meant.
    """
    if within is None:
        raise ConfigurationError(f"{owner}: give within=, how far apart the times of two records may be")
    spans = within if isinstance(within, tuple) else (within, within)
    if len(spans) != len(("before", "after")) or None in spans:
        raise ConfigurationError(
            f"{owner}: within={within!r}: give a timedelta, or two, how long before and how long after the left record "
            "the right one may be"
        )
    for span in spans:
        check_span(owner, "within", span, may_be_zero=isinstance(within, tuple))
    before_ms, after_ms = (span // _MS for span in spans)
    if before_ms + after_ms < 1:
        raise ConfigurationError(f"{owner}: within={within!r}: it has to be a millisecond or longer")
    if how not in get_args(How):
        raise ConfigurationError(f"{owner}: how={how!r}: it is one of {', '.join(get_args(How))}")
    return {"before_ms": before_ms, "after_ms": after_ms, "grace_ms": _grace_ms(owner, grace, late)}


def _grace_ms(owner: str, grace: Any, late: Any) -> int:
    """Return the grace in milliseconds.

    Raises:
        ConfigurationError: it, or what is to become of late records, can't be meant.
    """
    if grace is None:
        raise ConfigurationError(f"{owner}: grace=None: give a timedelta of 0 or more")
    check_span(owner, "grace", grace, may_be_zero=True)
    if late not in ("drop", "warn", "stop") and not hasattr(late, "get_topic_name"):
        raise ConfigurationError(f'{owner}: late={late!r}: it is "drop", "warn", "stop", or a topic of app.topic(...)')
    return int(grace // _MS)


def _check_keys(owner: str, definition: ActorDefinition) -> None:
    """Refuse inputs whose keys are of different types: equal ones would have different bytes, or the other way round.

    Raises:
        ConfigurationError: with both types.
    """
    (left, one), (right, other) = (
        (definition.sources.get(name, name), (topic.schema.key_type, topic.schema.key_serializer))
        for name, topic in zip(definition.topic_names, definition.topics, strict=True)
    )
    if one != other:
        raise ConfigurationError(
            f"{owner}: the keys of topic {left} are {_shown(one)}, those of topic {right} {_shown(other)}, and only "
            "records of the same key match: declare both topics with one key_type=, or read one by a key of the "
            "other's type, by={topic: function}"
        )


def _shown(key: tuple[Any, Any]) -> str:
    type_, serializer = key
    shown = getattr(type_, "__name__", str(type_))
    return f"{shown} ({serializer})" if serializer else shown
