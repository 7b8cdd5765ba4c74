"""Windows over keys: a second stage that aggregates what the windows of all keys have, in windows of other keys.

The first stage sends what a window of a key has to a topic of the app, by the key of the group: in the commit of its
close, with `emit=` also in that of each interval in which it changed. A message is a `Change`, whose row is that of the
first stage's window. The windows of the second stage are the same ones, so they close without a grace: stream time
there follows the tasks of the first stage, none of which is ahead of a window whose close it hasn't sent.

Where changes come, the second stage keeps what was added of each key below the key of its group, and takes that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from actors._core.aggregates import Aggregate
from actors._core.logs import error_text, text_of
from actors._core.outside import EXITS
from actors._core.task.policy import OnError, Then
from actors._core.windows.changes import Change, decode_added, decode_change, encode_added, encode_change
from actors._core.windows.foreign_keys import within
from actors._core.windows.kinds import Window
from actors._core.windows.rows import aligned_key, key_of, time_of
from actors.errors import UsageError, show_bytes
from actors.runtime.message.context import Context
from actors.runtime.message.grouping import NoGroupError
from stores._core.overlay import after_prefix

Feed = Callable[[Context, bytes, Window, bytes | None], None]
"""Sends a stage behind a window store what a window of an encoded key has, encoded; None: the window was removed."""


def only_feed(ctx: Context, window: Window, value: Any) -> None:
    """Do nothing, for a store whose windows are handed out to the stages behind it alone."""


class AcrossKeys:
    """The part of a window store that declares stages behind it.

    Attributes:
        declare_across: declares one; None for windows that belong to another store.
    """

    name: str
    declare_across: Callable[..., Any] | None = None

    def across(
        self,
        name: str | None = None,
        *,
        key: str | Callable[[Any], Any],
        aggregate: Aggregate[Any],
        of: Callable[[Any, Any], Any] | None = None,
        key_type: Any = str,
        emit: Any = None,
        stores: Sequence[Any] = (),
        on_error: OnError | Then = "stop",
    ) -> Self:
        """Declare windows over the keys of these: see "Windows over keys" in the reference.

        It is an actor, `name`, with a window store of that name, whose windows have the same starts and ends. What a
        window of a key has in the end is added to the window of the key that `key` returns. With `emit=` of this store
        its changes are added too, each in place of the former one of its key. Declare it after the actor that lists
        this store.

        Args:
            name: of the actor and of its window store; this store's with `-across` if left out.
            key: a function of a key, or the name of a field of it, that returns the key of its group, always the same;
                None is for one in no group.
            aggregate: one of `actors.aggregates`.
            of: called as `(key, result)`, returns what is added; the result if left out.
            key_type: what `key` returns.
            emit: `Every(seconds=…)`: how often windows that change are handed to `on_emit` of the new store.
            stores: further stores that its `on_close` and `on_emit` use.
            on_error: what becomes of a result whose functions raise; one that is skipped is missing in its window.

        Returns:
            The window store, for `on_close` and `on_emit`.

        Raises:
            ConfigurationError: these windows aren't the same for all keys, no actor lists this store yet, the arguments
                can't work together, or the name is taken.
        """
        if self.declare_across is None:
            raise UsageError(f"window store {self.name}: it belongs to another store, and has no stage behind it")
        name = f"{self.name}-across" if name is None else name
        options = {"key_type": key_type, "emit": emit, "stores": stores, "on_error": on_error}
        store: Self = self.declare_across(self, name, key=key, aggregate=aggregate, of=of, **options)
        return store


@dataclass(slots=True, kw_only=True)
class Across:
    """The parameters of both stages.

    Attributes:
        first, second: their window stores.
        rows: what was added of each key, below the key of its group; None where nothing changes any more.
        topic: that between them.
        key: gives the group of a key, None for none.
        of: gives what is added, of a key and its result.
        aggregate: what is added to. Without `remove`, a window is aggregated again from its rows.
    """

    first: Any
    second: Any
    rows: Any
    topic: Any
    key: Callable[[Any], Any]
    of: Callable[[Any, Any], Any]
    aggregate: Aggregate[Any]

    def send(self, ctx: Context, raw_key: bytes, window: Window, raw: bytes | None) -> None:
        """Send what a window has to the owner of its group; a `Feed`.

        Raises:
            NoGroupError: `key=` raises, or returns a key of another type.
        """
        stage, shown = self.second.name, f"key {show_bytes(raw_key)}"
        try:
            group = self.key(self.first.decode_key(raw_key))
        except EXITS:
            raise
        except BaseException as error:
            raise NoGroupError(f"key= of across {stage} raised {error_text(error)} for {shown}") from error
        if group is None:
            return
        value = encode_change(Change(aligned_key(window.start_ms, raw_key), raw))
        try:
            ctx.send(self.topic, key=group, value=value)
        except ValueError as error:
            raise NoGroupError(
                f"key= of across {stage} returns {text_of(group, repr)} for {shown}, which isn't of its key_type=: "
                f"{error}"
            ) from error

    def send_change(self, ctx: Context, raw_key: bytes, window: Window, raw: bytes | None) -> None:
        """Send a change, unless the window is closed: then its close has sent what it has in the end. A `Feed`."""
        if ctx._working("across").windows.is_open(self.first, window):
            self.send(ctx, raw_key, window, raw)

    async def fold(self, ctx: Context, raw: bytes) -> None:
        """Add what a key has to the window of the message's group, in place of what it had before.

        Raises:
            RecordError: the record is no change of a window, or its value doesn't decode.
        """
        try:
            change = decode_change(raw)
            key, window = key_of(change.row), self.first.windows.starting(time_of(change.row))
            pair = None if change.new is None else self._pair(key, change.new)
        except ValueError as error:
            raise ctx.undecodable(error) from error
        value = None if pair is None else self.of(*pair)
        windows = ctx._working("across").windows
        if not windows.is_open(self.second, window):
            windows.count_late_for(self.second, ctx)
        elif self.rows is None:
            values = self.second.values
            if values is None or values.take(ctx._working("across"), ctx._raw_key, window, value):
                self._change(ctx, window, lambda state: self.aggregate.add(state, value))
        else:
            self._replace(ctx, window, key, value, change.new)

    def _replace(self, ctx: Context, window: Window, key: bytes, value: Any, raw: bytes | None) -> None:
        place = within(ctx._raw_key, key)
        former, added = self.rows.get(place, window), None if raw is None else encode_added(value, raw)
        if former == added:
            return
        if added is None:
            self.rows.delete(place, window)
        else:
            self.rows.set(place, added, window)

        def change(state: Any) -> Any:
            if former is not None:
                before = self._former(key, former)
                if self.aggregate.remove is not None:
                    state = self.aggregate.remove(state, before)
                elif self._is_kept(state, before):
                    return self._aggregated(ctx, window)
            return state if added is None else self.aggregate.add(state, value)

        self._change(ctx, window, change)

    def _is_kept(self, state: Any, value: Any) -> bool:
        """Return whether a state may have something of a value. Values are compared as they are kept."""
        if not self.aggregate.keeps_some:
            return True
        second = self.second
        alone = second.decode_value(second.encode_value(self.aggregate.add(self.aggregate.starter()(), value)))
        encode = msgspec.msgpack.encode
        if encode(alone) == encode(state):
            return True
        one, some = (each if isinstance(each, list) else [each] for each in (alone, state))
        return any(encode(kept) in map(encode, one) for kept in some)

    def _change(self, ctx: Context, window: Window, change: Callable[[Any], Any]) -> None:
        """Replace the state of the window of the message's group by what a function returns."""
        overlay, raw_key = self.second.rows.own_place(ctx)
        row = aligned_key(window.start_ms, raw_key)
        raw = overlay.get(row)
        state = self.aggregate.starter()() if raw is None else self.second.decode_value(raw[1:])
        self.second.write_row(overlay, ctx._working("across"), row, change(state))

    def _aggregated(self, ctx: Context, window: Window) -> Any:
        """Return the state of all that was added to the window of the message's group, in the order of the keys."""
        state = self.aggregate.starter()()
        for key, added in self._rows(ctx, window):
            state = self.aggregate.add(state, self._former(key, added))
        return state

    def _rows(self, ctx: Context, window: Window) -> Iterator[tuple[bytes, bytes]]:
        outer = within(ctx._raw_key, b"")
        first = aligned_key(window.start_ms, outer)
        for row, raw in self.rows.rows.own_place(ctx)[0].items(first, after_prefix(first)):
            yield row[len(first) :], raw[1:]

    def _former(self, key: bytes, added: bytes) -> Any:
        value, raw = decode_added(added)
        return value if raw is None else self.of(*self._pair(key, raw))

    def _pair(self, key: bytes, raw: bytes) -> tuple[Any, Any]:
        return self.first.decode_key(key), self.first.result(raw)
