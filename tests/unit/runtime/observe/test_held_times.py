"""What holds stream time back is named: the feed, how far it is, and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actors import App, Context, Tumbling, aggregates
from actors._core.task.pauses import Release, release_key
from actors._kafka.admin.owners import KafkaOwners
from actors.cli.cluster import TaskRow, _as_told
from actors.errors import HandlerFailedError
from actors.runtime.observe.feeds import CLOCK_BEHIND_MS, HeldTimes
from actors.runtime.observe.status import FeedStatus, InputStatus, TaskStatus, WorkerStatus
from actors.runtime.pauses import LOOK_S, follow_pauses
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeLogs
from actors.web.dashboard.group import Report, Seen
from actors.web.dashboard.waiting import Waiting
from tests.unit.runtime.observe.test_meters import seen

NOON_MS = 1_700_049_600_000
SECOND = 1_000


class Stages:
    """Clicks are forwarded by a key of their own, and counted behind that."""

    def __init__(self) -> None:
        self.app = app = App("held-app")
        self.clicks = app.topic("clicks", key_type=str, value_type=str)
        tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

        @app.actor(self.clicks)
        async def forward(ctx: Context, text: str) -> None:
            if text == "bad":
                raise ValueError("not now")
            ctx.send(self.moved, key="all", value=text)

        self.moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])

        @app.actor(self.moved, stores=[tens])
        async def count(ctx: Context, _: str) -> None:
            tens.add(ctx.key, 1)

    @contextmanager
    def held(self) -> Iterator[ActorTestDriver]:
        """One partition of the forwarder halts, and the others go on."""
        with ActorTestDriver(self.app) as driver:
            for number in range(30):
                driver.send(self.clicks, key=f"k{number}", value="", timestamp_ms=NOON_MS + number * SECOND)
            with pytest.raises(HandlerFailedError):
                driver.send(self.clicks, value="bad", partition=2, timestamp_ms=NOON_MS + 31 * SECOND)
            for number in range(30):
                driver.post(self.clicks, value="", partition=number % 2, timestamp_ms=NOON_MS + 60 * SECOND)
            driver.advance(30, settle=False)
            yield driver


def count_of(status: WorkerStatus) -> list[TaskStatus]:
    return [task for task in status.tasks if task.actor == "count"]


def test_a_halted_partition_upstream_is_named() -> None:
    with Stages().held() as driver:
        status = seen(driver)
        for task in count_of(status):
            assert task.waits_for == FeedStatus(topic="clicks", partition=2, time_ms=task.stream_ms)
            assert task.held_s > 20
            assert (task.ahead.topic, task.ahead.partition in (0, 1)) == ("clicks", True)
            assert task.ahead.time_ms == NOON_MS + 60 * SECOND
            text = HeldTimes([status], status.at_ms).text(task)
            assert text.startswith("waits for clicks[2], which is at 2023-11-15T12:00:")
            assert "actor forward is halted there: clicks[2] offset" in text
        assert HeldTimes([], 0).text(count_of(status)[0]).endswith(": no worker that answers has this partition")


def test_faust_actors_shows_what_a_running_partition_waits_for() -> None:
    with Stages().held() as driver:
        status = seen(driver)
        row = TaskRow(actor="count", topic="moved", stores=("tens",), partition=count_of(status)[0].partition)
        told = _as_told(row, Seen("w", "", Report(status, Waiting())), HeldTimes([status], status.at_ms))
        assert told.state == "running"
        assert told.reason.startswith("waits for clicks[2], which is at 2023-11-15T12:00:")


def test_nothing_is_held_where_all_go_on_or_rest() -> None:
    stages = Stages()
    with ActorTestDriver(stages.app) as driver:
        for number in range(30):
            driver.send(stages.clicks, key=f"k{number}", value="", timestamp_ms=NOON_MS + number * SECOND)
        driver.advance(1000)
        for task in count_of(seen(driver)):
            assert (task.waits_for, task.held_s) == (None, 0.0)
            assert task.ahead.time_ms == NOON_MS + 29 * SECOND


def task_of(status: WorkerStatus, **changes: Any) -> HeldTimes:
    """Return the names where the reader of clicks[2] is otherwise than in `status`."""
    behind_ms = changes.pop("behind_ms", 0)
    tasks = [
        replace(task, **changes) if (task.topic, task.partition) == ("clicks", 2) else task for task in status.tasks
    ]
    return HeldTimes([replace(status, tasks=tasks)], status.at_ms + behind_ms)


LAGS = InputStatus(topic="clicks", committed_offset=1, end_offset=8, lag=7)
RUNS = {"state": "running", "reason": None, "inputs": []}


@pytest.mark.parametrize(("changes", "feed", "why"), [
    ({"reason": None, "state": "restoring"}, {}, "actor forward is restoring there"),
    (RUNS | {"paused_at_ms": 7, "paused_by": "ann"}, {}, "is paused there, since 1970-01-01 00:00:00 UTC, by ann"),
    (RUNS | {"lag": 0}, {"time_ms": 1_700_049_600}, "times from before 1973"),
    (RUNS | {"lag": 0, "behind_ms": CLOCK_BEHIND_MS + 1}, {}, "the clock of its worker is 60.001 s behind"),
    (RUNS | {"inputs": [LAGS]}, {}, "7 of its records wait for actor forward"),
    (RUNS | {"lag": 0}, {"time_ms": None}, "which has no time: it had no record with a usable time"),
])  # fmt: skip
def test_causes(changes: dict[str, Any], feed: dict[str, Any], why: str) -> None:
    with Stages().held() as driver:
        status = seen(driver)
        task = count_of(status)[0]
        task = replace(task, waits_for=replace(task.waits_for, **feed))
        assert why in task_of(status, **changes).text(task)


def test_the_cause_is_followed_up_the_stream() -> None:
    with Stages().held() as driver:
        status = seen(driver)
        further = FeedStatus(topic="raw", partition=7, time_ms=NOON_MS)
        text = task_of(status, **RUNS, waits_for=further, held_s=99.0).text(count_of(status)[0])
        assert text == "waits for raw[7], which is at 2023-11-15T12:00:00: no worker that answers has this partition"


def follow(driver: ActorTestDriver, *releases: Release) -> None:
    """Write releases into the registry, and let the worker follow it for some seconds."""
    topic = driver._setup.owners_topic
    for one in releases:
        key = release_key(one.actor, one.topic, one.partition)
        driver._produce(topic, key, msgspec.json.encode(one), (), 0, None)
    owners = KafkaOwners(topic, FakeLogs(driver._cluster, driver._network))
    worker = driver._worker
    assert worker is not None

    async def run() -> None:
        follower = asyncio.create_task(follow_pauses(owners, lambda: worker.tasks, driver._clock))
        await asyncio.sleep(5 * LOOK_S)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)

    driver._run(run())


def test_event_time_goes_on_without_a_released_feed(caplog: pytest.LogCaptureFixture) -> None:
    with Stages().held() as driver:
        held = count_of(seen(driver))[0]
        assert held.waits_for is not None
        time_ms = held.waits_for.time_ms
        release = Release(actor="count", topic="clicks", partition=2, time_ms=time_ms, at_ms=7, by="ann")
        with caplog.at_level(logging.WARNING):
            follow(driver, release)
        driver.advance(20, settle=False)
        for task in count_of(seen(driver)):
            assert (task.waits_for, task.held_s) == (None, 0.0)
            assert task.stream_ms == NOON_MS + 60 * SECOND
        lines = [line.getMessage() for line in caplog.records if "goes on without" in line.getMessage()]
        assert len(lines) == 3
        assert "goes on without clicks[2], which is at 2023-11-15T12:00:" in lines[0]
        assert lines[0].endswith("by ann")


@pytest.mark.parametrize("release", [
    {"time_ms": NOON_MS},  # it has committed a later time since
    {"actor": "other"},
    {"partition": 1},
])  # fmt: skip
def test_a_release_of_another_time_or_feed_changes_nothing(release: dict[str, Any]) -> None:
    with Stages().held() as driver:
        held = count_of(seen(driver))[0]
        assert held.waits_for is not None
        fields = {"actor": "count", "topic": "clicks", "partition": 2, "time_ms": held.waits_for.time_ms, "at_ms": 7}
        follow(driver, Release(**fields | release, by="ann"))
        driver.advance(20, settle=False)
        assert count_of(seen(driver))[0].waits_for == held.waits_for
