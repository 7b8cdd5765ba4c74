"""What the leader registry remembers of an app, and what a start that contradicts it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.connection import Connection
from actors._kafka.control import ControlPlane
from actors.ports import Committed, TopicPartition
from tests.contract.worlds import OffsetDeleteRequest
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.registry_app"
RUNS = "owns"
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> Start:
    """Start a worker of the app; each has a data folder of its own."""

    def begin(name: str, **environment: str) -> WorkerProcess:
        folder = tmp_path / f"{name}-{len(workers)}"
        worker = WorkerProcess(MODULE, brokers, folder, APP_NAME=name, **environment)
        workers.append(worker.start())
        return worker

    return begin


async def said(worker: WorkerProcess, text: str) -> None:
    await eventually(lambda: text in worker.log(), what=worker.log)


async def new_app(brokers: str, name: str = "registry") -> str:
    name = unique(name)
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    return name


async def outputs(brokers: str, name: str) -> list[bytes]:
    return [record.value for record in await read_all(brokers, f"{name}-out")]


async def committed(brokers: str, name: str) -> Committed | None:
    async with ControlPlane.connect(Connection(tuple(brokers.split(","))), f"{name}-actors") as control:
        return await control.committed(TopicPartition(f"{name}-in", 0))


async def forget_offset(brokers: str, name: str) -> None:
    """Do what the broker does after `offsets.retention.minutes`."""
    async with ControlPlane.connect(Connection(tuple(brokers.split(","))), f"{name}-actors") as control:
        response = await control.ask_coordinator(OffsetDeleteRequest(f"{name}-actors", f"{name}-in"))
        assert response.error_code == 0


async def test_a_stateless_actor_whose_offsets_expired_stops_until_somebody_chooses(brokers: str, start: Start) -> None:
    name = await new_app(brokers)
    first = start(name)
    await send(brokers, f"{name}-in", [(b"a", b"%d" % number) for number in range(3)], partitions=1)
    await eventually(lambda: _has(brokers, name, 3), what=first.log)
    assert first.terminate() == 0
    await forget_offset(brokers, name)

    second = start(name)
    await said(second, "is stopped on")
    assert f"actor copy is stopped on {name}-in[0]" in second.log()
    assert "the group has no committed offset any more" in second.log()
    assert "last at offset 3" in second.log()
    assert "--to-offset 3" in second.log()
    assert second.terminate() == 0
    assert await outputs(brokers, name) == [b"0", b"1", b"2"]

    third = start(name, MISSING_OFFSET="latest")
    await said(third, RUNS)
    await send(brokers, f"{name}-in", [(b"a", b"3")], partitions=1)
    await eventually(lambda: _has(brokers, name, 4), what=third.log)
    assert third.terminate() == 0
    assert await outputs(brokers, name) == [b"0", b"1", b"2", b"3"]


async def _has(brokers: str, name: str, count: int) -> bool:
    return len(await outputs(brokers, name)) >= count


async def test_an_input_of_which_retention_left_nothing_is_no_lost_input_after_a_clean_stop(
    brokers: str, start: Start
) -> None:
    name = await new_app(brokers)
    first = start(name)
    producer = AIOKafkaProducer(bootstrap_servers=brokers, transactional_id=f"{name}-source")
    await producer.start()
    async with producer.transaction():
        await producer.send(f"{name}-in", b"0", b"a")
    await eventually(lambda: _has(brokers, name, 1), what=first.log)
    assert first.terminate() == 0
    await producer.stop()
    found = await committed(brokers, name)
    assert found is not None
    assert found.offset == 2
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    await admin.delete_records({KafkaPartition(f"{name}-in", 0): RecordsToDelete(before_offset=-1)})
    await admin.close()

    second = start(name)
    await said(second, RUNS)
    await send(brokers, f"{name}-in", [(b"a", b"1")], partitions=1)
    await eventually(lambda: _has(brokers, name, 2), what=second.log)
