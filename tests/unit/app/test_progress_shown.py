"""What a worker says of restores and of what it waits for, on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging

import pytest

from actors import App, Context
from actors._core.task.lifecycle import State
from actors._faust.startup import progress
from actors._faust.startup.progress import (
    FIRST_LINE_S,
    LINE_EVERY_S,
    LOOK_S,
    STALLED_S,
    Announcer,
    ProgressLog,
    Restoring,
    StartupProgress,
    StartupWatch,
    ranges,
    reminding,
    restoring_text,
    waiting_texts,
    why_stalled,
)
from actors.cli.progress import reporting
from actors.ports import TopicPartition
from actors.runtime.meters import RestoreMeter
from actors.testing import ActorTestDriver
from tests.kafka.helpers import eventually


def restore(partition: int = 0, position: int = 120_000, *, stalled_s: float = 0.0, start: int = 0) -> Restoring:
    return Restoring(
        store="runs-state", partition=partition, start=start, position=position, end=1_000_000, stalled_s=stalled_s
    )


# --- lines ---------------------------------------------------------------------------------------------------------


def test_numbers_are_given_as_ranges():
    assert ranges([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9-10"


def test_a_line_names_the_first_restores_and_counts_the_others():
    assert restoring_text([restore(3)]) == "restoring runs-state[3] 120,000 of 1,000,000"
    assert restoring_text([restore(number, start=20_000) for number in range(12)]) == (
        "restoring runs-state[0] 100,000 of 980,000, runs-state[1] 100,000 of 980,000, runs-state[2] 100,000 of "
        "980,000 and 9 more, 1,200,000 of 11,760,000 in all"
    )


def test_a_restore_that_doesnt_move_says_why():
    stuck, moving = restore(stalled_s=STALLED_S), restore(1)
    assert why_stalled(stuck, [stuck, moving], []) == "the last stable offset, held back by an open transaction"
    assert why_stalled(stuck, [stuck, moving], ["b:1"]) == "broker b:1, which can't be reached"
    queued = restore(2, 0, stalled_s=STALLED_S)
    assert why_stalled(queued, [queued, moving], []) == "its turn: other restores come first"
    assert waiting_texts(StartupProgress(restores=(stuck, moving)), []) == [
        "waiting for the last stable offset, held back by an open transaction (runs-state[0])"
    ]


def test_lines_come_at_a_bounded_rate_whatever_happens(caplog: pytest.LogCaptureFixture):
    lines, now_s = ProgressLog(), 0.0
    with caplog.at_level(logging.INFO):
        for number in range(400):
            now_s = number * LOOK_S
            scene = StartupProgress(restores=tuple(restore(one, number) for one in range(64)), waits={"x": []})
            lines.tell(scene, ["waiting for x"], now_s)
        first = (now_s - FIRST_LINE_S) // LINE_EVERY_S + 1
        assert len(caplog.messages) == 2 * first
        lines.tell(StartupProgress(owned={"run": [0, 1, 2]}, halted=("in[7] offset 12",)), [], now_s)
        for _ in range(100):
            lines.tell(StartupProgress(owned={"run": [0, 1, 2]}, halted=("in[7] offset 12",)), [], now_s)
    assert caplog.messages[2 * int(first) :] == [
        f"this worker has partitions of run 0-2; halted in front of in[7] offset 12, after {now_s:.1f} s"
    ]


def test_a_quick_start_says_only_what_it_owns(caplog: pytest.LogCaptureFixture):
    lines = ProgressLog()
    with caplog.at_level(logging.INFO):
        lines.tell(StartupProgress(restores=(restore(),)), [], 0.0)
        lines.tell(StartupProgress(owned={"run": [1]}), [], 1.0)
        lines.tell(StartupProgress(), [], 9.0)
    assert caplog.messages == [
        "this worker has partitions of run 1, after 1.0 s",
        "this worker has no partition: the group's other workers have all",
    ]


def test_a_watch_sees_what_tasks_do_and_wait_for():
    app = App("watched")
    source = app.topic("in", key_type=str, value_type=str)

    @app.actor(source)
    async def act(ctx: Context, value: str) -> None:
        if value == "bad":
            raise ValueError(value)

    with ActorTestDriver(app, partitions=4) as driver:
        watch = StartupWatch()
        assert driver._worker is not None
        tasks = sorted(driver._worker.tasks, key=lambda task: task.partition)
        assert watch.look(tasks, 0.0) == StartupProgress(owned={"act": [0, 1, 2, 3]})
        driver.post(source, key="ada", value="bad", partition=3)
        driver.advance(1, settle=False)
        meter = RestoreMeter("s", 0, 0, 5, 10)
        tasks[0].context.state, tasks[1].context.state = State.RESTORING, State.CLAIMING
        tasks[0].meters.restoring.append(meter)
        tasks[1]._predecessor = tasks[2]
        scene = watch.look(tasks, 1.0)
        assert scene.owned == {"act": [2]}
        assert scene.halted == ("in[3] offset 0",)
        assert scene.waits == {"the end of this worker's former task": [TopicPartition("in", 1)]}
        assert scene.restores == (Restoring(store="s", partition=0, start=0, position=5, end=10),)
        assert watch.look(tasks, 1.0 + STALLED_S).restores[0].is_stalled
        meter.read(6, 1)
        assert not watch.look(tasks, 2.0 + STALLED_S).restores[0].is_stalled
        tasks[1]._predecessor = None
        assert list(watch.look(tasks, 9.0).waits) == ["the new epoch is being written"]
        tasks[1].meters.waiting("somebody else")
        assert list(watch.look(tasks, 9.0).waits) == ["somebody else"]


def test_a_rebalance_is_told_from_having_nothing_to_do(caplog: pytest.LogCaptureFixture):
    app = App("announced")

    @app.actor(app.topic("in", key_type=str, value_type=str))
    async def act(ctx: Context, value: str) -> None:
        pass

    with ActorTestDriver(app, partitions=2) as driver, caplog.at_level(logging.INFO, "actors._faust.startup.progress"):
        worker = driver._worker
        assert worker is not None
        announcer = Announcer(worker, group="g", away=lambda: ["b:1"])
        tasks, worker._tasks, worker.meters.rebalances = worker._tasks, {}, 0

        def said_from(now_s: float) -> list[str]:
            caplog.clear()
            for number in range(10):
                announcer.look(now_s + number * LOOK_S)
            return caplog.messages

        assert said_from(0.0) == [
            "waiting for the group g: to be let in by all its members; broker b:1 can't be reached"
        ]
        worker._tasks, worker.meters.rebalances = tasks, 1
        assert said_from(10.0) == ["this worker has partitions of act 0-1, after 10.0 s"]
        worker._tasks = {}
        assert said_from(20.0) == [
            "waiting for the group g: its members agree on the assignment of tasks; broker b:1 can't be reached"
        ]
        worker.meters.rebalances = 2
        assert said_from(30.0) == ["this worker has no partition: the group's other workers have all, after 10.0 s"]
        worker._tasks = tasks


async def test_what_takes_long_at_the_start_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    async with reminding("waiting for what is quick"):
        pass
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        async with reminding("waiting for a view"):
            await eventually(lambda: len(caplog.messages) >= 2)
    # Of so many lines in a second some are left out, which the next second's first line says.
    assert {text.partition(" (before this one ")[0] for text in caplog.messages} == {"waiting for a view"}


# --- of a command --------------------------------------------------------------------------------------------------


def test_an_export_has_a_line_for_each_partition():
    out = io.StringIO()
    with reporting(out, quiet=False) as report:
        report(0, 1_000)
        report(4, 1_000)
        report(4, 2_000)
    assert out.getvalue() == "partition 0: 1,000 keys, done\npartition 4: 2,000 keys, done\n"
    with reporting(out, quiet=True) as report:
        report(5, 1)
    assert "partition 5" not in out.getvalue()
