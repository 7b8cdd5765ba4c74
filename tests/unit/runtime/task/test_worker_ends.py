"""Tasks and workers that end: whose the stores are then, what is said of them, and what comes first."""

import asyncio
import functools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from actors import App
from actors._core.group.members import TaskId
from actors._core.task.lifecycle import State
from actors._faust.disk import lags
from actors._faust.service import ActorService
from actors.ports import Identity, TopicIdentity, TopicPartition
from actors.runtime.committer import Membership
from actors.runtime.worker import Worker
from actors.testing.fakes.ports import FakeClock

FIRST = TopicPartition("in", 0)
TASK = TaskId("count", 0)


class Group:
    """It has forgotten the members of generation 1."""

    async def is_member(self, identity: Identity) -> bool:
        return identity.generation != 1

    async def topic_ids(self, names: Iterable[str]) -> dict[str, TopicIdentity]:
        return {name: TopicIdentity("", 1) for name in names}


class Log:
    """A broker that answers the first generation only."""

    def __init__(self, identity: Identity) -> None:
        self._answers = identity.generation == 1

    async def fence(self) -> None:
        if not self._answers:
            await asyncio.Event().wait()

    def end(self) -> None:
        return

    async def close(self) -> None:
        return


def make_worker() -> Worker:
    spec: Any = SimpleNamespace(
        name="count",
        topics=("in",),
        inputs=("in",),
        is_partitioned=True,
        partition_count=2,
        stores=(1,),
        changelogs={},
        event_times={},
        feeds=None,
    )
    sink = SimpleNamespace(stop_delivery=lambda source: None)
    services: Any = SimpleNamespace(group=Group(), clock=FakeClock(), sink=sink, release=None)
    settings: Any = SimpleNamespace(queue_records=100, backoff=None, rules=None)
    nothing: Any = None

    member = Membership()

    def failed(error: BaseException) -> None:
        raise error

    return Worker(
        [spec],
        source=nothing,
        services=services,
        task_settings=settings,
        revoke_s=1.0,
        member=member,
        task_log=lambda: Log(member.identity),
        on_failure=failed,
    )


@pytest.mark.parametrize("generation", [1, 2])
def test_stores_are_free_after_a_task_that_ended_by_itself_too(generation: int) -> None:
    async def test() -> None:
        worker = make_worker()
        worker.assigned(Identity("a", generation), [FIRST])
        (task,) = worker.tasks
        if generation == 1:
            assert await task.ended(5)
        assert not worker.is_free(TASK)
        await worker.revoked()
        worker.assigned(Identity("a", generation + 1), [])
        await asyncio.sleep(0)
        assert worker.is_free(TASK)

    asyncio.run(test())


async def test_a_question_that_waits_for_a_commit_hears_of_the_tasks_end() -> None:
    worker = make_worker()
    worker.assigned(Identity("a", 1), [FIRST])
    (task,) = worker.tasks
    task.context.state = State.COMMITTING
    wait = task.context.commit_end(60.0)
    assert wait is not None
    await task.ended(5)
    assert task.state is State.CLOSED
    assert wait.done()


@pytest.mark.parametrize(
    ("state", "said"), [(State.RUNNING, 0), (State.COMMITTING, 0), (State.HALTED, 0), (State.RESTORING, None)]
)
def test_an_owner_that_restores_anew_doesnt_say_that_it_has_everything(state: State, said: int | None) -> None:
    specs: Any = [SimpleNamespace(name="count", topic="in", stores=(1,))]
    task: Any = SimpleNamespace(id=TASK, sources=[FIRST], epoch=3, state=state)
    copies: Any = SimpleNamespace(lags=dict)
    worker = make_worker()
    worker._tasks[TASK] = task
    worker._readers[FIRST] = task, 0
    assert lags(specs, worker, copies).get(TaskId("count", 0)) == said


class Parts:
    """What a worker closes, in the order of its end; closing `hangs` takes for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, hangs: str = "") -> None:
        self.done: list[str] = []
        self.hangs = hangs
        announcer = SimpleNamespace(start=lambda: None, stop=lambda: None)
        monkeypatch.setattr("actors._faust.service.Announcer", lambda *_, **__: announcer)
        self.service = service = ActorService(App("ends", broker="kafka://127.0.0.1:1"))
        setup = SimpleNamespace(connection=SimpleNamespace(outages=None), group="")
        worker = SimpleNamespace(stop=lambda _: self.end("tasks"))
        parts: Any = SimpleNamespace(setup=setup, worker=worker, standbys=SimpleNamespace(stop=self.part("copies")))
        committer: Any = SimpleNamespace(settle=self.part("settled"))
        source: Any = SimpleNamespace(close=self.part("group"))
        watch: Any = SimpleNamespace(stop=lambda: None)
        service._source = source
        service._at_end(lambda: self.done.append("stores"))
        service._note_end(parts, committer, watch)

    async def end(self, name: str) -> None:
        self.done.append(name)
        if name == self.hangs:
            await asyncio.Event().wait()

    def part(self, name: str) -> Any:
        return functools.partial(self.end, name)


async def test_the_group_is_left_before_the_copies_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch)
    await parts.service.on_stop()
    assert parts.done == ["tasks", "settled", "group", "copies", "stores"]


async def test_nothing_more_is_closed_once_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actors._faust.service.STOP_S", 0.01)
    parts = Parts(monkeypatch, hangs="group")
    await parts.service.on_stop()
    assert parts.done == ["tasks", "settled", "group"]
    assert "stopping took longer than 0.01 s" in caplog.text
