"""The last 15 minutes of tasks: differences of counters, sums, gaps, and a bound on what is kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors.ports import TopicPartition
from actors.runtime.meters import TaskMeters
from actors.web.dashboard.history import STEP_S, STEPS, History

BEGIN_MS = 1_000_000_000


KNOWS_NOTHING = SimpleNamespace(end_offset=lambda _: None, position=lambda _: None)
"""What a source knows of inputs that it hasn't fetched of."""


class Task:
    """What a sample looks at."""

    def __init__(self, actor: str, partition: int) -> None:
        self.spec = SimpleNamespace(name=actor)
        self.partition = partition
        self.sources = [TopicPartition("in", partition)]
        self.meters = TaskMeters()
        self.is_idle = False
        self.context = SimpleNamespace(services=SimpleNamespace(sink=KNOWS_NOTHING))

    def at(self, records: int, lag: int, *, commits: int = 0, errors: int = 0) -> Any:
        self.meters.records = records
        self.meters.committed_offsets["in"], self.meters.end_offsets["in"] = 10, 10 + lag
        for _ in range(commits):
            self.meters.commits.observe(0.25)
        self.meters.fences["fenced"] = self.meters.fences.get("fenced", 0) + errors
        self.meters.fences["migrated"] = self.meters.fences.get("migrated", 0) + 7
        return self


def sample(history: History, step: int, *tasks: Any) -> None:
    history.sample(tasks, BEGIN_MS + step * STEP_S * 1000)


def test_it_has_sums_of_an_actor_and_of_all() -> None:
    history, one, two, other = History(), Task("a", 0), Task("a", 1), Task("b", 0)
    sample(history, 0, one.at(100, 5), two.at(10, 6), other.at(0, 7))
    sample(history, 1, one.at(150, 50, commits=2), two.at(20, 60, commits=1, errors=3), other.at(5, 70))
    for place, records, lag, commit_s, commits, errors in (
        (("a", 0), 10, 50, 0.5, 2, 0),
        (("a", 1), 2, 60, 0.25, 1, 3),
        (("a", None), 12, 110, 0.75, 3, 3),
        ((None, None), 13, 180, 0.75, 3, 3),
    ):
        found = history.series(*place)
        assert found.first == BEGIN_MS // 5000 + 1 - (STEPS - 1)
        last = [found.records[-1], found.lag[-1], found.commit_s[-1], found.commits[-1], found.errors[-1]]
        assert last == [records, lag, commit_s, commits, errors]
        # Before the first sample nothing is known, and from it only the lag.
        assert (found.records[-2], found.lag[-3:-1], len(found.lag)) == (None, [None, found.lag[-2]], STEPS)


def test_what_went_elsewhere_is_kept_for_a_quarter_of_an_hour() -> None:
    history, one, two = History(), Task("a", 0), Task("a", 1)
    for step in range(3):
        sample(history, step, one.at(10 * step, 1), two.at(10 * step, 1))
    sample(history, 3, two.at(30, 1))
    assert history.series("a", 0).lag[-4:] == [1, 1, 1, None]
    assert history.series("a").lag[-4:] == [2, 2, 2, 1]
    for step in range(4, STEPS + 2):
        sample(history, step, two)
    assert history.series("a", 0).lag == [1, *[None] * (STEPS - 1)]
    sample(history, STEPS + 2, two)
    assert ("a", 0) not in history._rings
    assert len(history._rings) == 3


def test_a_time_without_samples_is_a_gap_and_a_clock_that_goes_back_adds_nothing() -> None:
    history, task = History(), Task("a", 0)
    sample(history, 0, task.at(0, 1))
    sample(history, 4, task.at(100, 2))
    sample(history, 2, task.at(200, 9))
    sample(history, 4, task.at(200, 9))
    assert history.series("a", 0).lag[-6:] == [None, 1, None, None, None, 2]
    assert history.series("a", 0).records[-1] == 5
    sample(history, 4 + 10 * STEPS, task.at(200, 3))
    assert history.series("a", 0).lag == [*[None] * (STEPS - 1), 3]


def test_nothing_is_known_before_the_first_sample_and_all_can_be_sent() -> None:
    assert set(History().series("a", 0).lag) == {None}
    history = History()
    sample(history, 0, Task("a", 0).at(1, 1))
    assert len(msgspec.json.encode(history.series())) < 64 * STEPS


async def test_samples_are_taken_when_steps_begin() -> None:
    history, task = History(), Task("a", 0).at(0, 1)
    slept: list[float] = []

    class Clock:
        now_ms = BEGIN_MS + 1_250

        def wall_ms(self) -> int:
            return self.now_ms

        def monotonic(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            self.now_ms += round(seconds * 1000)
            if len(slept) == 3:
                raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await history.follow(lambda: [task], Clock())
    assert slept == [3.75, 5, 5]
    assert history.series("a", 0).lag[-3:] == [1, 1, 1]
