"""The part of a recompute that runs inside Spark's Python workers: one replay a partition of the inputs.

Records come in the order in which they are handled and are handed to the app one after the other. They come as rows
and not as Arrow batches because Spark wants pandas on every executor for those. Needs no pyspark.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from spark_replay.apps import THERE, load_replayer
from spark_replay.errors import RecomputeError, ReplayError
from spark_replay.session import first_line

INPUT_COLUMNS = ("partition", "input", "offset", "timestamp_ms", "key", "value", "headers", "store")
"""`input` is the input's place, and `store` is null in an input record. In a key that a store held before, `offset` is
its source offset and `timestamp_ms` its expiry."""
OUTPUT_SCHEMA = (
    "partition int, kind string, store string, key binary, value binary, source_offset bigint, expires_at_ms bigint, "
    "input int"
)

Row = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The replay of one partition of the inputs, as Spark's tasks get it.

    Attributes:
        module, actor: The app's module, the actor's name.
        stores: Whose state is wanted.
        starts: By partition and input, the first offset to be handled.
        until_ms: By partition, how far the clock goes on after the last record; None: no further.
        topic_ids: The inputs' ids, which their commands are signed for.
        metadata: By partition and input, that of the group's committed offset.
    """

    module: str
    actor: str
    stores: Sequence[str]
    starts: Sequence[Sequence[int]]
    until_ms: Sequence[int | None]
    topic_ids: Sequence[str]
    metadata: Sequence[Sequence[str]]


class _Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def event_time_of(module: str, actor: str, place: int, partition_count: int) -> Callable[..., int]:
    """Return the function of a record's time by which a worker orders it among those of other inputs, for a task.

    Its arguments are `timestamp_ms`, `key`, `value` and `headers`. It raises `RecomputeError` if the app can't be used
    there: one line, which Spark hands on.
    """

    def event_time(*record: Any) -> int:
        time_of = _time_of(module, actor, partition_count)
        return int(time_of(place, _record((None, None, 0, *record, None))))

    return event_time


@functools.cache
def _time_of(module: str, actor: str, partition_count: int) -> Any:
    try:
        return load_replayer(module, actor, where=THERE).event_times(partition_count)
    except ReplayError as error:
        raise RecomputeError(str(error)) from error


def replay_rows(job: Job, rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    """Replay the partitions in the rows, whose columns are `INPUT_COLUMNS`; return rows of `OUTPUT_SCHEMA`.

    Raises:
        RecomputeError: The app can't be used here, or a replay failed. One line, which Spark hands on.
    """
    # What a worker logs of a message that it parks or skips is its operator's, not this one's.
    logging.getLogger("actors").setLevel(logging.CRITICAL + 1)
    try:
        replayer = load_replayer(job.module, job.actor, where=THERE)
        for number, group in groupby(rows, key=itemgetter(0)):
            kept, records = _split(number, group)
            result = replayer.run(
                number,
                records,
                partition_count=len(job.starts),
                starts=job.starts[number],
                kept=kept,
                until_ms=job.until_ms[number],
                stores=job.stores,
                topic_ids=job.topic_ids,
                metadata=job.metadata[number],
            )
            for row in result:
                yield number, *row
    except RecomputeError:
        raise
    except ReplayError as error:
        raise RecomputeError(str(error)) from error
    except Exception as error:
        raise RecomputeError(f"the replay failed with {type(error).__name__}: {first_line(error)}") from error


def _split(number: int, rows: Iterator[Row]) -> tuple[Iterator[tuple[Any, ...]], Iterator[tuple[int, _Record]]]:
    """Return what the stores held and the records, which come behind: the first has to be read to its end first."""
    first_record: list[Row] = []

    def kept() -> Iterator[tuple[Any, ...]]:
        for row in rows:
            _, _, source_offset, expires_at_ms, key, value, _, store = row
            if store is None:
                first_record.append(row)
                return
            yield store, bytes(key), bytes(value), source_offset, expires_at_ms

    def records() -> Iterator[tuple[int, _Record]]:
        last: dict[int, int] = {}
        for row in chain(first_record, rows):
            _, place, offset, *_ = row
            if offset <= last.get(place, -1):
                raise RecomputeError(f"partition {number} of input {place} isn't in order at offset {offset}")
            last[place] = offset
            yield place, _record(row)

    return kept(), records()


def _record(row: Row) -> _Record:
    _, _, offset, timestamp_ms, key, value, headers, _ = row
    return _Record(
        offset,
        timestamp_ms,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        () if not headers else [(name, raw if raw is None else bytes(raw)) for name, raw in headers],
    )
