"""What the leader registry remembers of an app, and what a start that contradicts it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors.ports import Committed, TopicPartition
from tests.contract.worlds import OffsetDeleteRequest
from tests.kafka import forked
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


@pytest.mark.nightly
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


async def refused(worker: WorkerProcess, *texts: str) -> None:
    await eventually(lambda: not worker.is_running(), what=worker.log)
    for text in texts:
        assert text in worker.log(), worker.log()
    assert RUNS not in worker.log()


async def test_two_apps_whose_names_would_make_one_have_two_changelogs(brokers: str, start: Start) -> None:
    shop = await new_app(brokers, "shop")
    shop_eu = f"{shop}-eu"
    await make_topics(brokers, f"{shop_eu}-in", f"{shop_eu}-out", partitions=1)
    first, second = start(shop, APP_KIND="eu-orders"), start(shop_eu, APP_KIND="orders")
    for name in (shop, shop_eu):
        await send(brokers, f"{name}-in", [(b"a", b"x")], partitions=1)
        await eventually(lambda name=name: _has(brokers, name, 1), what=first.log if name == shop else second.log)
    for changelog in (f"{shop}--eu-orders-changelog", f"{shop_eu}--orders-changelog"):
        assert len(await read_all(brokers, changelog)) == 1


@pytest.mark.nightly
async def test_a_changelog_that_was_named_by_hand_is_not_left_with_its_state(brokers: str, start: Start) -> None:
    name = await new_app(brokers)
    named = f"orders={name}--by-hand"
    first = start(name, APP_KIND="orders", APP_CHANGELOGS=named)
    await send(brokers, f"{name}-in", [(b"a", b"x"), (b"a", b"x")], partitions=1)
    await eventually(lambda: _has(brokers, name, 2), what=first.log)
    assert first.terminate() == 0
    await refused(start(name, APP_KIND="orders"), f"changelogs={{'orders': '{name}--by-hand'}}", "state forget orders")
    second = start(name, APP_KIND="orders", APP_CHANGELOGS=named)
    await send(brokers, f"{name}-in", [(b"a", b"x")], partitions=1)
    await eventually(lambda: _has(brokers, name, 3), what=second.log)
    assert await outputs(brokers, name) == [b"1", b"2", b"3"]


async def told(brokers: str, folder: Path, environment: dict[str, str], *words: str) -> dict[str, Any]:
    """Run a command of the app; give what it prints last."""
    done = await asyncio.to_thread(
        forked.faust,
        *("-A", MODULE, "-D", str(folder / "cli"), *words),
        environment={**environment, "KAFKA_URL": f"kafka://{brokers}"},
    )
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.nightly
async def test_a_program_with_another_actor_for_the_input_is_refused_while_the_first_runs(
    brokers: str, start: Start, tmp_path: Path
) -> None:
    name = await new_app(brokers)
    first = start(name)
    await said(first, RUNS)
    await refused(
        start(name, APP_KIND="other"), f"topic {name}-in is the input of actor copy, and this program gives it to actor"
    )
    await send(brokers, f"{name}-in", [(b"a", b"0")], partitions=1)
    await eventually(lambda: _has(brokers, name, 1), what=first.log)
    assert first.terminate() == 0

    result = await told(brokers, tmp_path, {"APP_NAME": name, "APP_KIND": "other"}, "state", "forget", "copy")
    assert result == {"forgotten": "copy", "topics": []}
    second = start(name, APP_KIND="other")
    await said(second, RUNS)
    await send(brokers, f"{name}-in", [(b"a", b"1")], partitions=1)
    await eventually(lambda: _has(brokers, name, 2), what=second.log)
    assert await outputs(brokers, name) == [b"0", b"1"]


@pytest.mark.nightly
async def test_a_renamed_store_keeps_its_state_or_is_given_up(brokers: str, start: Start, tmp_path: Path) -> None:
    name = await new_app(brokers)
    first = start(name, APP_KIND="orders")
    await send(brokers, f"{name}-in", [(b"a", b"x"), (b"a", b"x")], partitions=1)
    await eventually(lambda: _has(brokers, name, 2), what=first.log)
    assert first.terminate() == 0
    await refused(
        start(name, APP_KIND="bookings"),
        f"store orders: no actor of this program has it any more, and its state is in topic {name}--orders-changelog",
        'renamed_from="orders"',
        "state forget orders",
    )
    renamed = start(name, APP_KIND="bookings", APP_RENAMED="orders")
    await send(brokers, f"{name}-in", [(b"a", b"x")], partitions=1)
    await eventually(lambda: _has(brokers, name, 3), what=renamed.log)
    assert renamed.terminate() == 0
    assert await outputs(brokers, name) == [b"1", b"2", b"3"]

    # Both of its names are given up with it.
    result = await told(brokers, tmp_path, {"APP_NAME": name, "APP_KIND": "third"}, "state", "forget", "orders")
    assert result == {"forgotten": "orders", "topics": [f"{name}--orders-changelog"]}
    await said(start(name, APP_KIND="third"), RUNS)


@pytest.mark.nightly
async def test_a_renamed_field_without_a_version_is_refused(brokers: str, start: Start) -> None:
    name = await new_app(brokers)
    first = start(name, APP_KIND="purse")
    await said(first, RUNS)
    assert first.terminate() == 0
    await refused(
        start(name, APP_KIND="wallet"),
        "store saver: the type of its values doesn't fit those that are kept",
        "field coins (int) is missing",
        "Set state_version to 2",
    )
    grown = start(name, APP_KIND="grown")
    await said(grown, RUNS)
    assert grown.terminate() == 0
    # A program that is older than the newest one, as in a rolling deploy, starts and says what it doesn't know.
    older = start(name, APP_KIND="purse")
    await said(older, RUNS)
    assert "a newer program has run on this state" in older.log()
    assert "field notes (int) is missing" in older.log()


async def test_parked_messages_of_an_actor_that_parks_no_more_are_not_left_behind(brokers: str, start: Start) -> None:
    name = await new_app(brokers)
    first = start(name, APP_KIND="parks")
    await send(brokers, f"{name}-in", [(b"a", b"1"), (b"a", b"2"), (b"b", b"3")], partitions=1)
    changelog = f"{name}--copy-parked-changelog"
    await said(first, RUNS)
    await eventually(lambda: _has_records(brokers, changelog, 3), what=first.log)
    assert first.terminate() == 0
    await refused(
        start(name, APP_KIND="stops"),
        f"actor copy: 3 parked messages of 2 keys wait in topic {changelog}",
        "parked retry copy KEY",
        "parked drop copy KEY",
    )


async def _has_records(brokers: str, topic: str, count: int) -> bool:
    return len(await read_all(brokers, topic)) >= count
