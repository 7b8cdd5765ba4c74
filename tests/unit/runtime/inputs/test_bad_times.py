"""Times that can't be meant, and marks that somebody else wrote: they move no time, and hold what they have to."""

from __future__ import annotations

import logging
import uuid
from asyncio import Event, sleep
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from actors import App, Context, Tumbling, aggregates
from actors._core.task.commit import MAX_METADATA_BYTES, CommitMark, largest_mark, parse_mark
from actors._core.task.completed import SPAN, encode_finished
from actors._core.task.feed_times import NO_TIMES, UNKNOWN_MS, FeedTimes, Look, SourceTime, TimeMark, UpstreamTimes
from actors._core.task.topic_ids import TopicIds
from actors.errors import UndecodableRecordError
from actors.ports import Committed, LookAnswer, TopicPartition
from actors.runtime import looks
from actors.runtime.observe.feeds import HeldTimes
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeGroupView
from tests.unit.runtime.observe.test_meters import seen

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
YEAR_9999_MS = 253_370_764_800_000
SECOND = 1_000


class Stages:
    """Clicks are counted by another key: behind the app's own forwarder, or behind an actor that sends them on."""

    def __init__(self, way: str, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.clicks = app.topic("clicks", key_type=str, value_type=str)
        self.closed: list[tuple[int, int]] = []
        tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())
        if way == "by":

            @app.actor(self.clicks, by=lambda _: "all", stores=[tens], name="count", **options)
            async def count(ctx: Context, _: str) -> None:
                tens.add(ctx.key, 1)

        else:

            @app.actor(self.clicks, **options)
            async def forward(ctx: Context, value: str) -> None:
                if value == "slow":
                    await sleep(1.0)
                ctx.send(moved, key="all", value=value)

            moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])

            @app.actor(moved, stores=[tens], name="count")
            async def count_moved(ctx: Context, _: str) -> None:
                tens.add(ctx.key, 1)

        @tens.on_close
        def close(ctx: Context, window: Any, number: int) -> None:
            self.closed.append(((window.start_ms - NOON_MS) // SECOND, number))

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, now=NOON)

    def post(self, driver: ActorTestDriver, at_ms: int, partition: int) -> None:
        driver.post(self.clicks, key="k", value="", timestamp_ms=at_ms, partition=partition)


@pytest.mark.parametrize("way", ["by", "send"])
@pytest.mark.parametrize("bad_ms", [YEAR_9999_MS, -1])
def test_a_time_that_cant_be_passed_on_is_refused_where_it_enters_and_moves_none(
    way: str, bad_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    stages = Stages(way, on_error="skip")
    with stages.driver() as driver:
        for number in range(35):
            stages.post(driver, NOON_MS - 100 * SECOND + number * SECOND, number % 3)
            if number == 15:
                stages.post(driver, bad_ms, 1)
        driver.settle()
        assert stages.closed == [(-100, 10), (-90, 10), (-80, 10)]
        assert driver.late("count") == {"tens": 0}
    (line,) = [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR]
    assert f"clicks[1] offset 5: its timestamp {'is -1' if bad_ms < 0 else bad_ms}" in line


def test_a_record_without_a_time_stops_the_partition_where_it_enters() -> None:
    stages = Stages("by")
    with stages.driver() as driver:
        stages.post(driver, -1, 1)
        with pytest.raises(UndecodableRecordError, match=r"clicks\[1\] offset 0 key 'k': its timestamp is -1"):
            driver.settle()


def test_a_partition_of_1970_holds_while_it_has_traffic_and_is_named() -> None:
    stages = Stages("send")
    with stages.driver() as driver:
        for number in range(60):
            # Each takes its time, so the partition isn't at its end.
            driver.post(stages.clicks, key="k", value="slow", timestamp_ms=number, partition=2)
            for partition in (0, 1):
                stages.post(driver, NOON_MS + number * SECOND, partition)
        driver.advance(40, settle=False)
        assert stages.closed == []
        status = seen(driver)
        task = next(task for task in status.tasks if task.actor == "count" and task.waits_for is not None)
        assert (task.waits_for.topic, task.waits_for.partition) == ("clicks", 2)
        assert 0 <= task.waits_for.time_ms < 60
        assert task.held_s > 30
        text = HeldTimes([status], status.at_ms).text(task)
        assert "clicks[2], which is at 1970-01-01" in text
        assert "times from before 1973" in text
        # Without traffic it follows the others.
        driver.settle()
        assert [window for window in stages.closed if window[0] >= 0] == [(start, 20) for start in range(0, 50, 10)]
        assert driver.late("count") == {"tens": 0}


def test_a_partition_that_is_gone_with_its_topic_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stages, look = Stages("send"), FakeGroupView.look

    async def without_the_last(self: Any, *asked: Any) -> LookAnswer:
        answer = await look(self, *asked)
        clicks = replace(answer.topics["clicks"], topic_id=str(uuid.UUID(int=2)), partitions=2)
        return replace(answer, topics={**answer.topics, "clicks": clicks})

    with stages.driver() as driver:
        for number in range(60):
            driver.post(stages.clicks, key="k", value="slow", timestamp_ms=NOON_MS - 60 * SECOND, partition=2)
            for partition in (0, 1):
                stages.post(driver, NOON_MS + number * SECOND, partition)
        driver.advance(20, settle=False)
        assert stages.closed == []
        monkeypatch.setattr(FakeGroupView, "look", without_the_last)
        driver.advance(20, settle=False)
        assert [start for start, _ in stages.closed if start >= 0] == [0, 10, 20, 30, 40]


def test_an_upstream_with_a_thousand_partitions() -> None:
    count = 1_000
    upstream = UpstreamTimes({"moved": ["clicks"]})

    def look(marks: dict[tuple[str, int], TimeMark], end: int) -> Look:
        return Look(0.0, 0.0, NOON_MS, marks, {("moved", 7): (end, 0)}, {"clicks": count})

    marks = {("clicks", number): TimeMark(NOON_MS, NOON_MS + number) for number in range(1, count)}
    upstream.looked(look(marks, 5), 7)
    assert upstream.believe({"moved": 5})
    assert upstream.least == (UNKNOWN_MS, ("clicks", 0))
    marks["clicks", 0] = TimeMark(NOON_MS, NOON_MS + 5)
    upstream.looked(look(marks, 9), 7)
    assert not upstream.believe({"moved": 8})
    assert upstream.believe({"moved": 9})
    assert upstream.least == (NOON_MS + 1, ("clicks", 1))

    class Untouched(dict[tuple[str, int], int]):
        def __iter__(self) -> Any:
            raise AssertionError("a record looks at each task upstream")

    # A source of the task's own holds the others, so stream time moves with each of its records.
    upstream._times = Untouched(upstream.times)
    times = FeedTimes({0: SourceTime(1.0, NOON_MS - 5)}, upstream)
    for at_ms in range(NOON_MS - 4, NOON_MS + 3):
        times.sources[0].time_ms = at_ms
        times.advance()
    assert (times.stream_ms, times.holder) == (NOON_MS + 1, ("clicks", 1))


OURS = CommitMark(1, 1, "nonce", topics=TopicIds.of(str(uuid.UUID(int=1)), {}, since=0), times=TimeMark(7, 8))


def marked(metadata: str) -> TimeMark | None:
    """Return the time that a look takes from an offset's metadata."""
    source = TopicPartition("clicks", 0)
    topic = type("Topic", (), {"topic_id": str(uuid.UUID(int=1)), "partitions": 1})
    answer = LookAnswer({source: Committed(5, metadata)}, {}, {"clicks": topic})  # type: ignore[dict-item]
    return looks._marks(answer, {source: parse_mark(metadata)}).get(("clicks", 0))


def test_a_mark_of_another_topic_of_that_name_has_no_time() -> None:
    assert marked(OURS.encode()) == TimeMark(7, 8)
    other = TopicIds.of(str(uuid.UUID(int=2)), {}, since=0)
    assert marked(CommitMark(1, 1, "nonce", topics=other, times=TimeMark(7, 8)).encode()) == NO_TIMES


@pytest.mark.parametrize("metadata", ["", "of another program", "1;2", '{"time": 1}', "1;1;n~,0.5.9.9", "é;1;x"])
def test_metadata_of_another_program_has_no_time(metadata: str) -> None:
    assert marked(metadata) in (None, NO_TIMES)


def test_metadata_of_another_program_is_named_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    stages = Stages("by")
    with stages.driver() as driver:
        for number in range(30):
            stages.post(driver, NOON_MS + number * SECOND, number % 3)
        driver.settle()
        source, offsets = TopicPartition("clicks", 1), driver._cluster.group.offsets
        offsets[source] = Committed(offsets[source].offset, "of another program")
        for number in range(30, 60):
            stages.post(driver, NOON_MS + number * SECOND, 2 * (number % 2))
        driver.settle()
        stages.post(driver, NOON_MS + 60 * SECOND, 1)
        driver.settle()
        assert [start for start, _ in stages.closed] == [0, 10, 20, 30, 40, 50]
        assert driver.late("count") == {"tens": 0}
    lines = [line.getMessage() for line in caplog.records if "another program wrote" in line.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("clicks[1]: another program wrote the metadata of the group's offset, 'of another prog")


def test_the_longest_mark_fits_into_an_offset() -> None:
    topics = TopicIds.of(str(uuid.uuid4()), {str(n): str(uuid.uuid4()) for n in range(20)}, since=10**9)
    finished = encode_finished(0, range(1, SPAN))
    mark = CommitMark(10**9, 10**12, "n" * 12, finished, NOON_MS, topics, TimeMark(NOON_MS, NOON_MS))
    assert len(mark.encode()) <= largest_mark(20, is_parallel=True) <= MAX_METADATA_BYTES
    assert parse_mark(mark.encode()) == mark


def test_a_forwarder_whose_oldest_record_waits_for_long_keeps_its_time_within_an_offset() -> None:
    app, lasts = App("shop", broker="kafka://127.0.0.1:1"), Event()
    clicks = app.topic("clicks", key_type=str, value_type=str)

    @app.actor(clicks, concurrency=50)
    async def forward(ctx: Context, value: str) -> None:
        if value == "slow":
            await lasts.wait()
        ctx.send(moved, key="all", value=value)

    moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())
    closed: list[int] = []

    @app.actor(moved, stores=[tens])
    async def count(ctx: Context, _: str) -> None:
        tens.add(ctx.key, 1)

    @tens.on_close
    def close(ctx: Context, window: Any, number: int) -> None:
        closed.append(number)

    with ActorTestDriver(app, now=NOON, partitions=1) as driver:
        driver.post(clicks, key="slow", value="slow", timestamp_ms=NOON_MS)
        for number in range(2_000):
            driver.post(clicks, key=f"k{number}", value="", timestamp_ms=NOON_MS + number * 20)
        driver.advance(5, settle=False)
        (committed,) = [one for source, one in driver._cluster.group.offsets.items() if source.topic == "clicks"]
        mark = parse_mark(committed.metadata)
        assert mark is not None
        assert (committed.offset, mark.times.source_ms) == (0, UNKNOWN_MS)
        assert 0 < len(committed.metadata) <= MAX_METADATA_BYTES
        assert closed == []
        driver._loop.call_soon(lasts.set)
        driver.settle()
        assert closed == [501, 500, 500]
