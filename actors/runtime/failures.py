"""The errors that name the record they are about."""

from __future__ import annotations

import asyncio

from actors.errors import (
    HandlerFailedError,
    RecordError,
    RefusedRecordError,
    UndecodableRecordError,
    UnreadableRecordError,
)
from actors.ports import InputRecord, TopicPartition, Unreadable
from stores.errors import StoreError


def as_record_error(
    error: BaseException, actor: str, source: TopicPartition, record: InputRecord, *, is_ending: bool
) -> RecordError:
    """Give what a handler raised as an error that names the record.

    Raises:
        BaseException: `error` itself, if it is the store's, or the end of the task.
    """
    if isinstance(error, RecordError):
        return error
    is_handlers = isinstance(error, Exception) and not isinstance(error, StoreError)
    if not (is_handlers or (isinstance(error, asyncio.CancelledError) and not is_ending)):
        raise error
    timer = getattr(record, "timer", None)
    called = "" if timer is None else f", called by its timer {timer!r},"
    reason = f"the handler of actor {actor}{called} raised {type(error).__name__}: {error}"
    failed = HandlerFailedError(
        reason, topic=source.topic, partition=source.partition, offset=record.offset, key=record.key
    )
    failed.__cause__ = error
    return failed


def undecodable(source: TopicPartition, record: InputRecord, error: Exception | None) -> UndecodableRecordError:
    """Give the error for a record that isn't what its topic declares; `error` None if only a null is in the way."""
    if error is not None:
        reason = f"it doesn't decode: {error}"
    elif record.key is None and record.value is not None:
        reason = "the key is null, and the actor's state lives with keys"
    else:
        reason = "the value is null"
    return UndecodableRecordError(
        reason, topic=source.topic, partition=source.partition, offset=record.offset, key=record.key
    )


def refused(actor: str, source: TopicPartition, record: InputRecord, error: Exception) -> RefusedRecordError:
    """Give the error for a record whose effects the broker refuses."""
    return RefusedRecordError(
        f"the broker refuses what the handler of actor {actor} wrote or sent: {error}",
        topic=source.topic,
        partition=source.partition,
        offset=record.offset,
        key=record.key,
    )


def unreadable(source: TopicPartition, record: Unreadable) -> UnreadableRecordError:
    """Give the error for what the client couldn't read."""
    key = None if record.original is None else record.original.key
    failed = UnreadableRecordError(
        record.reason, topic=source.topic, partition=source.partition, offset=record.offset, key=key
    )
    failed.remedy = record.remedy
    return failed
