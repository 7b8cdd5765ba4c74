"""One partition of a sink, against a reader and a target in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from actors import App, OnError, Rejected
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError, RestoreError
from actors.ports import TopicPartition
from actors.sinks import Batch, Target
from actors.sinks.partition import PartitionSink, Rows, SinkServices

SOURCE = TopicPartition("orders", 0)


@dataclass
class Raw:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass
class Reader:
    """A log from which one partition is read; `fails` are raised by the next fetches."""

    log: list[Raw]
    at: int | None = None
    commits: list[int] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)

    def start_from(self, source: TopicPartition, offset: int, topic_id: str) -> None:
        self.at = offset

    async def fetch(self, source: TopicPartition, *, most: int, timeout_s: float) -> Sequence[Raw]:
        if self.fails:
            raise self.fails.pop()
        assert self.at is not None
        records = [raw for raw in self.log if raw.offset >= self.at][:most]
        if records:
            self.at = records[-1].offset + 1
        else:
            await asyncio.sleep(min(timeout_s, 0.001))
        return records

    async def commit(self, source: TopicPartition, offset: int) -> None:
        self.commits.append(offset)


class Noted(Target):
    """A target that keeps offset and token with its rows; refuses rows of `bad`, and fails as `fails` says."""

    def __init__(
        self, *, bad: Sequence[Any] = (), fails: Sequence[tuple[str, Exception | None]] = (), keeps: bool = True
    ) -> None:
        self.rows: list[Any] = []
        self.batches: list[Batch] = []
        self.next: int | None = None
        self.token = 0
        self.bad, self.fails, self.keeps = bad, list(fails), keeps

    async def claim(self, source: TopicPartition, topic_id: str) -> tuple[int | None, int | None]:
        self.token += 1
        return (self.next, self.token) if self.keeps else (None, None)

    async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
        self.batches.append(batch)
        when, error = self.fails.pop(0) if self.fails else ("", None)
        if when == "before" and error is not None:
            raise error
        if any(row in self.bad for row in rows):
            raise Rejected("a bad row")
        assert self.next in (None, batch.first)
        self.rows += rows
        self.next = batch.next
        if error is not None:
            raise error


class World:
    """A partition of a sink, whose function is `row`."""

    def __init__(
        self, target: Target, records: int | list[Raw] = 10, *, row: Any = None, size: int = 4, **options: Any
    ) -> None:
        app = App("shop", broker="kafka://127.0.0.1:1")
        orders = app.topic("orders", key_type=str, value_type=int)
        options = {"within": timedelta(0), "on_error": "stop", "tombstones": False} | options
        app.sink(orders, to=target, name="shop", batch=size, **options)(row or (lambda record: record.value))
        sink = app.extensions["sinks"].declared["shop"]
        self.log = [Raw(n, b"k", b"%d" % n) for n in range(records)] if isinstance(records, int) else records
        self.reader = Reader(self.log)
        self.buried: list[tuple[int, str]] = []
        key, value = topic_codecs(orders)
        services = SinkServices(
            reader=self.reader,  # type: ignore[arg-type]
            rows=Rows(key=key, value=value, row=sink.row, tombstones=sink.tombstones),
            identify=self.identify,
            start=self.start,
            bury=self.bury,
        )
        self.part = PartitionSink(SOURCE, sink, services, generation=7)

    async def identify(self) -> str:
        return "id"

    async def start(self, source: TopicPartition) -> int:
        return 0

    async def bury(self, source: TopicPartition, raw: Any, reason: str) -> None:
        self.buried.append((raw.offset, reason))

    async def until(self, done: Any) -> None:
        task = asyncio.create_task(self.part.run())
        try:
            async with asyncio.timeout(5):
                while not done():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0)
        finally:
            task.cancel()
            await asyncio.wait([task])


FAST = OnError(first_wait=timedelta(milliseconds=1), longest_wait=timedelta(milliseconds=2))
SKIP = OnError(
    then="skip", dead_letters=True, first_wait=timedelta(milliseconds=1), longest_wait=timedelta(milliseconds=2)
)


async def test_batches_have_the_offsets_between_them_and_the_token_of_the_target() -> None:
    target = Noted()
    world = World(target)
    await world.until(lambda: len(target.rows) == 10 and world.reader.commits[-1:] == [10])
    assert target.rows == list(range(10))
    assert [(batch.first, batch.next, batch.token, batch.id) for batch in target.batches] == [
        (0, 4, 1, "orders-0-0-3"),
        (4, 8, 1, "orders-0-4-7"),
        (8, 10, 1, "orders-0-8-9"),
    ]
    assert world.reader.commits == [4, 8, 10]


async def test_a_target_that_keeps_no_offsets_gets_the_generation_for_a_token() -> None:
    target = Noted(keeps=False)
    world = World(target)
    await world.until(lambda: len(target.rows) == 10)
    assert {batch.token for batch in target.batches} == {7}


@pytest.mark.parametrize(("when", "keeps"), [("before", True), ("after", True), ("before", False)])
async def test_a_batch_that_failed_is_written_again_unless_the_target_has_it(when: str, keeps: bool) -> None:
    target = Noted(fails=[("", None), (when, OSError("away"))], keeps=keeps)
    world = World(target, on_error=FAST)
    await world.until(lambda: 9 in target.rows)
    assert target.rows == list(range(10))
    assert [batch.first for batch in target.batches] == ([0, 4, 4, 8] if when == "before" else [0, 4, 8])


async def test_a_function_s_batch_whose_outcome_is_unknown_comes_again_as_it_was() -> None:
    batches: list[Batch] = []

    class Twice(Target):
        async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
            batches.append(batch)
            if len(batches) == 1:
                raise OSError("after the write")

    world = World(Twice(), on_error=FAST)
    await world.until(lambda: world.reader.commits == [4, 8, 10])
    assert batches[0].id == batches[1].id
    assert batches[0].records == batches[1].records


@pytest.mark.parametrize("bad", [[0], [3], [9], [4, 5], list(range(10))])
async def test_a_refused_row_goes_to_the_dead_letters_and_all_others_are_written(bad: list[int]) -> None:
    target = Noted(bad=bad)
    world = World(target, on_error=SKIP)
    await world.until(lambda: world.reader.commits[-1:] == [10])
    assert target.rows == [number for number in range(10) if number not in bad]
    assert world.buried == [(number, "Rejected: a bad row") for number in bad]
    assert target.next == 10


async def test_a_refused_row_stops_the_partition_in_front_of_it_until_the_target_takes_it() -> None:
    target = Noted(bad=[5])
    world = World(target, on_error=FAST)
    await world.until(lambda: "offset 5 is refused" in str(world.part.failure))
    assert target.rows == [0, 1, 2, 3, 4]
    assert 'on_error=OnError(then="skip", dead_letters=True)' in str(world.part.failure)
    target.bad = ()
    await world.until(lambda: 9 in target.rows)
    assert target.rows == list(range(10))


async def test_a_record_that_does_not_decode_or_whose_row_can_not_be_made_is_refused() -> None:
    def row(record: Any) -> int:
        return 60 // record.value

    records = [Raw(0, b"k", b"1"), Raw(1, b"k", b"{"), Raw(2, b"k", b"0"), Raw(3, b"k", b"6")]
    target = Noted()
    world = World(target, records, row=row, on_error=SKIP)
    await world.until(lambda: world.reader.commits[-1:] == [4])
    assert target.rows == [60, 10]
    assert [offset for offset, _ in world.buried] == [1, 2]
    assert "ZeroDivisionError" in world.buried[1][1]


@pytest.mark.parametrize("tombstones", [False, True])
async def test_a_tombstone_has_no_row_unless_the_function_takes_them(tombstones: bool) -> None:
    target = Noted()
    world = World(target, [Raw(0, b"k", None)], row=lambda record: ("row", record.value), tombstones=tombstones)
    await world.until(lambda: world.reader.commits == [1])
    assert target.rows == [("row", None)] if tombstones else [None]


async def test_a_log_that_lost_the_next_offset_is_reported_and_nothing_is_skipped() -> None:
    target = Noted()
    world = World(target, on_error=FAST)
    world.reader.fails = [RestoreError("orders[0]: the log doesn't have offset 0")]
    await world.until(lambda: "doesn't have offset 0" in str(world.part.failure))
    assert target.rows == []


async def test_a_batch_waits_for_more_records_within_its_time() -> None:
    target = Noted()
    world = World(target, 3, within=timedelta(minutes=1))

    def is_written() -> bool:
        if world.reader.at == 3 and len(world.log) == 3:
            world.log.append(Raw(3, b"k", b"3"))
        return bool(target.batches)

    await world.until(is_written)
    assert [batch.next for batch in target.batches] == [4]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch": 0}, "batch=0 has to be a number of records"),
        ({"within": 1}, "has to be a timedelta: write within=timedelta(seconds=1)"),
        ({"on_error": "park"}, "a sink can't park a record"),
        ({"on_error": OnError(retries=2)}, "a sink tries a failed batch again for as long as it takes"),
        ({"tombstones": True}, "tombstones= goes with to="),
        ({"to": "postgresql://"}, "has to be a target"),
        ({"name": "a/b"}, "names have up to 100 letters"),
        ({"bach": 1}, "did you mean batch"),
    ],
)
def test_arguments_that_can_not_be_meant_are_refused(options: dict[str, Any], reason: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    with pytest.raises(ConfigurationError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        app.sink(orders, **{"name": "rows"} | options)(lambda batch: None)


def test_two_sinks_of_a_name_and_an_app_without_sinks_are_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    app.sink(orders, name="rows")(print)
    with pytest.raises(ConfigurationError, match="there is a sink of this name"):
        app.sink(orders, name="rows")(print)
    bare = App("shop", broker="kafka://127.0.0.1:1", extensions=[])
    with pytest.raises(ConfigurationError, match="leave out `sinks`"):
        bare.sink(orders)


def test_a_function_of_rows_is_plain() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)

    async def row(record: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="returns the row of a record: write a plain `def`"):
        app.sink(orders, to=Noted())(row)
