"""How changes of a table's rows reach the groups of an aggregate, in the commit of the row.

The owner of the rows sends each change to a topic of the app by the key of the group: one record takes the row out of
its former group, and one puts the new value into its own; where both are the same group it is a single record. It keeps
the group that it sent each row to, so a former value doesn't have to be read, or grouped, a second time. An aggregate
that is declared over a table which has rows takes these up in pages, a page with each record of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from actors._core.logs import escaping, text_of
from actors._core.outside import EXITS
from actors._core.windows.changes import ALL, CURSOR, GROUP_OF, NEXT, Change, encode_change
from actors.errors import ActorsError, NewerVersionError, RecordTooLargeError, show_bytes
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import Overlay

logger = escaping(logging.getLogger(__name__))

TIME_BYTES = 8
PAGE_ROWS = 256
PAGE_BYTES = 1 << 20
"""How many earlier rows, and about how many bytes of them, one record of the table brings into their groups."""


class NoGroupError(ActorsError):
    """The group of a row is unknown."""


class Row(NamedTuple):
    """A value as it came, and decoded."""

    raw: bytes
    value: Any


class Grouping:
    """The groups of one aggregate, as the owner of its table's rows sees them.

    A join by a foreign key is one too: its groups are the left rows that name one right row.

    Attributes:
        aggregate: its name.
        taken: the store of the group that each row was sent to, and of how far earlier rows are taken up.
    """

    # How errors name them.
    _OPTION, _NONE, _KEYS = "by= of aggregate", "is in no group", "its groups"
    _REMEDY = "Declare key_type= as the type of what by= gives"

    __slots__ = ("_by", "_decode_key", "_decode_row", "_encode_key", "_stops", "_to", "aggregate", "taken")

    def __init__(
        self,
        aggregate: str,
        *,
        by: Callable[[Any, Any], Any],
        to: Any,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        decode_row: Callable[[bytes], Any],
        taken: Store[bytes, bytes],
        stops: Callable[[], bool],
    ) -> None:
        self.aggregate, self.taken = aggregate, taken
        self._by, self._to, self._encode_key, self._decode_row = by, to, encode_key, decode_row
        self._decode_key = decode_key
        # Whether the table's actor stops in front of an error.
        self._stops = stops

    def take_up(self, ctx: Context, state: TaskState, rows: Overlay) -> bytes | None:
        """Put a page of the rows that were there before the aggregate into their groups.

        Returns:
            The key before which rows are in their groups; None if all are.

        Raises:
            NoGroupError: `by=` raises for a row, or gives a key of another type, and the table's actor stops then.
            RecordTooLargeError, ValueError: likewise, a row's change doesn't fit, or it doesn't decode.
        """
        held = state.overlays[self.taken].get(CURSOR)
        if held == ALL:
            return None
        start, size = None if held is None else held[len(NEXT) :], 0
        for count, (raw_key, row) in enumerate(rows.items(start)):
            if count == PAGE_ROWS or size >= PAGE_BYTES:
                self.taken.write_raw(state, CURSOR, NEXT + raw_key)
                return raw_key
            self._take_up_row(ctx, state, raw_key, row)
            size += len(row)
        self.taken.write_raw(state, CURSOR, ALL)
        return None

    def _take_up_row(self, ctx: Context, state: TaskState, raw_key: bytes, row: bytes) -> None:
        """Put an earlier row into its group. Another row's message doesn't fail, or wait, for one that is in none."""
        try:
            group, at_ms = self._group(self._decoded(row, raw_key), raw_key), int.from_bytes(row[:TIME_BYTES])
            self._take_row(ctx, raw_key, group, raw=row[TIME_BYTES:], timestamp_ms=at_ms or None)
        except (NoGroupError, RecordTooLargeError, ValueError) as error:
            if self._stops() or isinstance(error, NewerVersionError):
                raise
            logger.error(
                "%s[%d]: %s leaves out the row of key %s until it changes: %s",
                ctx.topic,
                ctx.partition,
                self.aggregate,
                show_bytes(raw_key),
                error,
            )
        else:
            if group is not None:
                self.taken.write_raw(state, GROUP_OF + raw_key, group)

    def change(self, ctx: Context, state: TaskState, new: Row | None) -> None:
        """Send the change of the message's row to the groups that it is about.

        Raises:
            NoGroupError: `by=` raises for the new value, or gives a key of another type.
            RecordTooLargeError: the change is larger than the topic of changes allows.
        """
        raw_key, groups = ctx._raw_key, state.overlays[self.taken]
        place = GROUP_OF + raw_key
        old_group = groups.get(place)
        new_group = None if new is None else self._group(new.value, raw_key)
        if old_group is not None and old_group != new_group:
            self._send(ctx, raw_key, old_group, Change(raw_key, None))
            if new_group is None:
                groups.delete(place)
        if new is not None and new_group is not None:
            self._send(ctx, raw_key, new_group, Change(raw_key, new.raw))
            if old_group != new_group:
                self.taken.write_raw(state, place, new_group)

    def _take_row(
        self, ctx: Context, raw_key: bytes, group: bytes | None, *, raw: bytes, timestamp_ms: int | None
    ) -> None:
        """Put a row that was there before into its group, None if it is in none."""
        if group is not None:
            self._send(ctx, raw_key, group, Change(raw_key, raw), timestamp_ms=timestamp_ms)

    def _send(
        self, ctx: Context, raw_key: bytes, group: bytes, change: Change, *, timestamp_ms: int | None = None
    ) -> None:
        """Send the change of the row `raw_key` to one group."""
        ctx.send(self._to, key=group, value=encode_change(change), timestamp_ms=timestamp_ms)

    def _decoded(self, row: bytes, raw_key: bytes) -> Any:
        try:
            return self._decode_row(row)
        except NewerVersionError:
            raise
        except ValueError as error:
            raise NoGroupError(
                f"{self._OPTION} {self.aggregate} can't be applied to the row of key {show_bytes(raw_key)}, which was "
                f"there before: its value doesn't decode: {error}. Make the type of the table's topic read it, or send "
                "the topic a record of that key"
            ) from error

    def _group(self, value: Any, raw_key: bytes) -> bytes | None:
        """Return the key of a value's group, None if it is in none."""
        try:
            group = self._by(self._decode_key(raw_key), value)
        except EXITS:
            raise
        except BaseException as error:
            raise NoGroupError(
                f"{self._OPTION} {self.aggregate} raised {type(error).__name__} for the row of key "
                f"{show_bytes(raw_key)}: {text_of(error)}. Make it take all values of the table's "
                f"topic; None is for a row that {self._NONE}"
            ) from error
        if group is None:
            return None
        try:
            return self._encode_key(group)
        except ValueError as error:
            raise NoGroupError(
                f"{self._OPTION} {self.aggregate} gives {text_of(group, repr)} for the row of key "
                f"{show_bytes(raw_key)}, which isn't a key of {self._KEYS}: {error}. {self._REMEDY}"
            ) from error
