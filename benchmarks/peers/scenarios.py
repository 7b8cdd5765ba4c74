"""What is measured: the shape of the records, the job, and who takes part."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks.peers.systems import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FAUST,
    FLINK,
    KAFKA_STREAMS,
    KAFKA_STREAMS_CACHED,
    KAFKA_STREAMS_DIRECT,
    OURS,
    OURS_COMPILED,
    QUIX,
    SPARK,
)

EVERYBODY = (OURS, OURS_COMPILED, KAFKA_STREAMS, KAFKA_STREAMS_CACHED, QUIX, FAUST)
RAW = (OURS, OURS_COMPILED, KAFKA_STREAMS, KAFKA_STREAMS_CACHED, KAFKA_STREAMS_DIRECT, QUIX, FAUST, SPARK, FLINK)
PEERS = (KAFKA_STREAMS, KAFKA_STREAMS_CACHED, QUIX, FAUST)
FAST_ONES = (OURS, KAFKA_STREAMS)
SIDE_BY_SIDE = (OURS, OURS_COMPILED, KAFKA_STREAMS)
UPDATES = (OURS, OURS_COMPILED, KAFKA_STREAMS, KAFKA_STREAMS_CACHED)
Records = Iterator[tuple[bytes, bytes]]


def half_repeats(count: int) -> Records:
    """Commands of 116 bytes, each twice: the repeats come after half of all records."""
    return _commands(count, -(-count // 2), _raw)


def typed_half_repeats(count: int) -> Records:
    """The same as JSON of a typed value."""
    return _commands(count, -(-count // 2), _typed)


def all_repeats(count: int) -> Records:
    """The same 1,000 commands again and again: after the first round nothing is written or forwarded."""
    return _commands(count, 1_000, _raw)


def all_distinct(count: int) -> Records:
    """No command twice."""
    return _commands(count, count, _raw)


def random_keys(count: int) -> Records:
    """Events of 116 bytes at random, two a key on average: 1 million keys of 2 million events."""
    choose, keys = random.Random(7).randrange, max(1, count // 2)
    for number in range(count):
        yield b"customer-%07d" % choose(keys), _raw(number)


def bursts(count: int) -> Records:
    """Events of 116 bytes in bursts of 4, a hundredth of the time between two of them; two bursts a key."""
    side_by_side, keys = max(1, count // 100), max(1, count // 8)
    for number in range(count):
        first = number // (4 * side_by_side) * side_by_side
        yield b"customer-%07d" % ((first + number % side_by_side) % keys), _raw(number)


def pairs(count: int) -> Records:
    """Events of 116 bytes, each of another key."""
    return _commands(count, count, _raw)


def customers(count: int) -> Records:
    """A row for each key of `random_keys`."""
    for number in range(max(1, count // 2)):
        yield b"customer-%07d" % number, _raw(number)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One rate that is measured.

    Attributes:
        name: How it is chosen on the command line.
        title: What it says in the table.
        guarantee: One of `systems.GUARANTEES`.
        records: Makes the input, given a count.
        work: What a job can be: see `systems.Job`.
        values: `raw` or `json`.
        partitions: Of the input.
        workers: How many processes share the group.
        systems: Who takes part.
        span_ms: Over how much event time the records are spread evenly; 0: their time is that at which they are sent.
        other: Makes the other topic of a join, of which there are as many partitions.
        other_after_ms: How much later than the input's its records are.
        beside: Where ours doesn't take part, the scenario whose runs of ours are compared.
    """

    name: str
    title: str
    guarantee: str
    records: Callable[[int], Records] = half_repeats
    work: str = "dedupe"
    values: str = "raw"
    partitions: int = 4
    workers: int = 1
    systems: tuple[str, ...] = SIDE_BY_SIDE
    span_ms: int = 0
    other: Callable[[int], Records] | None = None
    other_after_ms: int = 0
    beside: str = ""

    def topic(self, count: int) -> str:
        """Name the input topic: the same for all scenarios with the same records."""
        return f"{self.records.__name__}-{count}-{self.partitions}{'' if self.other is None else '-joined'}".replace(
            "_", "-"
        )

    def at_ms(self, begin_ms: int, count: int, number: int) -> int:
        """Return the event time of the record number so and so of `count`, Unix milliseconds."""
        return begin_ms + number * self.span_ms // count


EVENT_TIME_MS = 600_000


def _windowed(name: str, title: str, records: Callable[[int], Records] = random_keys) -> Scenario:
    return Scenario(
        name, f"{title}, exactly once", EXACTLY_ONCE, records=records, work=name, systems=UPDATES, span_ms=EVENT_TIME_MS
    )


SCENARIOS = (
    Scenario("exactly_once_raw", "run commands, exactly once", EXACTLY_ONCE, systems=RAW),
    Scenario(
        "at_least_once_raw", "run commands, at least once", AT_LEAST_ONCE, systems=PEERS, beside="exactly_once_raw"
    ),
    Scenario(
        "exactly_once_typed",
        "typed JSON values, exactly once",
        EXACTLY_ONCE,
        records=typed_half_repeats,
        values="json",
        systems=EVERYBODY,
    ),
    Scenario(
        "at_least_once_typed",
        "typed JSON values, at least once",
        AT_LEAST_ONCE,
        records=typed_half_repeats,
        values="json",
        systems=(KAFKA_STREAMS,),
        beside="exactly_once_typed",
    ),
    Scenario("two_workers_exactly_once", "two workers, exactly once", EXACTLY_ONCE, workers=2, systems=EVERYBODY),
    Scenario(
        "two_workers_at_least_once",
        "two workers, at least once",
        AT_LEAST_ONCE,
        workers=2,
        systems=PEERS,
        beside="two_workers_exactly_once",
    ),
    Scenario("repeats", "repeats only, exactly once", EXACTLY_ONCE, records=all_repeats),
    Scenario("distinct", "distinct keys only, exactly once", EXACTLY_ONCE, records=all_distinct),
    Scenario("partitions_64", "64 partitions, exactly once", EXACTLY_ONCE, partitions=64),
    Scenario(
        "hot_counters",
        "counters on 1,000 keys, exactly once",
        EXACTLY_ONCE,
        records=all_repeats,
        work="counter",
        systems=UPDATES,
    ),
    _windowed("tumbling", "a minute's count"),
    _windowed("hopping", "6 windows a record"),
    _windowed("session", "sessions of 4 records", bursts),
    replace(_windowed("stream_join", "pairs of two streams", pairs), other=pairs, other_after_ms=5_000),
    # The table comes first.
    replace(_windowed("table_join", "a table's row for each"), other=customers, other_after_ms=-2 * EVENT_TIME_MS),
)
LATENCY = "latency"
RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Sparse:
    """Latency and cost at a rate far below what a worker can do.

    Attributes:
        name: What it is called in the results.
        partitions: Of the input and of the output.
        rate: Records per second.
    """

    name: str
    partitions: int
    rate: int


SPARSE = "sparse"
TASKS = "tasks_1000"
TAKEOVER = f"{TASKS}_takeover"
SPARSE_ONES = {
    SPARSE: (Sparse("sparse_64", 64, 1_000), Sparse("sparse_256", 256, 200)),
    TASKS: (Sparse(TASKS, 1_000, 200),),
}
"""By how they are chosen on the command line."""
NAMES = (*(scenario.name for scenario in SCENARIOS), LATENCY, SPARSE, TASKS, RESTORE)


def _commands(count: int, distinct: int, value: Callable[[int], bytes]) -> Records:
    for number in range(count):
        yield b"command-%08d" % (number % distinct), value(number)


def _raw(number: int) -> bytes:
    return b"%0100d" % number


def _typed(number: int) -> bytes:
    """98 bytes of JSON."""
    return b'{"command":"/usr/bin/run-%08d","args":["--verbose","--output","/var/tmp/result-%08d.txt"]}' % (
        number,
        number,
    )
