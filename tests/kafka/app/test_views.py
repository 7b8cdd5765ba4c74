"""Views on a real broker: several processes, kept folders, killed brokers, races for a version."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import PolicyViolationError
from aiokafka.structs import TopicPartition

from actors import ConfigurationError, View, ViewFailedError, ViewTimeoutError
from actors._kafka.consume.logs import KafkaLogs
from actors.runtime.state.restore import LOOK_BACK
from dev.kafka import Cluster
from tests.kafka.helpers import (
    ROOT,
    add_partitions,
    delete,
    eventually,
    make_topics,
    producing,
    read_all,
    send,
    unique,
)

COMPACTED = {"cleanup.policy": "compact"}
MINUTE = timedelta(seconds=60)


def view_of(brokers: str, topic: str, folder: Path | None = None) -> View[str, str]:
    return View(topic, broker=brokers, value_type=str, folder=folder)


def pairs(**values: str | None) -> list[tuple[bytes, bytes | None]]:
    return [(key.encode(), None if value is None else value.encode()) for key, value in values.items()]


@pytest.fixture
async def topic(brokers: str) -> str:
    name = unique("view")
    await make_topics(brokers, name, config=COMPACTED)
    return name


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each chunk of a restore had."""
    counts: list[int] = []
    read = KafkaLogs.read

    async def counting(self: Any, *args: Any) -> Any:
        async for records, reached in read(self, *args):
            counts.append(len(records))
            yield records, reached

    monkeypatch.setattr(KafkaLogs, "read", counting)
    return counts


async def delete_records(brokers: str, topic: str) -> None:
    """Have every log start at its end; a broker allows that for topics that aren't compacted."""
    ends = dict.fromkeys(range(2), 0)
    for record in await read_all(brokers, topic):
        ends[record.partition] = record.offset + 1
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    doomed = {TopicPartition(topic, number): RecordsToDelete(before_offset=end) for number, end in ends.items()}

    async def delete() -> bool:
        with contextlib.suppress(PolicyViolationError):
            await admin.delete_records(doomed)
            return True
        return False

    try:
        for policy in ("delete", "compact"):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": policy})
            await admin.alter_configs([resource])
            if policy == "delete":
                await eventually(delete)

        async def is_compacted() -> bool:
            (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            return ("cleanup.policy", "compact") in [entry[:2] for entry in response.resources[0][4]]

        await eventually(is_compacted)
    finally:
        await admin.close()


@pytest.mark.nightly
async def test_two_processes_see_the_same(brokers: str, topic: str, tmp_path: Path) -> None:
    await send(brokers, topic, pairs(a="1", b="1", c="1"))
    programs = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.kafka.apps.view_reader",
            brokers,
            topic,
            folder,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        for folder in ("", str(tmp_path / "kept"))
    ]
    try:
        for program in programs:
            assert program.stdout is not None
            assert await program.stdout.readline() == b"ready\n"
        await send(brokers, topic, pairs(a="2", b=None, d="1"))
        await send(brokers, topic, pairs(go="now"))
        async with asyncio.timeout(60):
            outputs = [(await program.communicate())[0] for program in programs]
    finally:
        for program in programs:
            if program.returncode is None:
                program.kill()
    assert [json.loads(output) for output in outputs] == [{"a": "2", "c": "1", "d": "1", "go": "now"}] * 2


async def test_a_restart_reads_the_tail_only(brokers: str, topic: str, tmp_path: Path, counted: list[int]) -> None:
    await send(brokers, topic, [(b"k%d" % number, b"1") for number in range(5_000)])
    async with view_of(brokers, topic, tmp_path / "v") as view:
        assert len(view) == 5_000
    assert sum(counted) == 5_000
    counted.clear()
    await send(brokers, topic, pairs(k1="2", k2=None, k3="3"))
    async with view_of(brokers, topic, tmp_path / "v") as view:
        # The last records before the position are looked at, in each of two partitions: the topic may be another one.
        assert 3 <= sum(counted) <= 5 + 2 * LOOK_BACK
        assert (view.get("k1"), view.get("k2"), len(view)) == ("2", None, 4_999)
        assert await view.wait_for("k3") == "3"


async def test_what_was_aborted_is_never_seen(brokers: str, topic: str) -> None:
    async with view_of(brokers, topic) as view, producing(brokers, transactional_id=unique("id")) as producer:
        seen: list[tuple[Any, ...]] = []
        view.on_change(lambda *change: seen.append(change))
        for is_committed in (False, True, False):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"committed" if is_committed else b"aborted", b"a")
            with pytest.raises(ViewTimeoutError):
                await view.caught_up(timeout=timedelta(seconds=1))
            await (producer.commit_transaction() if is_committed else producer.abort_transaction())
            # Also past the markers, behind which there is nothing.
            await view.caught_up(timeout=MINUTE)
        await view.callbacks_done()
        assert seen == [("a", None, "committed")]


async def test_a_delete_that_is_gone_from_the_log_isnt_missed(brokers: str, topic: str, tmp_path: Path) -> None:
    await send(brokers, topic, pairs(a="1", b="1", c="1", d="1"))
    async with view_of(brokers, topic, tmp_path / "v"):
        pass
    await send(brokers, topic, pairs(a=None, b=None))
    await delete_records(brokers, topic)
    await send(brokers, topic, pairs(c="2", d="2", e="2", f="2"))
    async with view_of(brokers, topic, tmp_path / "v") as view:
        assert dict(view.items()) == {"c": "2", "d": "2", "e": "2", "f": "2"}


@pytest.mark.nightly
async def test_a_delete_that_compaction_took_away_isnt_missed(tmp_path: Path) -> None:
    """The broker's own cleaner removes values, and then the tombstones, while nobody has the view open."""
    with Cluster.up(tmp_path / "kafka", overrides={"log.cleaner.backoff.ms": "100"}) as cluster:
        topic, brokers = unique("view"), cluster.bootstrap
        eager = {"delete.retention.ms": "4000", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
        await make_topics(brokers, topic, config={**COMPACTED, **eager})
        await send(brokers, topic, pairs(a="1", b="1", c="1", d="1"))

        def view() -> View[str, str]:
            margin = timedelta(seconds=1)
            return View(topic, broker=brokers, value_type=str, folder=tmp_path / "v", clock_skew_margin=margin)

        async with view() as first:
            assert first.get("a") == "1"
        await send(brokers, topic, pairs(a=None, b=None))

        async def tombstones_are_gone() -> bool:
            # What is written after a segment's time rolls it, and only older segments are cleaned.
            await send(brokers, topic, pairs(c="2", d="2", e="2", f="2"))
            await asyncio.sleep(0.3)
            return {record.key for record in await read_all(brokers, topic)} == {b"c", b"d", b"e", b"f"}

        await eventually(tombstones_are_gone)
        async with view() as second:
            assert dict(second.items()) == {"c": "2", "d": "2", "e": "2", "f": "2"}


async def test_a_topic_made_anew_and_one_with_more_partitions(
    brokers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.replicas.view_replica.LONGEST_LOOK_S", 0.5)
    await send(brokers, topic, pairs(a="1", b="1"))
    async with view_of(brokers, topic, tmp_path / "v") as view:
        seen: list[tuple[Any, ...]] = []
        view.on_change(lambda *change: seen.append(change))
        await delete(brokers, topic)
        await make_topics(brokers, topic, config=COMPACTED)
        await send(brokers, topic, pairs(b="2"))
        await eventually(lambda: dict(view.items()) == {"b": "2"}, what=lambda: dict(view.items()))
        await view.callbacks_done()
        assert ("a", "1", None) in seen
        await add_partitions(brokers, topic, total=4)
        with pytest.raises(ViewFailedError, match="4 partitions, the view holds 2"):
            await view.wait_for("nobody", timeout=MINUTE)
    with pytest.raises(ConfigurationError, match="4 partitions, the view holds 2"):
        await view_of(brokers, topic, tmp_path / "v").open()


@pytest.mark.nightly
async def test_it_goes_on_when_a_killed_broker_is_back(tmp_path: Path) -> None:
    with Cluster.up(tmp_path / "kafka") as cluster:
        topic, brokers, (broker,) = unique("view"), cluster.bootstrap, cluster.broker_ids
        await make_topics(brokers, topic, config=COMPACTED)
        await send(brokers, topic, pairs(a="1"))
        async with view_of(brokers, topic, tmp_path / "v") as view:
            seen: list[tuple[Any, ...]] = []
            view.on_change(lambda *change: seen.append(change))
            for number in ("2", "3"):
                cluster.kill(broker)
                await asyncio.sleep(2)
                assert view.get("a") is not None
                cluster.start(broker)
                await send(brokers, topic, pairs(a=number))
                await view.wait_for("a", predicate=lambda value, number=number: value == number, timeout=MINUTE)
            await view.caught_up(timeout=MINUTE)
            await view.callbacks_done()
            assert seen == [("a", "1", "2"), ("a", "2", "3")]
