"""Inputs that were deleted and created again, and offsets that another program set: nothing is skipped in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition

from actors._core.task.topic_ids import show_id
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

RECORDS = 2_000
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> Start:
    """Start a worker of the app on the disk of the one before."""

    def begin(name: str, **environment: str) -> WorkerProcess:
        module = "tests.kafka.apps.registry_app"
        worker = WorkerProcess(module, brokers, tmp_path / name, APP_NAME=name, **environment)
        worker.log_file = tmp_path / f"{name}-{len(workers)}.log"
        workers.append(worker.start())
        return worker

    return begin


def records(round_: object, count: int = RECORDS) -> list[tuple[bytes, bytes]]:
    return [(b"%s-%d" % (str(round_).encode(), number), b"x") for number in range(count)]


async def handled(brokers: str, name: str, round_: object) -> Counter[bytes]:
    found = Counter(record.key for record in await read_all(brokers, f"{name}-out"))
    return Counter({key: times for key, times in found.items() if key.startswith(f"{round_}-".encode())})


async def recreate(brokers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_topics([topic])

        async def is_made() -> bool:
            response = await admin.create_topics([NewTopic(topic, 1, 1)])
            return response.topic_errors[0][1] == 0

        await eventually(is_made)
    finally:
        await admin.close()


async def id_of(brokers: str, topic: str) -> str:
    async with ControlPlane.connect(Connection(tuple(brokers.split(","))), "nobody") as control:
        return show_id(str((await control.topics([topic]))[topic].topic_id))


async def set_offset(brokers: str, name: str, offset: int) -> None:
    """Do what `kafka-consumer-groups.sh --reset-offsets` does."""
    part = TopicPartition(f"{name}-in", 0)
    async with AIOKafkaConsumer(bootstrap_servers=brokers, group_id=f"{name}-actors", enable_auto_commit=False) as tool:
        tool.assign([part])
        await tool.commit({part: offset})


async def said(worker: WorkerProcess, *texts: str) -> None:
    await eventually(lambda: all(text in worker.log() for text in texts), what=lambda: worker.log()[-3000:])


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "rounds"), [("copy", 1), ("seen", 2)])
async def test_an_input_re_created_under_a_busy_worker_stops_until_somebody_chooses(
    brokers: str, start: Start, kind: str, rounds: int
) -> None:
    name = unique("again")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    worker = start(name, APP_KIND=kind)
    await said(worker, "owns")
    for round_ in range(rounds):
        await send(brokers, f"{name}-in", records(f"old{round_}"), partitions=1)
        before = await id_of(brokers, f"{name}-in")
        await recreate(brokers, f"{name}-in")
        await send(brokers, f"{name}-in", records(f"new{round_}"), partitions=1)
        after = await id_of(brokers, f"{name}-in")
        await said(worker, "was re-created", before, after, "MISSING_OFFSET")
        assert await handled(brokers, name, f"new{round_}") == {}
        assert worker.terminate() == 0

        worker = start(name, APP_KIND=kind, MISSING_OFFSET="earliest")
        await eventually(lambda name=name, r=round_: _has(brokers, name, f"new{r}", RECORDS), what=worker.log)
        assert worker.terminate() == 0
        assert set((await handled(brokers, name, f"new{round_}")).values()) == {1}
        assert set((await handled(brokers, name, f"old{round_}")).values()) <= {1}
        # The choice was for one start, and later ones need none: not on another disk either.
        worker.folder.rename(worker.folder.with_name(f"{name}-{round_}"))
        worker = start(name, APP_KIND=kind)
        await said(worker, "owns")
    await recreate(brokers, f"{name}-in")
    await send(brokers, f"{name}-in", records("skipped", 10), partitions=1)
    await said(worker, "was re-created")
    assert worker.terminate() == 0
    worker = start(name, APP_KIND=kind, MISSING_OFFSET="latest")
    await said(worker, "from offset 10 ")
    await send(brokers, f"{name}-in", records("last", 10), partitions=1)
    await eventually(lambda: _has(brokers, name, "last", 10), what=worker.log)
    assert await handled(brokers, name, "skipped") == {}


async def _has(brokers: str, name: str, round_: str, count: int) -> bool:
    return len(await handled(brokers, name, round_)) >= count


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["copy", "seen"])
async def test_an_offset_that_was_set_by_hand_is_refused_unless_it_is_wanted(
    brokers: str, start: Start, kind: str
) -> None:
    name = unique("moved")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    worker = start(name, APP_KIND=kind)
    await send(brokers, f"{name}-in", records("first", 20), partitions=1)
    await eventually(lambda: _has(brokers, name, "first", 20), what=worker.log)
    assert worker.terminate() == 0
    steps = ((5, "handles the inputs 5 to 19 again", "first", 35), (30, "skips the inputs 20 to 29", "second", 10))
    for offset, effect, what, count in steps:
        before = await read_all(brokers, f"{name}-out")
        await set_offset(brokers, name, offset)
        worker = start(name, APP_KIND=kind)
        await said(worker, f"committed offset {offset} was set by hand", effect, "MOVED_OFFSET=accept")
        assert worker.terminate() == 0
        assert len(await read_all(brokers, f"{name}-out")) == len(before)
        worker = start(name, APP_KIND=kind, MOVED_OFFSET="accept")
        await said(worker, f"from offset {offset} ")
        await eventually(lambda what=what, count=count: _times(brokers, name, what, count), what=worker.log)
        assert worker.terminate() == 0
        await send(brokers, f"{name}-in", records("second", 20), partitions=1)
    assert await _times(brokers, name, "first", 35)
    assert await _times(brokers, name, "second", 10)


async def _times(brokers: str, name: str, round_: str, count: int) -> bool:
    return sum((await handled(brokers, name, round_)).values()) == count
