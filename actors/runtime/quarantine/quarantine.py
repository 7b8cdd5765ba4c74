"""Parked messages: the one that its handler can't handle, and behind it all later ones of its key.

Other keys go on. The messages of a key stand in a line in the actor's store of parked messages, whose entries
`actors.runtime.quarantine.entries` describes.

Messages without a key stand in the line of the empty key, each because it failed itself: they have no order that a
later one would have to wait for. The first of a line was tried and has an error; those that
only wait behind it have none. What is parked is also sent to the dead-letter topic when it is parked, if it fits, for
programs that watch that; the store alone decides.

A line is retried or dropped by a command, which is a record of the actor's own input with the key in question: see
`actors.runtime.commands`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Protocol

import msgspec

from actors._core.keys import line_bounds, make_place, place_of
from actors._core.logs import Reminders, error_text, escaping
from actors.errors import NewerProgramError, RecordError, RecordTooLargeError, UnresolvedSchemaError, show_bytes
from actors.ports import InputRecord, Output, TopicPartition
from actors.runtime.cancellation import GivenBack
from actors.runtime.commands import (
    ALL,
    CONTROL_HEADER,
    Command,
    RefusedCommandError,
    control_of,
    is_over,
    written_by,
)
from actors.runtime.inputs.event_times import retime
from actors.runtime.message.context import Context
from actors.runtime.message.failures import PartlyFailedError
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord
from actors.runtime.message.outputs import (
    ACTOR_HEADER,
    ATTEMPTS_HEADER,
    DEAD_LETTER_HEADERS,
    ERROR_HEADER,
    METHOD_HEADER,
    ORIGIN_HEADER,
    RECORD_OVERHEAD_BYTES,
)
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.quarantine.entries import (
    AFTER_ALL,
    ENTRY,
    LostContentError,
    ParkedMessage,
    line_key_of,
    read_entry,
    remove_entry,
    size_of,
    summary_of,
    write_entry,
    write_failure,
)
from actors.runtime.spec import ActorSpec
from stores._core.overlay import Overlay
from stores._core.record import METADATA_BYTES, decode_metadata

logger = escaping(logging.getLogger(__name__))

RETRY_MESSAGES = 1_000
RETRY_BYTES = 16 * 1024 * 1024
"""One command hands no more to the handler than this, because it all goes into one commit; the rest stays parked."""
PAUSE_BYTES = 4 * 1024 * 1024
PAUSE_ENTRIES = 250
"""How much a command looks at before others get their turn."""
REMIND_S = 60.0
STEPS = 8
"""How many entries of a line are passed one by one."""
ERROR_CHARS = 2_000
RETRY_NEWER = "deploy the program that knows the type everywhere, then `parked retry`, or `parked drop`"


class ParkedEffects(Protocol):
    """Effects that were given up: `actors.runtime.outbox.effects`."""

    def retry(self, state: TaskState, raw_key: bytes, /, *, before: int | None) -> int:
        """Let the parked one of a key be called again, if input before that offset wrote it; return how many."""

    def drop(self, state: TaskState, raw_key: bytes, call_id: str | None, /) -> int:
        """Forget the parked one of a key, or the one with that id; return how many there were."""


class DroppedTimers(Protocol):
    """Timers that an operator may drop: `actors.runtime.timers`."""

    def drop(self, state: TaskState, raw_key: bytes, id: str | None, /) -> int:
        """Drop the timer of a key that has this id; return how many there were."""


class MessageHandling(Protocol):
    """The part of `actors.runtime.task.handling.Handling` with which a retry handles a parked message."""

    def is_ending(self) -> bool:
        """Return whether the task is asked to end."""

    async def once(self, state: TaskState, record: InputRecord, internal: InternalMessage | None = None, /) -> None:
        """Call the handler once."""

    def undone(
        self, state: TaskState, record: InputRecord, error: BaseException, sent: int, /, *, written: int
    ) -> RecordError:
        """Take back what a failed call wrote behind the first `written` writes, and sent; return why it failed."""

    def is_rejected(self, failed: RecordError, /) -> bool:
        """Return whether the error is one by which a handler refuses a message."""

    def reject(
        self, state: TaskState, record: InputRecord, failed: RecordError, internal: InternalMessage | None, /
    ) -> None:
        """Answer a request with the error that its handler refused it."""


class Parked:
    """The parked messages of a partition, from a takeover to the next; made with what is committed.

    `effects` and `timers` are the actor's, which are controlled by the same records; `meters` count refused commands.
    """

    def __init__(
        self,
        spec: ActorSpec,
        state: TaskState,
        effects: ParkedEffects | None = None,
        timers: DroppedTimers | None = None,
        meters: TaskMeters | None = None,
    ) -> None:
        self._spec = spec
        self._effects = effects
        self._timers = timers
        self._meters = meters
        self._commands = spec.commands
        self._topics = frozenset(spec.topics)
        self._reminders = Reminders(REMIND_S)
        self._store: Store[bytes, bytes] | None = spec.parked
        # By line, a sequence behind all of it. A line that isn't empty is always in it: the messages of a key are
        # handled one after the other, so what changes a line is known here whether or not it is merged yet.
        self._next: dict[bytes, int] = {}
        if self._store is not None:
            self._next.update(_lines(state.overlays[self._store]))

    def may_concern(self, record: InputRecord) -> bool:
        """Return whether the record may be a command or of a parked key. Hot: called for every record."""
        for name, _ in record.headers:
            if name == CONTROL_HEADER:
                return True
        if not self._next or record.key is None:
            return False
        return line_key_of(record.key) in self._next

    async def intercept(
        self, state: TaskState, record: InputRecord, handling: MessageHandling, internal: InternalMessage | None = None
    ) -> bool:
        """Carry out a command, or put a message behind the parked ones of its key.

        Returns:
            Whether that is done; if not, the message is to be handled.

        Raises:
            RecordError: the message has to wait and doesn't fit into the store.
        """
        told = control_of(record) if internal is None else None
        if told is not None:
            await self._obey(state, record, handling)
        elif record.key is None or not self._has_line(state, record.key):
            return False
        elif internal is None or _consumed(state, record, internal):
            try:
                self._append(state, record, None, 0)
            except RecordTooLargeError as error:
                state.scope.rollback()
                raise self._unparkable(state, record, internal, error) from error
        state.scope.release()
        return True

    def park(self, state: TaskState, record: InputRecord, failed: RecordError, attempts: int) -> None:
        """Park a message that can't be handled, and send it to the dead-letter topic if it fits there.

        Raises:
            RecordError: it doesn't fit into the store.
        """
        reason = describe(failed)
        if not isinstance(record, InternalRecord) and control_of(record) is not None:
            # What the broker refuses is what a retry led to. It is undone, so all are parked as before.
            self._note_refusal(state, record, failed)
            return
        try:
            self._append(state, record, reason, attempts)
        except RecordTooLargeError as error:
            state.scope.rollback()
            stopped = type(failed)(
                f"{failed.reason}; and it can't be parked: {self._no_room(record, error)}",
                topic=failed.topic,
                partition=failed.partition,
                offset=failed.offset,
                key=failed.key,
            )
            stopped.internal = failed.internal
            raise stopped from failed.__cause__
        logger.error(
            "%s offset %d key %s: parked at attempt %d, and later messages of its key wait behind it: %s. "
            "See `parked show %s`, then %s",
            state.source,
            record.offset,
            show_bytes(record.key),
            attempts,
            failed.reason,
            self._spec.name,
            RETRY_NEWER if isinstance(failed, NewerProgramError) else "`parked retry` or `parked drop`",
            exc_info=failed.__cause__,
        )
        try:
            send_dead_letter(self._spec, state, record, reason=reason, attempts=attempts)
        except RecordTooLargeError as error:
            logger.error("%s offset %d: parked without a dead letter: %s", state.source, record.offset, error)

    def _unparkable(
        self, state: TaskState, record: InputRecord, internal: InternalMessage | None, error: RecordTooLargeError
    ) -> RecordError:
        why = f"it has to wait behind a parked message of its key and can't: {self._no_room(record, error)}"
        unparkable = RecordError.about(record, state.source, why)
        unparkable.internal = None if internal is None else (self._spec.name, str(getattr(record, "id", None)))
        return unparkable

    def _no_room(self, record: InputRecord, error: RecordTooLargeError) -> str:
        size = size_of(record.key, record.value, record.headers)
        changelog = self._spec.changelogs.get("" if self._store is None else self._store.name)
        topic = "" if changelog is None else f" (topic {changelog.topic})"
        return f"it has {size} bytes, {len(record.key or b'')} of them key; {error}{topic}"

    def _has_line(self, state: TaskState, key: bytes) -> bool:
        if self._store is None:
            return False
        line_key, overlay = line_key_of(key), state.overlays[self._store]
        after = self._next.get(line_key)
        if after is None:
            return False
        # A look at all uncommitted keys for each message that waits would be too much.
        if overlay.get(make_place(ENTRY, line_key, after - 1)) is not None:
            return True
        return self._recount(overlay, line_key)

    def _recount(self, overlay: Overlay, line_key: bytes) -> bool:
        """Look where the line ends; tell whether there is one."""
        last = next(overlay.items(*line_bounds(ENTRY, line_key), reverse=True), None)
        if last is None:
            self._next.pop(line_key, None)
            return False
        self._next[line_key] = place_of(last[0])[1] + 1
        return True

    def _append(self, state: TaskState, record: InputRecord, error: str | None, attempts: int) -> None:
        if self._store is None:
            raise AssertionError(f"actor {self._spec.name} parks nothing")
        line_key = line_key_of(record.key or b"")
        sequence = self._next.get(line_key, 0)
        message = ParkedMessage(
            topic=state.source.topic,
            partition=state.source.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            id=getattr(record, "id", None),
            tag=getattr(record, "tag", state.message_tag),
            timer=getattr(record, "timer", None),
            has_event_time=getattr(record, "has_event_time", False),
            error=error,
            attempts=attempts,
            parked_at_ms=state.scope.now_ms,
            home_offset=state.home_offset if state.scope.input else None,
            method=getattr(record, "method", None) or msgspec.UNSET,
        )
        write_entry(self._store, state, line_key, sequence, message)
        self._next[line_key] = sequence + 1

    def _sequences(self, overlay: Overlay, line_key: bytes) -> range:
        """Return the sequences that entries of a line may have, without looking at more than its first."""
        first = next(overlay.items(*line_bounds(ENTRY, line_key)), None)
        return range(0) if first is None else range(place_of(first[0])[1], self._next.get(line_key, 0))

    async def _obey(self, state: TaskState, record: InputRecord, handling: MessageHandling) -> None:
        command = self._command(state, record)
        if command is None or command.what == "internal":
            return
        key = record.key or b""
        if command.what == "effect":
            count = self._control_effects(state, key, command)
        elif command.what == "timer":
            count = None if self._timers is None else self._timers.drop(state, key, command.id)
        elif self._store is None:
            count = None
        elif command.command == "retry":
            count = await self._retry(state, self._store, line_key_of(key), command, handling)
        else:
            count = await self._drop(state.overlays[self._store], line_key_of(key), command)
        where = f"{state.source} offset {record.offset}: {command.command} {command.what}s of {show_bytes(key)}"
        if count is None:
            logger.warning("%s is skipped: actor %s has none", where, state.actor)
        else:
            logger.info("%s: %d are done with", where, count)

    def _command(self, state: TaskState, record: InputRecord) -> Command | None:
        """Return a control record's command, None if it isn't for this actor or mustn't be obeyed."""
        try:
            command = self._commands.read(state.partition, record)
        except RefusedCommandError as error:
            self._refuse(state, record, error)
            return None
        if command.actor != self._spec.name:
            text = "%s offset %d: a control record for actor %r is skipped: this partition's actor is %s"
            logger.warning(text, state.source, record.offset, command.actor, self._spec.name)
            return None
        return command

    def _refuse(self, state: TaskState, record: InputRecord, error: RefusedCommandError) -> None:
        """Count a refused command, and name one a minute: a producer may write as many as it wants."""
        refused = 1
        if self._meters is not None:
            self._meters.refused_commands += 1
            refused = self._meters.refused_commands
        if self._reminders.is_due(state.scope.now_ms / 1000):
            text = "%s offset %d key %s: a control record is skipped: %s (%d such records so far)"
            logger.warning(text, state.source, record.offset, show_bytes(record.key), error, refused)

    def _control_effects(self, state: TaskState, key: bytes, command: Command) -> int | None:
        if self._effects is None:
            return None
        if command.command == "retry":
            return self._effects.retry(state, key, before=command.before)
        return self._effects.drop(state, key, None if command.id == ALL else command.id)

    async def _retry(
        self, state: TaskState, store: Store[bytes, bytes], key: bytes, command: Command, handling: MessageHandling
    ) -> int:
        """Hand the messages of a line to the handler, up to the first that fails; return how many were handled.

        If the command isn't carried out to its end, all that came of it is taken back.
        """
        sent = len(state.outputs)
        try:
            return await self._hand_out(state, store, key, command, handling)
        except BaseException:
            state.scope.rollback()
            del state.outputs[sent:]
            raise

    async def _hand_out(
        self, state: TaskState, store: Store[bytes, bytes], key: bytes, command: Command, handling: MessageHandling
    ) -> int:
        overlay, count, size = state.overlays[store], 0, 0
        for sequence in self._sequences(overlay, key):
            with_metadata = overlay.read(make_place(ENTRY, key, sequence))
            if with_metadata is None:
                continue
            if count >= RETRY_MESSAGES or size > RETRY_BYTES or is_over(command, _written_by(with_metadata)):
                break
            if handling.is_ending():
                # Nothing of the command is committed: the next owner carries it out.
                raise GivenBack
            raw = with_metadata[METADATA_BYTES:]
            size += len(raw) + summary_of(raw).size
            if not await self._again(state, store, (key, sequence, raw), handling):
                break
            count += 1
            await asyncio.sleep(0)
        return count

    async def _again(
        self, state: TaskState, store: Store[bytes, bytes], entry: tuple[bytes, int, bytes], handling: MessageHandling
    ) -> bool:
        """Handle a parked message, behind what the command led to before; tell whether it is done with."""
        key, sequence, raw = entry
        written = len(state.scope.undo)
        try:
            message = read_entry(state.overlays[store].get, key, sequence, raw)
        except LostContentError as error:
            # A partition that stopped here would never come to the command that drops it.
            source = state.source
            lost = RecordError(str(error), topic=source.topic, partition=source.partition, offset=-1, key=key)
            self._fail_again(state, store, entry, lost)
            return False
        internal_record, sent, before = message.record(), len(state.outputs), state.source
        if message.topic in self._topics:
            state.source = TopicPartition(message.topic, message.partition)

        def remove(ctx: Context) -> bool:
            remove_entry(state.overlays[store], key, sequence, raw)
            return True

        internal = InternalMessage(internal_record, remove, lambda: None, f"parked message {message.message_id}")
        try:
            try:
                retime(self._spec.event_times, state.source, internal_record)
                await handling.once(state, internal_record, internal)
            except UnresolvedSchemaError as error:
                state.scope.rollback(written)
                del state.outputs[sent:]
                # Asked once only: the message stays parked if the registry is down.
                await error.fetch()
                retime(self._spec.event_times, state.source, internal_record)
                await handling.once(state, internal_record, internal)
            if internal_record.is_dropped:
                self._bury(state, internal_record, message)
        except BaseException as error:
            failed = handling.undone(state, internal_record, error, sent, written=written)
            if handling.is_rejected(failed):
                handling.reject(state, internal_record, failed, internal)
                return True
            self._fail_again(state, store, entry, failed)
            return False
        finally:
            state.source = before
        return True

    def _bury(self, state: TaskState, record: InternalRecord, message: ParkedMessage) -> None:
        """Send a message that its retry found too late to the dead letters: it may have been in time when it came.

        Raises:
            RecordTooLargeError: it doesn't fit there, and has to stay parked.
        """
        reason = "it is too late for the windows of its actor, now that it is retried"
        send_dead_letter(self._spec, state, record, reason=reason, attempts=message.attempts + 1)
        text = "%s: the parked message %s of key %s goes to the dead letters: %s"
        logger.warning(text, state.source, message.message_id, show_bytes(record.key), reason)

    def _fail_again(
        self, state: TaskState, store: Store[bytes, bytes], entry: tuple[bytes, int, bytes], failed: RecordError
    ) -> None:
        key, sequence, raw = entry
        attempts, message_id, written = 0, summary_of(raw).message_id, len(state.scope.undo)
        try:
            attempts = write_failure(store, state, key, sequence, raw, describe(failed))
        except RecordTooLargeError:
            state.scope.rollback(written)
            logger.exception("%s: no room to note why %s failed", state.source, message_id)
        logger.error(
            "%s: the parked message %s of key %s failed again, at attempt %d: %s",
            state.source,
            message_id,
            show_bytes(key),
            attempts,
            failed.reason,
            exc_info=failed.__cause__,
        )

    async def _drop(self, overlay: Overlay, key: bytes, command: Command) -> int:
        count, looked, size = 0, 0, 0
        for sequence in self._sequences(overlay, key):
            with_metadata = overlay.read(make_place(ENTRY, key, sequence))
            looked, size = looked + 1, size + len(with_metadata or b"")
            if size > PAUSE_BYTES or looked > PAUSE_ENTRIES:
                looked = size = 0
                await asyncio.sleep(0)
            if with_metadata is None:
                continue
            if is_over(command, _written_by(with_metadata)):
                break
            raw = with_metadata[METADATA_BYTES:]
            if command.id in (None, ALL) or summary_of(raw).message_id == command.id:
                remove_entry(overlay, key, sequence, raw)
                count += 1
                if command.id != ALL:
                    break
        return count

    def _note_refusal(self, state: TaskState, record: InputRecord, failed: RecordError) -> None:
        command, key, store = self._command(state, record), line_key_of(record.key or b""), self._store
        if command is None or command.command != "retry" or store is None:
            logger.error("%s offset %d: a control record is skipped: %s", state.source, record.offset, failed.reason)
            return
        first = next(state.overlays[store].items(*line_bounds(ENTRY, key)), None)
        if first is not None:
            self._fail_again(state, store, (key, place_of(first[0])[1], first[1]), failed)


def _written_by(with_metadata: bytes) -> int:
    return written_by(decode_metadata(with_metadata), summary_of(with_metadata[METADATA_BYTES:]).home_offset)


def send_dead_letter(
    spec: ActorSpec, state: TaskState, record: InputRecord, *, actor: str = "", reason: str, attempts: int
) -> None:
    """Send a message that can't be handled to the actor's dead-letter topic, if it has one, in the commit.

    `actor` is whom it can't be handled for, if that isn't the actor itself.

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
        (ACTOR_HEADER, (actor or spec.name).encode()),
    ]
    if isinstance(record, InternalRecord) and record.method is not None:
        headers.append((METHOD_HEADER, record.method.encode()))
    size = size_of(record.key, record.value, headers)
    if size + RECORD_OVERHEAD_BYTES > topic.max_record_bytes:
        raise RecordTooLargeError(
            f"{topic.name}: with its headers it has {size} bytes and doesn't fit into the topic's "
            f"max.message.bytes={topic.max_record_bytes}: raise that and restart the worker"
        )
    state.outputs.append(Output(topic.name, None, record.key, record.value, headers, None))
    state.output_bytes += size + 64


def _lines(overlay: Overlay) -> Iterator[tuple[bytes, int]]:
    """Return each line's key, with the sequence behind it.

    Short lines are read through and the rest of long ones is skipped: a search costs as much as many steps, and a
    producer can make as many lines as there are keys.
    """
    start: bytes | None = ENTRY
    while start is not None:
        rows, start = overlay.items(start, AFTER_ALL), None
        key, after, steps = b"", 0, 0
        for place, _ in rows:
            found, sequence = place_of(place)
            if steps and found != key:
                yield key, after
                steps = 0
            key, after, steps = found, sequence + 1, steps + 1
            if steps >= STEPS:
                bounds = line_bounds(ENTRY, key)
                last, _ = next(overlay.items(*bounds, reverse=True))
                after, start = place_of(last)[1] + 1, bounds[1]
                break
        if steps:
            yield key, after


def _consumed(state: TaskState, record: InputRecord, internal: InternalMessage) -> bool:
    """Consume an internal message that isn't handled now; tell whether there is something of it to handle later."""
    ctx = Context(state, record, None, record.key or b"")
    try:
        return internal.consume(ctx)
    finally:
        ctx._state = None


def describe(failed: RecordError) -> str:
    """Return the error as one text, not too long."""
    cause = failed.__cause__
    is_partial = isinstance(cause, PartlyFailedError)
    text = f"{type(failed).__name__}: {failed.reason if cause is None or is_partial else error_text(cause)}"
    return text if len(text) <= ERROR_CHARS else text[: ERROR_CHARS - 1] + "…"
