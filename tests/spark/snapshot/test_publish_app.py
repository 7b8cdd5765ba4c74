"""An app with work of each kind in hand goes to another number of partitions: everything comes, and exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition
from click.testing import CliRunner, Result

from actors.declare.names import group_of
from spark_replay.cli import main
from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, partition_for, producing, read_all, unique
from tests.moved import BEFORE, START_MS, Record, first, second

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULE = "tests.kafka.apps.moved_app"
TOPICS = ("orders", "payments", "bills")


@dataclass
class Run:
    """An app on its own topics, with so many partitions."""

    brokers: str
    folder: Path
    partitions: int
    name: str = field(default_factory=lambda: unique("moved"))

    @property
    def environment(self) -> dict[str, str]:
        addresses = ";".join(f"kafka://{broker}" for broker in self.brokers.split(","))
        return {"APP_NAME": self.name, "APP_SECRET": "the-secret-of-the-workers-0123456789", "KAFKA_URL": addresses}

    async def begin(self) -> None:
        await make_topics(
            self.brokers, *(f"{self.name}-{topic}" for topic in (*TOPICS, "out")), partitions=self.partitions
        )

    def worker(self, *, mended: bool) -> WorkerProcess:
        environment = {**self.environment, "APP_MENDED": str(int(mended))}
        return WorkerProcess(MODULE, self.brokers, self.folder / self.name, **environment).start()

    async def send(self, records: list[Record]) -> None:
        async with producing(self.brokers) as producer:
            for topic, key, value, at_s in records:
                raw, home = key.encode(), partition_for(key.encode(), self.partitions)
                at_ms, content = START_MS + 1000 * at_s, json.dumps(value).encode()
                await producer.send(f"{self.name}-{topic}", content, raw, partition=home, timestamp_ms=at_ms)
            await producer.flush()

    async def results(self) -> Counter[tuple[str, ...]]:
        records = await read_all(self.brokers, f"{self.name}-out")
        return Counter((record.key.decode(), *map(str, json.loads(record.value))) for record in records)

    async def lag(self) -> int:
        """How many offsets the group is behind the ends of the inputs."""
        places = [
            TopicPartition(f"{self.name}-{topic}", number) for topic in TOPICS for number in range(self.partitions)
        ]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers)
        async with contextlib.AsyncExitStack() as stack:
            for client, close in ((admin, admin.close), (consumer, consumer.stop)):
                await client.start()
                stack.push_async_callback(close)
            try:
                offsets = await admin.list_consumer_group_offsets(group_of(self.name))
            except KafkaError:
                # The group isn't there yet.
                return len(places)
            ends = await consumer.end_offsets(places)
        return sum(end - max(0, offsets[place].offset if place in offsets else 0) for place, end in ends.items())

    async def retry(self) -> None:
        command = [
            "-A",
            MODULE,
            "-D",
            str(self.folder / "cli"),
            "--json",
            "parked",
            "retry",
            "--all",
            "--what",
            "message",
        ]
        done = await asyncio.to_thread(forked.faust, *command, environment=self.environment, timeout_s=90.0)
        assert done.returncode == 0, done


STILL_S = 3.0


async def settled(run: Run, worker: WorkerProcess, least: int = 0) -> Counter[tuple[str, ...]]:
    """Wait until all input is handled, and so many results stand still."""
    results: Counter[tuple[str, ...]] = Counter()
    since_s = time.monotonic()

    async def is_still() -> bool:
        nonlocal results, since_s
        former, results = results, await run.results()
        if results != former or await run.lag():
            since_s = time.monotonic()
        return results.total() >= least and time.monotonic() > since_s + STILL_S

    await eventually(is_still, deadline_s=120, what=lambda: f"{results.total()} of {least} {worker.log()[-3000:]}")
    return results


def publish(*words: object) -> Result:
    return CliRunner().invoke(main, ["publish", *map(str, words)])


NAME, MORE = "tests.spark.snapshot.test_publish_app", 10**12
RAISED = {"sum": 3, "changed": 3, "visit": 4, "paid": 2}
"""Kinds of results, and from which place on they have values that are transformed."""


def more(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Add to a sum or a count."""
    return key, msgspec.msgpack.encode(msgspec.msgpack.decode(value) + MORE)


def more_json(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Add to an amount."""
    return key, b"%d" % (int(value) + MORE)


TRANSFORMS = [f"--transform={store}={NAME}:more" for store in ("sums", "visits")]
TRANSFORMS.append(f"--transform=paid={NAME}:more_json")


def is_raised(row: tuple[str, ...]) -> bool:
    return row[1] in RAISED and any(text != "None" and int(text) > MORE // 2 for text in row[RAISED[row[1]] :])


def as_it_was(row: tuple[str, ...]) -> tuple[str, ...]:
    """A result without what transforms added to what it is of."""
    if row[1] not in RAISED:
        return row
    numbers = (str((int(text) + 100) % MORE - 100) if text != "None" else text for text in row[RAISED[row[1]] :])
    return (*row[: RAISED[row[1]]], *numbers)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_an_app_goes_to_another_number_of_partitions(
    spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asyncio.run(whole(brokers, tmp_path, monkeypatch))


async def whole(brokers: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never, old = Run(brokers, folder, BEFORE), Run(brokers, folder, BEFORE)
    before: dict[str, Counter[tuple[str, ...]]] = {}
    for run in (never, old):
        await run.begin()
        worker = run.worker(mended=False)
        await run.send(first())
        before[run.name] = await settled(run, worker, 200)
        assert worker.terminate() == 0, worker.log()[-3000:]
    expected = await finish(never)
    kinds = {row[1] for row in expected}
    assert kinds == {"sum", "changed", "visit", "kinds", "reminded", "shipped", "counted", "paid"}
    # Another test may have imported it under another name.
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    for key, value in old.environment.items():
        monkeypatch.setenv(key, value)
    for partitions, transforms in ((8, TRANSFORMS), (3, ())):
        new = Run(brokers, folder, partitions)
        await new.begin()
        words: list[object] = ["--brokers", brokers, "--app", MODULE, "--to", new.name, "--partitions", partitions]
        result = await asyncio.to_thread(publish, *words, *transforms)
        assert result.exit_code == 0, result.output
        after = await finish(new, expected.total() - before[old.name].total())
        assert {row[1] for row in after if is_raised(row)} == (set(RAISED) if transforms else set())
        both = before[old.name] + Counter(as_it_was(row) for row in after.elements())
        assert (both - expected, expected - both) == (Counter(), Counter())
    refused = await asyncio.to_thread(publish, *words, "--transform", f"kinds={NAME}:more", "--dry-run")
    assert "--kinds-values-changelog has rows of the framework, which can't be transformed" in refused.output
    refused = await asyncio.to_thread(publish, *words, "--transform", f"sorts={NAME}:more")
    assert "has no store 'sorts' to transform, it has counts, kinds, paid, sums, take-" in refused.output
    worker = old.worker(mended=False)
    await settled(old, worker)
    words[5] = unique("new")
    assert "can't be kept out, stop them" in (await asyncio.to_thread(publish, *words)).output
    worker.terminate()
    await old.send(second()[:1])
    assert "not handled yet: 1 record of" in (await asyncio.to_thread(publish, *words)).output


async def finish(run: Run, least: int = 0) -> Counter[tuple[str, ...]]:
    """Send the rest, with everything mended, and retry what is parked."""
    worker = run.worker(mended=True)
    await run.send(second())
    await settled(run, worker)
    await run.retry()
    results = await settled(run, worker, least)
    assert worker.terminate() == 0, worker.log()[-3000:]
    return results


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--app", "shop"],
        ["--app", "shop", "--partitions", 3, "--changelog", "a--b-changelog"],
        ["--app", "shop", "--changelog", "a--b-changelog"],
    ],
)
def test_either_an_app_or_a_changelog(words: list[object]):
    result = publish("--brokers", "127.0.0.1:1", "--to", "new", *words)
    assert (result.exit_code, "give --changelog, or --app with --partitions" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--app", "shop", "--partitions", 3, "--transform", "m:f"],
        ["--app", "shop", "--partitions", 3, "--transform", "a=m:f", "--transform", "a=m:g"],
        ["--changelog", "a--b-changelog", "--transform", "a=m:f"],
        ["--changelog", "a--b-changelog", "--transform", "m:f", "--transform", "m:g"],
    ],
)
def test_a_transform_is_of_one_store(words: list[object]):
    result = publish("--brokers", "127.0.0.1:1", "--to", "new", *words)
    assert (result.exit_code, "--transform takes MODULE:FUNCTION once; with --app" in result.stderr) == (2, True)
