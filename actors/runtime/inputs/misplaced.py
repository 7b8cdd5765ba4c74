"""Looks whether records are in the partition where their topic's partitioner puts their keys.

A producer with another partitioner, as librdkafka has by default, puts a key into another partition than asks, queries
and other producers do; so does one that knows of new partitions. Then two tasks hold a part of the key's state each,
and nothing else would tell.

All records are compared, a whole batch side by side before its first record is handled: 0.3 µs a record in batches of
500. A sample would find a wrong producer too, but after some of its records were handled without the key's state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from actors._core.logs import Reminders, error_text, escaping
from actors._core.outside import EXITS
from actors._core.partitioner import CRC32, MURMUR2
from actors.errors import MisplacedRecordError, show_bytes
from actors.ports import Clock, InputRecord
from actors.runtime.commands import is_command
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec

logger = escaping(logging.getLogger(__name__))

REMIND_S = 60.0


@dataclass(slots=True)
class MisplacedRecord:
    """Stands in the place of a record that stops its partition; without a key and a value it is no message."""

    offset: int
    error: MisplacedRecordError
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class PlacedRecords:
    """Looks at the records of one input partition, from a takeover to the next."""

    def __init__(self, spec: ActorSpec, progress: InputProgress, meters: TaskMeters, clock: Clock) -> None:
        self._spec = spec
        self._source = progress.source
        self._partitioner = progress.spec.partitioner
        self._meters = meters
        self._clock = clock
        self._completed = progress.completed
        self._is_stopped = False
        self._reminders = Reminders(REMIND_S)

    def checked(self, records: Sequence[InputRecord]) -> Sequence[InputRecord]:
        """Return the records; from the first one on that stops the partition only that, and nothing afterwards."""
        if self._is_stopped:
            return ()
        for place, home in self._misplaced(records):
            record = records[place]
            if record.offset < self._completed.next_offset or record.offset in self._completed.finished:
                continue
            if is_command(record):
                # Sent to where the parked message is.
                continue
            self._meters.misplaced += 1
            if self._spec.misplaced == "stop":
                self._is_stopped = True
                return [*records[:place], MisplacedRecord(record.offset, self._error(record, home), record.timestamp)]
            self._warn(record, home)
        return records

    def _misplaced(self, records: Sequence[InputRecord]) -> list[tuple[int, int | BaseException]]:
        """Return place and right partition of what is in a wrong one, or why the partitioner can't tell."""
        here = self._source.partition
        keys = [record.key or b"" for record in records]
        places: Sequence[int] = range(len(keys))
        if not all(keys):
            places = [place for place in places if keys[place] or self._is_placed(records[place])]
            keys = [keys[place] for place in places]
        homes = self._homes(keys)
        if homes is None:
            return self._one_by_one(zip(places, keys, strict=True))
        if homes.count(here) == len(homes):
            return []
        return [(place, home) for place, home in zip(places, homes, strict=True) if home != here]

    def _homes(self, keys: Sequence[bytes]) -> Sequence[int] | None:
        """Return the partitions of keys, None if the partitioner raises for one of them."""
        try:
            return self._partitioner.homes(keys, self._spec.partition_count)
        except EXITS:
            raise
        except BaseException:
            return None

    def _is_placed(self, record: InputRecord) -> bool:
        """Return whether producers put a record without a key, or with an empty one, into a certain partition."""
        return record.key is not None and self._partitioner.places_empty

    def _one_by_one(self, keyed: Iterable[tuple[int, bytes]]) -> list[tuple[int, int | BaseException]]:
        found: list[tuple[int, int | BaseException]] = []
        for place, key in keyed:
            home: int | BaseException
            try:
                home = self._partitioner.home(key, self._spec.partition_count)
            except EXITS:
                raise
            except BaseException as error:
                home = error
            if home != self._source.partition:
                found.append((place, home))
        return found

    def _error(self, record: InputRecord, home: int | BaseException) -> MisplacedRecordError:
        key, source = record.key or b"", self._source
        failed = MisplacedRecordError.about(record, source, self._reason(key, home))
        fitting = [one for one in (MURMUR2, CRC32) if one.home(key, self._spec.partition_count) == source.partition]
        hint = f" ({fitting[0].name} puts this key where it is)" if fitting else ""
        failed.remedy = (
            f'Declare how all its producers partition, app.topic(..., partitioner="murmur2", "crc32" or a function)'
            f"{hint}, or have the producers use {self._partitioner.name} (librdkafka: "
            "partitioner=murmur2_random), or handle such records where they are, @app.actor(..., "
            'misplaced="warn"). If the topic was given partitions, copy its records into a new topic for a new app id'
        )
        return failed

    def _reason(self, key: bytes, home: int | BaseException) -> str:
        name, count = self._partitioner.name, self._spec.partition_count
        if isinstance(home, BaseException):
            return f"the topic's partitioner {name} raised {error_text(home)}"
        return (
            f"it is in partition {self._source.partition}, and its key belongs in partition {home} of {count} "
            f"according to the topic's partitioner, {name}. The key would have state in both"
        )

    def _warn(self, record: InputRecord, home: int | BaseException) -> None:
        if self._reminders.is_due(self._clock.monotonic()):
            logger.warning(
                "%s offset %d key %s: %s; %d such records were found so far, and handled",
                self._source,
                record.offset,
                show_bytes(record.key),
                self._reason(record.key or b"", home),
                self._meters.misplaced,
            )
