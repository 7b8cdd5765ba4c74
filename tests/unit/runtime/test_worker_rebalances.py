"""What a worker does with an assignment: which tasks go on, which are handed over, and which are dropped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from actors._core.group.members import TaskId
from actors._core.task.lifecycle import State
from actors.errors import TakeoverRefusedError
from actors.ports import Identity, TopicPartition
from actors.runtime import worker as worker_module
from actors.runtime.committer import Membership
from actors.runtime.worker import Worker

ONE, TWO, THREE = (TopicPartition("in", number) for number in range(3))
FIRST, NEXT = Identity("m", 1), Identity("m", 2)


@dataclass(frozen=True)
class Spec:
    """An actor without state."""

    name: str = "count"
    topic: str = "in"
    partition_count: int = 3
    stores: tuple[str, ...] = ()
    topics: tuple[str, ...] = ("in",)
    is_partitioned: bool = False
    feeds: None = None


def id_of(source: TopicPartition) -> TaskId:
    return TaskId("count", source.partition)


class FakeTask:
    """A task that ends when the test says so; `calls` is what the worker had it do, as whom it could commit then."""

    def __init__(
        self, spec: Any, partition: int, *, member: Membership, predecessor: Any, refusal: Any, **_: Any
    ) -> None:
        self.spec, self.id, self.sources = spec, TaskId("count", partition), [TopicPartition("in", partition)]
        self.predecessor, self.refusal = predecessor, refusal
        self.calls: list[tuple[str, Identity]] = []
        self.has_ended = self.is_abandoned = False
        self.failure = self.halted_by = None
        self.state = State.RUNNING
        self._member = member
        self._end = asyncio.Event()

    def start(self, on_end: Any) -> None:
        self._on_end = on_end

    def request_stop(self, *, is_last: bool) -> None:
        if not self.is_abandoned:
            self.calls.append(("stop", self._member.identity))

    def abandon(self) -> None:
        self.is_abandoned = True
        self.calls.append(("abandon", self._member.identity))

    async def stopped(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._end.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def end(self) -> None:
        self.has_ended = True
        self._end.set()
        self._on_end(self)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(worker_module, "Task", FakeTask)
    spec: Any = Spec()
    nothing: Any = None
    services: Any = SimpleNamespace(group=nothing, clock=nothing)
    made = Worker(
        [spec],
        source=nothing,
        services=services,
        task_settings=nothing,
        revoke_s=0.01,
        member=Membership(),
        task_log=lambda: nothing,
        on_failure=lambda error: pytest.fail(repr(error)),
    )
    made.assigned(FIRST, [ONE, TWO])
    return made


def tasks(worker: Worker) -> Any:
    return [worker.task_of(id_of(source)) for source in (ONE, TWO)]


async def test_what_stays_goes_on_what_is_handed_over_commits_and_the_rest_is_dropped(worker: Worker) -> None:
    one, two = tasks(worker)
    worker.joining()
    assert worker.is_assigned
    worker.assigned(NEXT, [ONE, THREE], [TWO])
    assert worker.task_of(id_of(ONE)) is one
    assert worker.task_of(id_of(TWO)) is None
    assert worker.task_of(id_of(THREE)) is not None
    # It was asked to stop before anything could be committed as a member of the new generation.
    assert (one.calls, two.calls) == ([], [("stop", FIRST)])
    assert list(worker.leaving) == [TWO]
    assert not worker.is_free(id_of(TWO))
    two.end()
    await worker.handed_over()
    assert not worker.leaving
    assert worker.is_free(id_of(TWO))
    assert [call for call, _ in two.calls] == ["stop", "abandon"]
    worker.assigned(Identity("m", 3), [THREE])
    assert one.calls == [("abandon", NEXT)]


async def test_what_is_handed_over_too_slowly_is_dropped_before_the_worker_joins_without_it(worker: Worker) -> None:
    _, two = tasks(worker)
    worker.assigned(NEXT, [ONE], [TWO])
    await worker.handed_over()
    assert not worker.leaving
    assert two.is_abandoned
    assert not worker.is_free(id_of(TWO))


async def test_what_comes_back_while_it_is_handed_over_waits_for_its_predecessor(worker: Worker) -> None:
    _, two = tasks(worker)
    worker.assigned(NEXT, [ONE], [TWO])
    worker.assigned(Identity("m", 3), [ONE, TWO])
    again: Any = worker.task_of(id_of(TWO))
    assert again.predecessor is two
    assert not two.is_abandoned
    two.end()
    await worker.handed_over()
    assert not again.calls


async def test_what_still_commits_of_a_worker_that_stops_is_handed_over_too(worker: Worker) -> None:
    one, two = tasks(worker)
    await worker.revoked()
    worker._stopping = True
    worker.assigned(NEXT, [ONE], [TWO])
    assert list(worker.leaving) == [TWO]
    assert not one.is_abandoned
    assert not two.is_abandoned
    assert worker.task_of(id_of(ONE)) is None


async def test_all_is_dropped_when_the_group_has_forgotten_the_worker(worker: Worker) -> None:
    both = tasks(worker)
    worker.joining()
    changed = asyncio.create_task(worker._member.changed(FIRST))
    worker.dropped()
    assert all(task.is_abandoned for task in both)
    assert not worker.is_assigned
    assert not await changed
    worker.assigned(NEXT, [ONE])
    again: Any = worker.task_of(id_of(ONE))
    assert again.predecessor is both[0]


@pytest.mark.parametrize("why", ["it ended", "it stands still", "its input grew"])
async def test_a_task_that_stays_is_started_anew_if(worker: Worker, why: str) -> None:
    one, _ = tasks(worker)
    if why == "it ended":
        one.has_ended = True
    elif why == "it stands still":
        one.halted_by = TakeoverRefusedError("its offset is wrong")
    else:
        worker.grown({"in": 5})
    worker.assigned(NEXT, [ONE, TWO])
    assert worker.task_of(id_of(ONE)) is not one
    assert not one.is_abandoned
