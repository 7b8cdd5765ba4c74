"""The errors that name the record they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from actors._core.event_time import utc_text
from actors._core.logs import Reminders, error_text, text_of
from actors._core.outside import EXITS
from actors.errors import (
    ActorsError,
    AskTimeoutError,
    HandlerFailedError,
    LateRecordError,
    NewerProgramError,
    NewerVersionError,
    RecordError,
    RefusedRecordError,
    RestoreError,
    TaskError,
    UndecodableRecordError,
    UnknownTypeError,
    show_bytes,
)
from actors.ports import InputRecord, Output, TopicPartition
from actors.runtime.cancellation import GivenBack, is_cancelled
from stores.errors import StoreError

NULL_KEY = "the key is null, and the actor's state lives with keys"
NULL_VALUE = "the value is null, and the actor takes no tombstones (@app.actor(..., tombstones=True))"
REMIND_S = 60.0
"""How often an error is logged that each try meets again."""
_NEWER = b'{"v":'
"""How the entries of newer releases begin in the stores of timers, effects, parked messages and answers.

The entries of this release are JSON objects without a field `v`. A release that changes their meaning writes `v` first.
An entry that begins with it is neither acted on nor removed, and its partition stops.
"""


class PartlyFailedError(ActorsError):
    """A message can't be handled for some of the actors that it is for.

    If it is skipped, it is for these alone.

    Attributes:
        failures: why, by actor.
        kept: what was sent for the others.
    """

    def __init__(self, failures: Mapping[str, Exception], kept: Sequence[Output]) -> None:
        self.failures = failures
        self.kept = kept
        super().__init__("; ".join(map(text_of, failures.values())))


def as_record_error(
    error: BaseException, actor: str, source: TopicPartition, record: InputRecord, *, is_ending: bool
) -> RecordError:
    """Return the handler's error as an error that names the record.

    Raises:
        TaskError: it asked a question, and this program isn't allowed to: that is no failure of the message's.
        GivenBack: it is a `CancelledError` while the task ends, and nobody cancelled that.
        CancelledError: the task ends and was cancelled, whatever the handler made of that.
        BaseException: `error` itself, if it is the store's, or the end of the task or of the process.
    """
    if isinstance(error, RecordError):
        return error
    newer = newer_in(error)
    if newer is not None:
        return newer_program(source, record, newer)
    unanswered = error.__cause__ if isinstance(error, AskTimeoutError) else error
    if isinstance(unanswered, TaskError) and unanswered.missing:
        raise unanswered
    is_end = is_ending and isinstance(error, asyncio.CancelledError | GeneratorExit)
    if is_end and not isinstance(error, GivenBack | GeneratorExit) and not is_cancelled():
        # Something that the handler waited for ended with the task.
        raise GivenBack from error
    if is_end or isinstance(error, (StoreError, *EXITS)):
        raise error
    if is_ending and is_cancelled():
        # A handler that is cut short may fail as it cleans up. Its message isn't to blame: the next owner handles it.
        raise asyncio.CancelledError from error
    timer = getattr(record, "timer", None)
    by = getattr(record, "what", "") if timer is None else f"its timer {timer!r}"
    called = f", called by {by}," if by else ""
    if isinstance(error, PartlyFailedError):
        # What failed is named by the actors that the user wrote, not by the one that reads the topic for them.
        reason = text_of(error)
    else:
        reason = f"the handler of actor {actor}{called} raised {error_text(error)}"
    failed = HandlerFailedError.about(record, source, reason)
    failed.__cause__ = error
    return failed


def failures_of(actor: str, failed: RecordError, source: TopicPartition, record: InputRecord) -> dict[str, RecordError]:
    """Return by actor why a message can't be handled: all of it by `actor`, if not only some others' parts failed."""
    cause = failed.__cause__
    if not isinstance(cause, PartlyFailedError):
        return {actor: failed}
    found: dict[str, RecordError] = {}
    for name, error in cause.failures.items():
        found[name] = HandlerFailedError.about(record, source, text_of(error))
        found[name].__cause__ = error
    return found


def lasting(error: BaseException) -> str:
    """Return the text of an error that each task meets at each try until somebody acts, "" if it isn't one.

    It is one for a missing permission, or a log that can't be read.
    """
    text = error.missing if isinstance(error, TaskError) else ""
    return text or (str(error) if isinstance(error, RestoreError) else "")


def is_repeated(error: BaseException, reminders: Reminders, now_s: float) -> bool:
    """Return whether a lasting error was logged lately; otherwise note that it is now."""
    text = lasting(error)
    return bool(text) and not reminders.is_due(now_s, text)


def newer_in(error: BaseException) -> NewerVersionError | None:
    """Return the error of a newer program's data that an error is, or was raised in place of; None if there is none."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        if isinstance(found, NewerVersionError):
            return found
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
    return None


def newer_program(source: TopicPartition, record: InputRecord, error: NewerVersionError) -> NewerProgramError:
    """Return the error for a record that leads to data of a newer program."""
    failed = NewerProgramError.about(record, source, text_of(error))
    failed.is_message = isinstance(error, UnknownTypeError)
    failed.__cause__ = error
    return failed


def undecodable(source: TopicPartition, record: InputRecord, error: BaseException | str) -> RecordError:
    """Return the error for a record that isn't what its topic declares; `error` is what was raised, or the reason.

    A message of a type that only a newer program knows isn't the record's fault: see `NewerProgramError`.

    Raises:
        BaseException: `error` itself, if it is the end of the process.
    """
    if isinstance(error, EXITS):
        raise error
    if isinstance(error, NewerVersionError):
        return newer_program(source, record, error)
    reason = error if isinstance(error, str) else f"it doesn't decode: {text_of(error)}"
    return UndecodableRecordError.about(record, source, reason)


def wrong_timestamp(source: TopicPartition, record: InputRecord, reason: str) -> RecordError:
    """Return the error for a record whose timestamp windows can't go by."""
    return UndecodableRecordError.about(record, source, reason)


def late_record(ctx: Any, actor: str, stores: str, stream_ms: int) -> RecordError:
    """Return the error for a record that came too late for an actor with late="stop"."""
    at_ms = ctx._record.timestamp
    reason = (
        f"it is too late for {stores} of actor {actor}: its time {utc_text(at_ms)} is {(stream_ms - at_ms) / 1000:g} s "
        f'behind stream time {utc_text(stream_ms)}, and the actor has late="stop"'
    )
    return LateRecordError.about(ctx._record, ctx._source, reason)


def refused(
    actor: str, source: TopicPartition, record: InputRecord, error: Exception, *, is_final: bool
) -> RefusedRecordError:
    """Return the error for a record whose effects the broker refuses; `is_final`: giving it up is refused too."""
    what = "that its on_error policy gave it up" if is_final else f"what the handler of actor {actor} wrote or sent"
    failed = RefusedRecordError.about(record, source, f"the broker refuses {what}: {text_of(error)}")
    failed.is_final = is_final
    return failed


def cause_of(failed: RecordError) -> BaseException:
    """Return what the handler raised, or the error itself if no handler did."""
    is_handlers = isinstance(failed, HandlerFailedError) and failed.__cause__ is not None
    return failed.__cause__ or failed if is_handlers else failed


def is_newer(raw: bytes) -> bool:
    """Return whether a newer release wrote an entry."""
    return raw.startswith(_NEWER)


def newer_entry(what: str, raw: bytes) -> NewerVersionError:
    """Return the error for an entry of a newer release; `what` it is, as in "a timer"."""
    return NewerVersionError(f"{what} that this release can't read, run the one that wrote it: {show_bytes(raw)}")
