"""Event times: records get the time in a field of their value before they wait for their task.

So the order between inputs, stream time, windows, `ctx.timestamp_ms` and the timestamps of outputs all go by it. Where
no input of an actor declares `timestamp=`, nothing here is called.

A value is decoded once more for it. A record without a value, and an admin command, keep their own timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from actors._core.event_time import EventTime, NoTimeError
from actors.errors import RecordError, UnresolvedSchemaError
from actors.ports import InputRecord, RefusedRecord, TopicPartition
from actors.runtime.commands import is_command
from actors.runtime.message.failures import undecodable, wrong_timestamp
from actors.runtime.message.internal_messages import InternalRecord


@dataclass(slots=True)
class TimedRecord:
    """A record with the time of its value; `written_ms` is the timestamp that it came with."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    written_ms: int


class EventTimes:
    """The times of a task's inputs, some of which go by the records' own timestamps."""

    def __init__(self, times: Mapping[str, EventTime], sources: Sequence[TopicPartition]) -> None:
        self._inputs = [(source, times.get(source.topic)) for source in sources]

    def timed(self, index: int, records: Sequence[InputRecord]) -> Sequence[InputRecord]:
        """Return records of an input with the times of their values."""
        source, time = self._inputs[index]
        return records if time is None else [self._timed(source, time, record) for record in records]

    def _timed(self, source: TopicPartition, time: EventTime, record: InputRecord) -> InputRecord:
        if record.value is None or isinstance(record, RefusedRecord) or is_command(record):
            return record
        try:
            at_ms = time_of(time, source, record)
        except RecordError as error:
            # Before all others, so that it moves no time, and its turn comes as soon as it is next in its input.
            return RefusedRecord(offset=record.offset, original=record, error=error, key=record.key, timestamp=0)
        return TimedRecord(record.offset, at_ms, record.key, record.value, record.headers, record.timestamp)


def time_of(time: EventTime, source: TopicPartition, record: InputRecord) -> int:
    """Return the time of a record's value, which isn't None.

    Raises:
        RecordError: the value doesn't decode, or its time can't be told.
        UnresolvedSchemaError: its schema isn't here yet.
    """
    try:
        return time.of(record.headers, record.value or b"")
    except UnresolvedSchemaError:
        raise
    except NoTimeError as error:
        raise wrong_timestamp(source, record, str(error)) from error
    except BaseException as error:
        raise undecodable(source, record, error) from error


def retime(times: Mapping[str, EventTime], source: TopicPartition, record: InternalRecord) -> None:
    """Set the time of a message that was parked as an input record by its value: the function may have been mended.

    Raises:
        RecordError: its time can't be told.
    """
    time = times.get(source.topic)
    if time is not None and record.id is None and record.value is not None:
        record.timestamp = time_of(time, source, record)


def with_content(record: InputRecord, value: bytes, without: str) -> InputRecord:
    """Return a record with another value, and without the header that had a part of it."""
    headers = [(name, data) for name, data in record.headers if name != without]
    if isinstance(record, InternalRecord):
        return replace(record, value=value, headers=headers)
    return TimedRecord(record.offset, record.timestamp, record.key, value, headers, written_ms(record))


def written_ms(record: InputRecord) -> int:
    """Return the timestamp that a record came with, Unix milliseconds."""
    if isinstance(record, RefusedRecord) and record.original is not None:
        record = record.original
    own: int = getattr(record, "written_ms", record.timestamp)
    return own
