"""What holds stream time back is named: the feed, how far it is, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from actors import App, Context, Tumbling, aggregates
from actors.errors import HandlerFailedError
from actors.runtime.observe.feeds import CLOCK_BEHIND_MS, HeldTimes
from actors.runtime.observe.status import FeedStatus, InputStatus, TaskStatus, WorkerStatus
from actors.testing import ActorTestDriver
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
