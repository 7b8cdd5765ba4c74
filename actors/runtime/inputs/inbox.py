"""The records that wait for a task, and the order in which its inputs are handled.

Each input is in offset order. Between inputs, the record with the lowest timestamp among the heads goes first, and of
equal ones that of the input that was declared first (KIP-695). Of an input that has nothing here no timestamp is known.
While it has more on the broker, the others' records wait for it, however long that takes: they wait for a fetch, which
their own full queues don't hold up. `max_idle_s` adds a wait for an input that is at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, repeat
from operator import itemgetter
from typing import TypeVar

from actors._core.logs import Reminders, error_text, escaping
from actors._core.outside import EXITS
from actors._core.partitioner import CRC32, MURMUR2
from actors.errors import MisplacedRecordError, show_bytes
from actors.ports import Clock, InputRecord, RefusedRecord
from actors.runtime.commands import is_command
from actors.runtime.inputs.event_times import EventTimes
from actors.runtime.inputs.progress import InputProgress, Run
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec

logger = escaping(logging.getLogger(__name__))

Input = TypeVar("Input")
Part = tuple[Input, Sequence[InputRecord]]

MERGED_RECORDS = 256
"""How many records of each input are put in order at a time."""
REMIND_S = 60.0
LOOK_AGAIN_S = 0.02
"""How soon a task looks again at an input that it waits for: one comes to its end without a record if all that is left
are markers and aborted transactions."""


class InputQueue:
    """The records of one input that wait.

    Attributes:
        batches: what was fetched, in offset order; of the first one only the records from `start` on wait.
        queued: how many records wait.
        delivered: the offset behind the last record that was put in.
        left_at: where the source stood when the task was asked to stop: what it delivers after that is dropped.
    """

    def __init__(self) -> None:
        self.batches: deque[Sequence[InputRecord]] = deque()
        self.start = 0
        self.queued = 0
        self.delivered = 0
        self.left_at: int | None = None

    def records(self) -> Iterator[InputRecord]:
        """Return the records that wait, and leave them there."""
        return islice(chain.from_iterable(self.batches), self.start, None)

    def first(self) -> Sequence[InputRecord]:
        """Return the first records that wait, of one batch and `MERGED_RECORDS` at most, and leave them there."""
        return self.batches[0][self.start : self.start + MERGED_RECORDS]

    def remove(self, count: int) -> None:
        """Remove so many of the first batch's records."""
        self.start += count
        if self.start == len(self.batches[0]):
            self.batches.popleft()
            self.start = 0


class Inbox:
    """The records that wait for a task: filled by the worker and by what runs beside the task, emptied by the task.

    `say_has_room` is called when a queue was full and has room again.

    Attributes:
        queues: one for each input.
        is_open: whether records are taken: from a takeover until its work is dropped.
        stopping: the task is to commit what it has handled and to end.
        is_paused: nothing is handled or fetched: see `pause`.
        hurries: what runs isn't waited for any more.
        doubt: why the task has to take over again, None if it needn't.
        is_last: the worker itself stops, and may not come back soon.
        event_times: gives records the times of their values; None if no input is declared so.
    """

    def __init__(self, limit: int, say_has_room: Callable[[], None]) -> None:
        self.queues = [InputQueue()]
        self.is_open = False
        self.stopping = False
        self.is_paused = False
        self.hurries = False
        self.doubt: str | None = None
        self.is_last = False
        self.event_times: EventTimes | None = None
        self._limit = limit
        self._say_has_room = say_has_room
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        """Return whether a record can be taken now."""
        return bool(self.queues[0].batches)

    @property
    def queued(self) -> int:
        """How many records wait."""
        return sum(queue.queued for queue in self.queues)

    @property
    def wait_s(self) -> float:
        """How long nothing of what waits can be taken; infinity if nothing waits."""
        return float("inf")

    def has_room(self, index: int) -> bool:
        """Return whether records of an input should be fetched for the task."""
        return self.is_open and not (self.stopping or self.is_paused) and self.queues[index].queued < self._limit

    def put(self, index: int, records: Sequence[InputRecord]) -> None:
        """Add records in offset order. What comes while the task isn't running is dropped, and fetched again later."""
        if not self.is_open or self.stopping:
            return
        if self.event_times is not None:
            records = self.event_times.timed(index, records)
        queue = self.queues[index]
        queue.batches.append(records)
        queue.delivered = records[-1].offset + 1
        queue.queued += len(records)
        self._wake.set()

    def take(self) -> list[tuple[int, Sequence[InputRecord]]]:
        """Take the records that come next, before it has to be looked again what waits: by input's place, a part each.

        `take_in_order` puts several parts in order.
        """
        queue = self.queues[0]
        records = queue.batches.popleft()
        self._took(queue, len(records))
        return [(0, records)]

    def _took(self, queue: InputQueue, count: int) -> None:
        was_full, queue.queued = queue.queued >= self._limit, queue.queued - count
        if was_full and queue.queued < self._limit:
            self._say_has_room()

    def open(self, offsets: Sequence[int]) -> None:
        """Take records from these offsets on."""
        self.is_open, self.doubt = True, None
        for queue, offset in zip(self.queues, offsets, strict=True):
            queue.delivered = offset

    def clear(self) -> None:
        """Drop all records, which are fetched again, and take none until the next takeover."""
        self.is_open = False
        for queue in self.queues:
            queue.batches.clear()
            queue.start = queue.queued = 0

    def pause(self, is_paused: bool) -> None:
        """Begin or end a pause. What waits stays here."""
        self.is_paused = is_paused
        self.wake()
        if not is_paused:
            self._say_has_room()

    def wake(self) -> None:
        """End a wait."""
        self._wake.set()

    async def wait(self, seconds: float | None) -> bool:
        """Wait for the next `wake`, at most so long; tell whether it came. One that came before doesn't count."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        return self._wake.is_set()


class MergedInbox(Inbox):
    """The inbox of a task with several inputs.

    `has_more` returns whether an input that has nothing here may not be at its end; `monotonic` returns seconds.
    Of records of one timestamp, that of the input with the lowest of `turns` goes first.
    """

    def __init__(
        self,
        limit: int,
        say_has_room: Callable[[], None],
        *,
        turns: Sequence[int],
        max_idle_s: float,
        has_more: Callable[[int], bool],
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(limit, say_has_room)
        self.queues = [InputQueue() for _ in turns]
        self._turns = turns
        self._max_idle_s = max_idle_s
        self._has_more = has_more
        self._monotonic = monotonic
        self._idle_since_s: dict[int, float] = {}

    def pause(self, is_paused: bool) -> None:
        """Begin or end a pause; no input has been waited for in it."""
        self._idle_since_s = {}
        super().pause(is_paused)

    def __bool__(self) -> bool:
        """Return whether a record can be taken now."""
        return self.wait_s <= 0.0

    @property
    def wait_s(self) -> float:
        """How long nothing of what waits can be taken; infinity if nothing waits."""
        empty = [index for index, queue in enumerate(self.queues) if not queue.batches]
        if len(empty) == len(self.queues):
            self._idle_since_s = {}
            return float("inf")
        for index in empty:
            if self._has_more(index):
                self._idle_since_s = {}
                return LOOK_AGAIN_S
        if not empty or self._max_idle_s <= 0.0:
            self._idle_since_s = {}
            return 0.0
        now_s = self._monotonic()
        # Each input is waited for by itself: others may have been empty for longer.
        self._idle_since_s = {index: self._idle_since_s.get(index, now_s) for index in empty}
        return max(0.0, max(self._idle_since_s.values()) + self._max_idle_s - now_s)

    def take(self) -> list[tuple[int, Sequence[InputRecord]]]:
        """Return records up to the end of one input's queue, behind which its timestamps are unknown."""
        waiting = [(index, queue, queue.first()) for index, queue in enumerate(self.queues) if queue.batches]
        ordered = [(places_of(records), self._turns[index]) for index, _, records in waiting]
        last_ms, last_turn = min((places[-1], turn) for places, turn in ordered)
        parts: list[tuple[int, Sequence[InputRecord]]] = []
        for (index, queue, records), (places, turn) in zip(waiting, ordered, strict=True):
            count = bisect_right(places, last_ms) if turn <= last_turn else bisect_left(places, last_ms)
            if count:
                queue.remove(count)
                self._took(queue, count)
                parts.append((index, records[:count]))
        return parts


class PlacedRecords:
    """Looks whether records of an input are in the partition where their topic's partitioner puts their keys.

    A producer with another partitioner, as librdkafka has by default, puts a key into another partition than asks,
    queries and other producers do; so does one that knows of new partitions. Then two tasks hold a part of the key's
    state each, and nothing else would tell.

    All records are compared, a whole batch side by side before its first record is handled: 0.3 µs a record in batches
    of 500. A sample would find a wrong producer too, but after some of its records were handled without the key's
    state.
    """

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
                error, at_ms = self._error(record, home), record.timestamp
                return [*records[:place], RefusedRecord(offset=record.offset, error=error, stops=True, timestamp=at_ms)]
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
        if homes.count(here) == len(homes):
            return []
        return [(place, home) for place, home in zip(places, homes, strict=True) if home != here]

    def _is_placed(self, record: InputRecord) -> bool:
        """Return whether producers put a record without a key, or with an empty one, into a certain partition."""
        return record.key is not None and self._partitioner.places_empty

    def _homes(self, keys: Sequence[bytes]) -> Sequence[int | BaseException]:
        """Return the partitions of keys; where the partitioner raises, its error."""
        try:
            return self._partitioner.homes(keys, self._spec.partition_count)
        except EXITS:
            raise
        except BaseException as error:
            return [error] if len(keys) == 1 else [home for key in keys for home in self._homes([key])]

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


def take_in_order(
    inbox: Inbox, inputs: Sequence[InputProgress], placed: Sequence[PlacedRecords], turns: Sequence[int]
) -> Sequence[Run]:
    """Take what comes next; behind a record that stops the partition nothing of its input comes.

    Args:
        inbox: what waits.
        inputs: the inputs.
        placed: of each input what looks at its records; empty if nothing does.
        turns: of each input its turn among records of one timestamp; the lowest goes first.
    """
    parts = [(inputs[index], placed[index].checked(records) if placed else records) for index, records in inbox.take()]
    return parts if len(parts) == 1 else merged(parts, [turns[one.index] for one, _ in parts])


def merged(parts: Iterable[Part[Input]], turns: Iterable[int]) -> list[Part[Input]]:
    """Return the records of several inputs in order: those that follow each other in one input are together."""
    timeline: list[tuple[int, Input, InputRecord]] = []
    for _, (one, records) in sorted(zip(turns, parts, strict=True), key=_first):
        timeline += zip(places_of(records), repeat(one), records)
    # Stable: of one timestamp, the parts stay in the order of their turns.
    timeline.sort(key=_first)
    runs: list[Part[Input]] = []
    last, run = None, list[InputRecord]()
    for _, one, record in timeline:
        if one is not last:
            last, run = one, []
            runs.append((one, run))
        run.append(record)
    return runs


_first = itemgetter(0)


def places_of(records: Iterable[InputRecord]) -> list[int]:
    """Return by which times records of an input go among those of others: none goes before an earlier one."""
    times_ms = [record.timestamp for record in records]
    # Hot: most come in order.
    return times_ms if times_ms == sorted(times_ms) else list(accumulate(times_ms, max))
