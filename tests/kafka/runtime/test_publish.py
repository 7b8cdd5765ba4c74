"""Read-model topics on a real broker: the same commits as in the changelog, whoever is killed."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors import ActorsError, App, Context
from actors._core.partitioner import partition_for
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection
from actors._kafka.produce.writer import TransactionWriter
from actors.admin import backfill
from actors.ports import CommitBatch, Identity
from tests.kafka import forked
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.publish_app"
KEYS = [f"key-{number}".encode() for number in range(20)]
READER_PARTITIONS = 3
INPUTS = [(KEYS[number * 7 % len(KEYS)], str(number).encode()) for number in range(400)]

History = dict[bytes, list[bytes | None]]


async def history(brokers: str, topic: str) -> History:
    """What was committed for each key, in order."""
    found: History = collections.defaultdict(list)
    for record in await read_all(brokers, topic):
        found[record.key].append(record.value)
    return found


def state_of(sent: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """What is left at the end: independent of the code under test."""
    counts: dict[bytes, int] = {}
    for key, value in sent:
        number = counts.pop(key, 0) + 1
        if int(value) % 3 != 2:
            counts[key] = number
    return {key: b"%d" % number for key, number in counts.items()}


async def ends_with(brokers: str, topic: str, wanted: dict[bytes, bytes]) -> bool:
    found = await history(brokers, topic)
    return {key: values[-1] for key, values in found.items() if values[-1] is not None} == wanted


async def killed(brokers: str, name: str, folder: Path, point: str, count: str, **environment: str) -> None:
    """A worker's life that ends at that point of a commit."""
    doomed = WorkerProcess(
        MODULE,
        brokers,
        folder,
        APP_NAME=name,
        INSTANCE_ID="one",
        PUBLISH="1",
        CRASH_AT=point,
        CRASH_COUNT=count,
        **environment,
    ).start()
    try:
        assert await asyncio.to_thread(doomed.wait) == -9, doomed.log()[-3000:]
    finally:
        doomed.kill()


async def begin(brokers: str) -> str:
    name = unique("publish")
    await make_topics(brokers, f"{name}-in")
    await send(brokers, f"{name}-in", INPUTS)
    return name


async def test_readers_get_exactly_what_was_committed_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, folder = await begin(brokers), tmp_path / "data"
    await killed(brokers, name, folder, "inside", "1")
    await killed(brokers, name, folder, "ended", "1")
    worker = WorkerProcess(MODULE, brokers, folder, APP_NAME=name, INSTANCE_ID="one", PUBLISH="1")
    workers.append(worker.start())
    changelog = f"{name}--counts-changelog"
    await eventually(lambda: ends_with(brokers, changelog, state_of(INPUTS)), what=worker.log)
    # One commit may have taken all of them.
    more = [(KEYS[0], b"0")]
    await send(brokers, f"{name}-in", more)
    await eventually(lambda: ends_with(brokers, changelog, state_of([*INPUTS, *more])), what=worker.log)
    logged, published = (
        await history(brokers, changelog),
        await history(brokers, f"{name}-readers"),
    )
    assert published == logged
    assert max(map(len, logged.values())) > 1
    for record in await read_all(brokers, f"{name}-readers"):
        assert (record.headers, record.partition) == ((), partition_for(record.key, READER_PARTITIONS))
    assert await config(brokers, f"{name}-readers", "cleanup.policy") == "compact"


async def config(brokers: str, topic: str, setting: str) -> str:
    connection = Connection.to(brokers, client_id="test")
    async with ControlPlane.connect(connection, "none") as control:
        return (await Topics(connection, control).configs([topic]))[topic][setting]


async def test_what_is_published_outside_of_the_transaction_is_found(brokers: str, tmp_path: Path) -> None:
    """The damage that the check above is there for."""
    name = await begin(brokers)
    await killed(brokers, name, tmp_path / "data", "inside", "1", PLANT="outside")
    assert await history(brokers, f"{name}-readers") != await history(brokers, f"{name}--counts-changelog")


def published_by_hand(brokers: str, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"APP_NAME": name, "KAFKA_URL": f"kafka://{brokers}", **environment}
    return forked.faust("-A", MODULE, "state", "publish", "counts", environment=given)


async def test_what_was_there_before_is_published_by_a_command(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await begin(brokers)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    await eventually(lambda: ends_with(brokers, f"{name}--counts-changelog", state_of(INPUTS)), what=worker.log)
    changelog = await read_all(brokers, f"{name}--counts-changelog")

    async def publish(**environment: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(published_by_hand, brokers, name, **environment)

    refused, busy = await asyncio.gather(publish(), publish(PUBLISH="1"))
    assert (refused.returncode, busy.returncode) == (1, 1), (refused, busy)
    assert "store counts isn't published" in refused.stderr
    assert "stop all workers" in busy.stderr
    assert worker.terminate() == 0
    done = await publish(PUBLISH="1")
    assert done.returncode == 0, done
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "store": "counts",
        "topic": f"{name}-readers",
        "partitions": 2,
        "keys": len(state_of(INPUTS)),
    }
    assert await history(brokers, f"{name}-readers") == {key: [value] for key, value in state_of(INPUTS).items()}
    assert await read_all(brokers, f"{name}--counts-changelog") == changelog
    await overtaken_by_a_worker(brokers, name, monkeypatch)
    more = [(KEYS[0], b"3"), (KEYS[1], b"2")]
    await send(brokers, f"{name}-in", more)
    again = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name, PUBLISH="1")
    workers.append(again.start())
    await eventually(lambda: ends_with(brokers, f"{name}-readers", state_of(INPUTS + more)), what=again.log)


async def overtaken_by_a_worker(brokers: str, name: str, patch: pytest.MonkeyPatch) -> None:
    """Whoever takes the partition over meanwhile shuts the command out."""
    app = App(name, broker=f"kafka://{brokers}")
    readers = app.topic(f"{name}-readers", key_type=str, value_type=int)
    counts = app.store("counts", key_type=str, value_type=int, publish=readers)

    @app.actor(app.topic(f"{name}-in", key_type=str, value_type=str), stores=[counts])
    async def count(ctx: Context, value: str) -> None:
        pass

    setup, write = Setup(app), TransactionWriter.write

    async def followed(self: TransactionWriter, identity: Identity, batches: list[CommitBatch]) -> Any:
        receipts = await write(self, identity, batches)
        other = setup.writer("other")
        await other.fence()
        await other.end_transaction_of(setup.command_id("count", batches[0].partition))
        await other.close()
        return receipts

    patch.setattr(TransactionWriter, "write", followed)
    patch.setattr(backfill, "CHUNK_RECORDS", 2)
    with pytest.raises(ActorsError, match="Was a worker started meanwhile"):
        await backfill.publish_all(setup, "counts", "count", lambda *_: None)
    patch.undo()


async def test_a_topic_that_doesnt_keep_values_is_refused(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("publish")
    await make_topics(brokers, f"{name}-in", f"{name}-readers")
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name, PUBLISH="1")
    workers.append(worker.start())
    assert await asyncio.to_thread(worker.wait) == 1
    assert f"topic {name}-readers, to which store counts is published, has cleanup.policy=delete" in worker.log()


@pytest.mark.nightly
async def test_the_example(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    await make_topics(brokers, "parcel-scans")
    worker = WorkerProcess("examples.read_model", brokers, tmp_path / "data")
    workers.append(worker.start())
    await send(
        brokers,
        "parcel-scans",
        [(b"p%d" % (number % 3), b'{"place": "%d"}' % number) for number in range(9)],
    )
    wanted = {b"p%d" % number: b'{"place":"%d","scans":3}' % (number + 6) for number in range(3)}
    await eventually(lambda: ends_with(brokers, "parcel-status", wanted), what=worker.log)
    reader = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "examples.read_model",
        cwd=ROOT,
        env={**os.environ, "KAFKA_URL": f"kafka://{brokers}", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert reader.stdout is not None
        async with asyncio.timeout(30):
            shown = [await reader.stdout.readline() for _ in range(3)]
            assert shown == [b"p0 6 3\n", b"p1 7 3\n", b"p2 8 3\n"]
            await send(brokers, "parcel-scans", [(b"p1", b'{"place": "here", "has_arrived": true}')])
            assert await reader.stdout.readline() == b"p1 arrived\n"
    finally:
        reader.terminate()
        await reader.wait()
