"""The errors that name the record they are about."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from actors.errors import HandlerFailedError, RecordError, RefusedRecordError, UndecodableRecordError
from actors.ports import InputRecord, TopicPartition
from stores.errors import StoreError


def raise_as_handlers(
    error: BaseException, actor: str, source: TopicPartition, record: InputRecord, *, is_ending: bool
) -> NoReturn:
    """Raise what a handler raised: as its error, unless it is the store's, the record's, or the end of the task."""
    if isinstance(error, StoreError | RecordError):
        raise error
    if isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and not is_ending):
        reason = f"the handler of actor {actor} raised {type(error).__name__}: {error}"
        raise HandlerFailedError(
            reason, topic=source.topic, partition=source.partition, offset=record.offset, key=record.key
        ) from error
    raise error


def undecodable(source: TopicPartition, record: InputRecord, error: Exception | None) -> UndecodableRecordError:
    """Give the error for a record that isn't what its topic declares; `error` None if only a null is in the way."""
    if record.key is None or record.value is None:
        reason = "the key is null" if record.key is None else "the value is null"
    else:
        reason = f"it doesn't decode: {error}"
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
