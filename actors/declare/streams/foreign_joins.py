"""Joins of two tables by a foreign key: two actors that tell each other of their rows.

    owner of left rows    --- subscriptions, by the foreign key --->    owner of right rows
                          <------- answers, by the left key --------

The owner of a left row subscribes to the right row that its foreign key names. The owner of that row answers each
subscription, and each change of the row to all who are subscribed, a page of them at a time. An answer that isn't for
the left value as it is now is dropped: another one is coming. So a result is never followed by an older one: answers
for one value come from one right row, in the order of its changes. See KIP-213.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from actors._core.windows.changes import Change
from actors._core.windows.foreign_keys import (
    Answer,
    Subscription,
    decode_answer,
    decode_subscription,
    digest,
    encode_message,
    within,
)
from actors.declare.definition import check_name
from actors.declare.streams.repartition import By, checked_repartition, keys_like, record_key_function
from actors.declare.streams.tables import JOIN_LINE, AnyStore, Joined, TwoValues, two_values
from actors.declare.values.messages import function_codec
from actors.declare.values.schemas import key_codec
from actors.declare.values.stored import own_store
from actors.errors import ConfigurationError
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.message import grouping
from actors.runtime.message.context import Context
from actors.runtime.message.grouping import TIME_BYTES, Grouping
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from stores._core.overlay import after_prefix

_RESULT = b"r"


class _Subscribing(Grouping):
    """Subscribes left rows to the right rows that they name. `answers` has the answers, None for an inner join."""

    __slots__ = ("_answers",)
    _OPTION, _NONE, _KEYS = "on= of join", "names no row", "the right table"
    _REMEDY = "Make on= give keys of the type that the right table's topic declares as key_type="

    def __init__(self, join: str, *, answers: Any, **options: Any) -> None:
        super().__init__(join, **options)
        self._answers = answers

    def _take_row(
        self, ctx: Context, raw_key: bytes, group: bytes | None, *, raw: bytes, timestamp_ms: int | None
    ) -> None:
        super()._take_row(ctx, raw_key, group, raw=raw, timestamp_ms=timestamp_ms)
        if group is None and self._answers is not None:
            # Nobody else tells of a left row that names no right one.
            answer = Answer(digest(raw), None)
            ctx.send(self._answers, key=raw_key, value=encode_message(answer), timestamp_ms=timestamp_ms)

    def _send(
        self, ctx: Context, raw_key: bytes, group: bytes, change: Change, *, timestamp_ms: int | None = None
    ) -> None:
        wanted = None if change.new is None else digest(change.new)
        value = encode_message(Subscription(raw_key, wanted))
        ctx.send(self._to, key=group, value=value, timestamp_ms=timestamp_ms)


class _Left:
    """The handlers of left rows' owner. `results` has a row for each left key that has a result."""

    def __init__(
        self,
        left: Table[Any, Any],
        decode_right: Callable[[bytes], Any],
        results: Store[Any, bytes],
        *,
        on: Callable[[Any, Any], Any],
        is_left: bool,
        call: TwoValues,
    ) -> None:
        self._left, self._decode_right, self._results = left, decode_right, results
        self._on, self._is_left, self._call = on, is_left, call

    async def changed(self, ctx: Context, value: Any) -> None:
        """Handle a left row that is gone, or names no right one; for others an answer comes."""
        if value is None or self._on(ctx.key, value) is None:
            await self._tell(ctx, value, None)

    async def answered(self, ctx: Context, raw: bytes) -> None:
        """Call the handler with the left row's value and its right one.

        Raises:
            RecordError: the record is no answer, or its value doesn't decode.
        """
        try:
            answer = decode_answer(raw)
            right = None if answer.right is None else self._decode_right(answer.right)
        except ValueError as error:
            raise ctx.undecodable(error) from error
        overlay, key = self._left.own_place(ctx)
        row = overlay.get(key)
        if row is not None and digest(row[TIME_BYTES:]) == answer.digest:
            await self._tell(ctx, self._left.get(ctx.key), right)

    async def _tell(self, ctx: Context, left: Any, right: Any) -> None:
        if left is not None and (right is not None or self._is_left):
            overlay, key = self._results.own_place(ctx)
            if overlay.get(key) is None:
                self._results.write_own(ctx, _RESULT)
            await self._call(ctx, left, right)
        elif self._results.delete_own(ctx):
            await self._call(ctx, None, None)


class _Right:
    """The handlers of right rows' owner. `subscribers` has the subscriptions to them."""

    def __init__(
        self, right: Table[Any, Any], subscribers: Store[bytes, bytes], *, subscriptions: Any, answers: Any
    ) -> None:
        self._right, self._subscribers = right, subscribers
        self._subscriptions, self._answers = subscriptions, answers

    async def changed(self, ctx: Context, _: Any) -> None:
        """Answer all who are subscribed to the row."""
        self._answer_from(ctx, b"", self._row(ctx))

    async def subscribed(self, ctx: Context, raw: bytes) -> None:
        """Take a subscription and answer it, or end one, or go on with the answers of a change.

        Raises:
            RecordError: the record is none of these.
        """
        try:
            told = decode_subscription(raw)
        except ValueError as error:
            raise ctx.undecodable(error) from error
        row = self._row(ctx)
        if told.is_page:
            # Another value has its own pages, from the first one.
            if told.digest == _digest_of(row):
                self._answer_from(ctx, told.left_key, row)
            return
        overlay, foreign_key = self._subscribers.own_place(ctx)
        place = within(foreign_key, told.left_key)
        if told.digest is None:
            overlay.delete(place)
            return
        self._subscribers.write_raw(ctx._working("join"), place, told.digest)
        at_ms = 0 if row is None else int.from_bytes(row[:TIME_BYTES])
        self._answer(ctx, told.left_key, told.digest, row, at_ms if at_ms > ctx.timestamp_ms else None)

    def _answer_from(self, ctx: Context, first: bytes, row: bytes | None) -> None:
        """Answer a page of subscriptions, from that left key on, and have the next page sent to the row's owner."""
        overlay, foreign_key = self._subscribers.own_place(ctx)
        prefix, size = within(foreign_key, b""), 0
        for count, (place, wanted) in enumerate(overlay.items(prefix + first, after_prefix(prefix))):
            left_key = place[len(prefix) :]
            if count == grouping.PAGE_ROWS or size >= grouping.PAGE_BYTES:
                page = encode_message(Subscription(left_key, _digest_of(row), is_page=True))
                ctx.send(self._subscriptions, key=foreign_key, value=page)
                return
            self._answer(ctx, left_key, wanted, row)
            size += len(left_key) + len(row or b"")

    def _answer(
        self, ctx: Context, left_key: bytes, wanted: bytes, row: bytes | None, timestamp_ms: int | None = None
    ) -> None:
        answer = encode_message(Answer(wanted, None if row is None else row[TIME_BYTES:]))
        ctx.send(self._answers, key=left_key, value=answer, timestamp_ms=timestamp_ms)

    def _row(self, ctx: Context) -> bytes | None:
        overlay, key = self._right.own_place(ctx)
        return overlay.get(key)


def _digest_of(row: bytes | None) -> bytes | None:
    return None if row is None else digest(row[TIME_BYTES:])


def join_by_foreign_key(
    app: Any,
    left: Table[Any, Any],
    right: Table[Any, Any],
    *,
    on: By,
    how: str,
    stores: Sequence[AnyStore],
    name: str | None,
    misplaced: str,
    **options: Any,
) -> Callable[[Joined], Joined]:
    """Return a decorator that makes a function the handler of a join by a foreign key; see `App.join`.

    Raises:
        ConfigurationError: there is no such join, the left values have no such field, or the function can't be called
            with a context and two values.
    """
    _check(left, right, how, misplaced)

    def decorate(function: Joined) -> Joined:
        called = name or name_of(function)
        right_name = f"{called}-right"
        check_name("join", right_name)
        check_callable(function, f"the handler of join {called}", takes=3, line=JOIN_LINE.format(name_of(function)))
        key_type = right.topic.schema.key_type
        key_of = record_key_function(called, left.topic_name, on, left.topic.schema, key_type=key_type, option="on")
        # Subscriptions are the left rows by the right table's keys, answers the right ones by the left table's.
        subscriptions = _topics(app, called, of=left, like=right)
        answers = _topics(app, called, of=right, like=left)
        # The app's settings may not be there yet.
        keys = functools.cache(lambda: key_codec(app, right.topic.schema))
        values = functools.cache(lambda: function_codec(right.topic))
        results = app.store(f"{called}-results", key_type=bytes, value_type=bytes)
        subscribers = own_store(app, f"{called}-subscribers", "sized")
        subscribing = _Subscribing(
            called,
            answers=answers.sent if how == "left" else None,
            by=key_of,
            to=subscriptions.sent,
            encode_key=lambda key: keys().encode(key),
            decode_key=left.decode_key,
            decode_row=left.decode_value,
            taken=own_store(app, f"{called}-taken", "taken"),
            stops=lambda: app.actors[called].on_error.then == "stop",
        )
        left.groupings.append(subscribing)
        of_left = _Left(
            left,
            lambda raw: values().of_content(raw),
            results,
            on=key_of,
            is_left=how == "left",
            call=two_values(function),
        )
        of_right = _Right(right, subscribers, subscriptions=subscriptions.sent, answers=answers.sent)
        app.actor(right.topic, subscriptions.read, stores=[right, subscribers], name=right_name, **options)(
            of_right.changed
        )
        app.on(right_name, subscriptions.read)(of_right.subscribed)
        declare = app.actor(left.topic, answers.read, stores=[left, results, *stores], name=called, **options)
        declare(of_left.changed, named_by=function)
        app.on(called, answers.read)(of_left.answered)
        return function

    return decorate


class _Topics(NamedTuple):
    """A topic that the app makes: as its actor reads it, and as it is sent to, with encoded keys."""

    read: Any
    sent: Any


def _topics(app: Any, join: str, *, of: Table[Any, Any], like: Table[Any, Any]) -> _Topics:
    """Return the topic that tells of the rows of one table by the keys of the other one.

    Raises:
        ConfigurationError: its name would be longer than Kafka takes.
    """
    name = checked_repartition(app, f"join {join}", join, of.topic_name)
    keys = keys_like(app, like.topic)
    read = app.topic(name, **keys, value_type=bytes)
    read.made_of = of.topic_name
    return _Topics(read, app.topic(name, key_type=bytes, value_type=bytes, partitioner=keys["partitioner"]))


def _check(left: Table[Any, Any], right: Table[Any, Any], how: str, misplaced: str) -> None:
    """Refuse what a join by a foreign key can't be.

    Raises:
        ConfigurationError: with what is possible.
    """
    what = f"app.join({left!r}, {right!r}, on=…)"
    if how not in ("inner", "left"):
        raise ConfigurationError(
            f"{what}: how={how!r}: a join by a foreign key is inner or left, since its results are rows of the left "
            "table: a right row that no left one names has no key there"
        )
    if left is right:
        raise ConfigurationError(f"{what}: both sides are table {left.name}: join two tables of different topics")
    if misplaced != "stop":
        raise ConfigurationError(
            f"{what}: misplaced={misplaced!r}: the two tables find each other's rows in the partitions of their keys, "
            "so a row in another partition has to stop them: leave misplaced= out"
        )
