"""Messages that were put aside: the one that its handler can't handle, and behind it all later ones of its key.

Other keys go on. The messages of a key stand in a line in the actor's store of parked messages:

    key     b"p", the length of the message's key as 4 bytes, the key, a sequence as 8 bytes; numbers big-endian
    value   a `ParkedMessage` as JSON, its bytes in base64

Messages without a key stand in the line of the empty key, each because it failed itself: they have no order that a
later one would have to wait for. The first of a line was tried and has an error; those that
only wait behind it have none. What is parked is also sent to the dead-letter topic when it is parked, for whoever
watches that; the store alone decides.

Somebody who wants a line retried or dropped sends a control record to the actor's own input, with the key in question
and a `Command` as JSON in the header `fa-control`. So it is carried out by the partition's owner, in order with
the messages of the key, exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from actors._core.keys import line_bounds, make_place, place_of
from actors._core.logs import escaping
from actors._core.outside import MALFORMED
from actors.errors import RecordError, RecordTooLargeError, Rejected, show_bytes
from actors.ports import InputRecord, Output
from actors.runtime.context import Context, Store, TaskState
from actors.runtime.entries import is_newer, newer_entry
from actors.runtime.outputs import (
    ACTOR_HEADER,
    ATTEMPTS_HEADER,
    DEAD_LETTER_HEADERS,
    ERROR_HEADER,
    ORIGIN_HEADER,
    RECORD_OVERHEAD_BYTES,
)
from actors.runtime.spec import ActorSpec
from actors.runtime.turns import Moment, Turn
from stores._core.overlay import Overlay

if TYPE_CHECKING:
    from actors.runtime.handling import Handling

logger = escaping(logging.getLogger(__name__))

CONTROL_HEADER = "fa-control"
ALL = "*"
"""In the place of an id: all of a line."""
RETRY_MESSAGES = 1_000
RETRY_BYTES = 16 * 1024 * 1024
"""One command hands no more to the handler than this, because it all goes into one commit; the rest stays parked."""
ERROR_CHARS = 2_000
SHORT_ERROR_CHARS = 100
_LETTER = b"p"
_AFTER_ALL = b"q"


class ParkedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in its line.

    Attributes:
        topic, partition, offset, timestamp_ms, key, value, headers: as it came; Unix milliseconds.
        id: what identifies it if it isn't an input record; None if it is one.
        timer: the name of the timer that sent it, None if none did.
        error: why it couldn't be handled; None if it only waits behind another.
        attempts: how often it was tried.
        parked_at_ms: since when it waits, Unix milliseconds.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []
    id: str | None = None
    timer: str | None = None
    error: str | None = None
    attempts: int = 0
    parked_at_ms: int = 0

    @property
    def message_id(self) -> str:
        """What identifies it, as `ctx.message_id` does."""
        return self.id or f"{self.topic}-{self.partition}-{self.offset}"

    def moment(self) -> Moment:
        """Give what its handler's context has in the place of the record."""
        headers: list[tuple[str, bytes]] = self.headers  # type: ignore[assignment]
        return Moment(self.offset, self.timestamp_ms, self.key, self.value, headers, id=self.id, timer=self.timer)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What a control record says.

    Attributes:
        actor: the actor's name.
        what: whose line: parked messages, or parked effects of the key. "turn": the timer or result of that id, which
            stopped the partition; its task looks for such commands ahead of all others: see `told_of`.
        command: "retry" hands the line to the handler again, up to the first that fails; "drop" forgets.
        id: which one to drop; None the first, `ALL` all. Of effects only the first of a key is ever parked.
    """

    actor: str
    what: Literal["message", "effect", "turn"]
    command: Literal["retry", "drop"]
    id: str | None = None


class ParkedEffects(Protocol):
    """Effects that were given up: `actors.runtime.effects`."""

    def retry(self, state: TaskState, raw_key: bytes, /) -> int:
        """Let the parked one of a key be called again; give how many there were."""

    def drop(self, state: TaskState, raw_key: bytes, call_id: str | None, /) -> int:
        """Forget the parked one of a key, or the one with that id; give how many there were."""


class Parked:
    """The parked messages of a partition, from a takeover to the next; made with what is committed.

    Args:
        spec: the actor.
        state: the task's shared state.
        effects: its effects, which are controlled by the same records.
    """

    def __init__(self, spec: ActorSpec, state: TaskState, effects: ParkedEffects | None = None) -> None:
        self._spec = spec
        self._effects = effects
        self._store: Store[bytes, bytes] | None = spec.parked
        # By key, a sequence behind all of its line. A key whose line isn't empty is always in it: the messages of a key
        # are handled one after the other, so what changes a line is known here whether or not it is merged yet.
        self._next: dict[bytes, int] = {}
        if self._store is not None:
            self._next.update(_lines(state.overlays[self._store]))

    def concerns(self, record: InputRecord) -> bool:
        """Tell whether the record may be a control record or of a parked key. Hot: called for every record."""
        for name, _ in record.headers:
            if name == CONTROL_HEADER:
                return True
        return bool(self._next) and record.key is not None and record.key in self._next

    async def take(self, state: TaskState, record: InputRecord, handling: Handling, turn: Turn | None = None) -> bool:
        """Carry out a control record, or put a message behind the parked ones of its key.

        Returns:
            Whether that is done; if not, the message is to be handled.

        Raises:
            RecordError: the message has to wait and doesn't fit into the store.
        """
        told = _control(record) if turn is None else None
        if told is not None:
            await self._obey(state, record, handling, told)
        elif record.key is None or not self._has_line(state, record.key):
            return False
        elif turn is None or _settled(state, record, turn):
            try:
                self._append(state, record, None, 0)
            except RecordTooLargeError as error:
                state.scope.rollback()
                unparkable = _unparkable(state, record, error)
                unparkable.turn = None if turn is None else (self._spec.name, str(getattr(record, "id", None)))
                raise unparkable from error
        state.scope.release()
        return True

    def park(self, state: TaskState, record: InputRecord, failed: RecordError, attempts: int) -> None:
        """Put a message aside that can't be handled, and send it to the dead-letter topic.

        Raises:
            RecordError: it doesn't fit into the store, or into the topic.
        """
        reason, sent = describe(failed), len(state.outputs)
        told = None if isinstance(record, Moment) else _control(record)
        if told is not None:
            # What the broker refuses is what a retry led to. It is undone, so all are parked as before.
            self._note_refusal(state, record, failed, told)
            return
        try:
            self._append(state, record, reason, attempts)
            send_dead_letter(self._spec, state, record, reason=reason, attempts=attempts)
        except RecordTooLargeError as error:
            state.scope.rollback()
            del state.outputs[sent:]
            stopped = type(failed)(
                f"{failed.reason}; and it can't be parked: {error}",
                topic=failed.topic,
                partition=failed.partition,
                offset=failed.offset,
                key=failed.key,
            )
            stopped.turn = failed.turn
            raise stopped from failed.__cause__
        logger.error(
            "%s offset %d key %s: parked at attempt %d, and later messages of its key wait behind it: %s. "
            "See `parked show %s`, then `parked retry` or `parked drop`",
            state.source,
            record.offset,
            show_bytes(record.key),
            attempts,
            failed.reason,
            self._spec.name,
            exc_info=failed.__cause__,
        )

    # --- lines -----------------------------------------------------------------------------------------------------

    def _has_line(self, state: TaskState, key: bytes) -> bool:
        after = self._next.get(key)
        if after is None or self._store is None:
            return False
        # A look at all uncommitted keys for each message that waits would be too much.
        if state.overlays[self._store].get(make_place(_LETTER, key, after - 1)) is not None:
            return True
        return self._recount(state.overlays[self._store], key)

    def _recount(self, overlay: Overlay, key: bytes) -> bool:
        """Look where the line ends; tell whether there is one."""
        last = next(overlay.items(*line_bounds(_LETTER, key), reverse=True), None)
        if last is None:
            self._next.pop(key, None)
            return False
        self._next[key] = place_of(last[0])[1] + 1
        return True

    def _append(self, state: TaskState, record: InputRecord, error: str | None, attempts: int) -> None:
        if self._store is None:
            raise AssertionError(f"actor {self._spec.name} parks nothing")
        key = record.key or b""
        sequence = self._next.get(key, 0)
        message = ParkedMessage(
            topic=state.source.topic,
            partition=state.source.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            id=getattr(record, "id", None),
            timer=getattr(record, "timer", None),
            error=error,
            attempts=attempts,
            parked_at_ms=state.scope.now_ms,
        )
        self._write(state, self._store, make_place(_LETTER, key, sequence), message)
        self._next[key] = sequence + 1

    @staticmethod
    def _write(state: TaskState, store: Store[bytes, bytes], place: bytes, message: ParkedMessage) -> None:
        try:
            store.write_raw(state, place, msgspec.json.encode(message))
        except RecordTooLargeError:
            if message.error is None or len(message.error) <= SHORT_ERROR_CHARS:
                raise
            short = msgspec.structs.replace(message, error=message.error[:SHORT_ERROR_CHARS])
            store.write_raw(state, place, msgspec.json.encode(short))

    # --- control records -------------------------------------------------------------------------------------------

    async def _obey(self, state: TaskState, record: InputRecord, handling: Handling, told: bytes) -> None:
        command = self._command(state, record, told)
        if command is None:
            return
        key = record.key or b""
        if command.what == "turn":
            return
        if command.what == "effect":
            count = self._control_effects(state, key, command)
        elif self._store is None:
            count = None
        elif command.command == "retry":
            count = await self._retry(state, self._store, key, handling)
        else:
            count = self._drop(state.overlays[self._store], key, command.id)
        where = f"{state.source} offset {record.offset}: {command.command} parked {command.what}s of {show_bytes(key)}"
        if count is None:
            logger.warning("%s is skipped: actor %s parks none", where, state.actor)
        else:
            logger.info("%s: %d are done with", where, count)

    def _command(self, state: TaskState, record: InputRecord, told: bytes) -> Command | None:
        """Give what a control record says, None if that isn't for this actor."""
        try:
            command = msgspec.json.decode(told, type=Command)
        except MALFORMED as error:
            text = "%s offset %d: a control record that can't be read is skipped: %s"
            logger.warning(text, state.source, record.offset, error)
            return None
        if command.actor != self._spec.name:
            text = "%s offset %d: a control record for actor %r is skipped: this partition's actor is %s"
            logger.warning(text, state.source, record.offset, command.actor, self._spec.name)
            return None
        return command

    def _control_effects(self, state: TaskState, key: bytes, command: Command) -> int | None:
        if self._effects is None:
            return None
        if command.command == "retry":
            return self._effects.retry(state, key)
        return self._effects.drop(state, key, None if command.id == ALL else command.id)

    async def _retry(self, state: TaskState, store: Store[bytes, bytes], key: bytes, handling: Handling) -> int:
        """Hand the messages of a line to the handler, up to the first that fails; give how many were handled."""
        overlay, count, size = state.overlays[store], 0, 0
        places = [place for place, _ in islice(overlay.items(*line_bounds(_LETTER, key)), RETRY_MESSAGES)]
        for place in places:
            raw = overlay.get(place)
            if raw is None or size > RETRY_BYTES:
                break
            if handling.is_ending():
                # Nothing of the command is committed: the next owner carries it out.
                raise asyncio.CancelledError
            if not await self._again(state, store, place, raw, handling):
                break
            count, size = count + 1, size + len(raw)
            await asyncio.sleep(0)
        return count

    async def _again(
        self, state: TaskState, store: Store[bytes, bytes], place: bytes, raw: bytes, handling: Handling
    ) -> bool:
        """Handle a parked message in a savepoint of its own; tell whether it is done with."""
        message = _parked(raw)
        moment, sent = message.moment(), len(state.outputs)

        def remove(ctx: Context) -> bool:
            state.overlays[store].delete(place)
            return True

        turn = Turn(moment, remove, lambda: None, f"parked message {message.message_id}")
        try:
            # A turn without a value would be over when it is settled, and this is a message that can't be handled.
            await handling.once(state, moment, None if message.value is None else turn)
        except BaseException as error:
            failed = handling.undone(state, moment, error, sent)
            if isinstance(error, Rejected):
                handling._reject(state, moment, error, turn)
                return True
            self._fail_again(state, store, place, message, failed)
            return False
        return True

    def _fail_again(
        self, state: TaskState, store: Store[bytes, bytes], place: bytes, message: ParkedMessage, failed: RecordError
    ) -> None:
        again = msgspec.structs.replace(message, error=describe(failed), attempts=message.attempts + 1)
        try:
            self._write(state, store, place, again)
        except RecordTooLargeError:
            # It has waited without an error and fills its record: so it stays.
            logger.exception("%s: no room to note why %s failed", state.source, message.message_id)
        logger.error(
            "%s: the parked message %s of key %s failed again, at attempt %d: %s",
            state.source,
            message.message_id,
            show_bytes(message.key),
            again.attempts,
            failed.reason,
            exc_info=failed.__cause__,
        )

    @staticmethod
    def _drop(overlay: Overlay, key: bytes, id: str | None) -> int:
        count = 0
        for place, raw in overlay.items(*line_bounds(_LETTER, key)):
            if id in (None, ALL) or _parked(raw).message_id == id:
                overlay.delete(place)
                count += 1
                if id != ALL:
                    break
        return count

    def _note_refusal(self, state: TaskState, record: InputRecord, failed: RecordError, told: bytes) -> None:
        command, key, store = self._command(state, record, told), record.key or b"", self._store
        if command is None or command.command != "retry" or store is None:
            logger.error("%s offset %d: a control record is skipped: %s", state.source, record.offset, failed.reason)
            return
        first = next(state.overlays[store].items(*line_bounds(_LETTER, key)), None)
        if first is not None:
            self._fail_again(state, store, first[0], _parked(first[1]), failed)


def _parked(raw: bytes) -> ParkedMessage:
    """Read an entry.

    Raises:
        NewerVersionError: this release can't.
    """
    try:
        if not is_newer(raw):
            return msgspec.json.decode(raw, type=ParkedMessage)
    except MALFORMED as error:
        raise newer_entry("a parked message", raw) from error
    raise newer_entry("a parked message", raw)


def send_dead_letter(spec: ActorSpec, state: TaskState, record: InputRecord, *, reason: str, attempts: int) -> None:
    """Send a message that can't be handled to the actor's dead-letter topic, if it has one, in the commit.

    Raises:
        RecordTooLargeError: it doesn't fit into the topic with the headers that say why.
    """
    topic = spec.dead_letters
    if topic is None:
        return
    source = state.source
    # One that was parked before and sent again has these headers already.
    headers = [pair for pair in record.headers if pair[0] not in DEAD_LETTER_HEADERS]
    headers += [
        (ERROR_HEADER, reason.encode()),
        (ORIGIN_HEADER, f"{source.topic}/{source.partition}/{record.offset}".encode()),
        (ATTEMPTS_HEADER, str(attempts).encode()),
        (ACTOR_HEADER, spec.name.encode()),
    ]
    size = len(record.key or b"") + len(record.value or b"")
    size += sum(len(name) + len(data or b"") for name, data in headers)
    if size + RECORD_OVERHEAD_BYTES > topic.max_record_bytes:
        raise RecordTooLargeError(
            f"{topic.name}: with its headers it has {size} bytes and doesn't fit into the topic's "
            f"max.message.bytes={topic.max_record_bytes}: raise that and restart the worker"
        )
    state.outputs.append(Output(topic.name, None, record.key, record.value, headers, None))
    state.output_bytes += size + 64


def _lines(overlay: Overlay) -> Iterator[tuple[bytes, int]]:
    """Give each key that has a line, with the sequence behind it."""
    start = _LETTER
    while (first := next(overlay.items(start, _AFTER_ALL), None)) is not None:
        key, _ = place_of(first[0])
        last, _ = next(overlay.items(*line_bounds(_LETTER, key), reverse=True))
        yield key, place_of(last)[1] + 1
        _, start = line_bounds(_LETTER, key)


def told_of(record: InputRecord, turn: tuple[str, str]) -> str | None:
    """Return what a control record says is to be done with a turn that stopped its partition, given as (actor, id)."""
    try:
        command = msgspec.json.decode(_control(record) or b"", type=Command)
    except MALFORMED:
        return None
    is_meant = command.what == "turn" and (command.actor, command.id) == turn
    return command.command if is_meant else None


def _control(record: InputRecord) -> bytes | None:
    for name, told in record.headers:
        if name == CONTROL_HEADER:
            return told or b""
    return None


def _unparkable(state: TaskState, record: InputRecord, error: Exception) -> RecordError:
    return RecordError(
        f"it has to wait behind a parked message of its key and can't: {error}",
        topic=state.source.topic,
        partition=state.source.partition,
        offset=record.offset,
        key=record.key,
    )


def _settled(state: TaskState, record: InputRecord, turn: Turn) -> bool:
    """Settle a turn that isn't handled now; tell whether there is something of it to handle later."""
    ctx = Context(state, record, None, record.key or b"")
    try:
        return turn.settle(ctx) and record.value is not None
    finally:
        ctx._state = None


def describe(failed: RecordError) -> str:
    """Give the error as one text, without what can't be written as UTF-8, not too long."""
    cause = failed.__cause__
    text = failed.reason if cause is None else f"{type(cause).__name__}: {cause}"
    text = f"{type(failed).__name__}: {text}".encode(errors="backslashreplace").decode()
    return text if len(text) <= ERROR_CHARS else text[: ERROR_CHARS - 1] + "…"
