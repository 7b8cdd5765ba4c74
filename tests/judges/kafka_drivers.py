"""Kafka's own system tests of Kafka Streams, with our workers in the place of theirs.

Their drivers, `EosTestDriver` and `SmokeTestDriver`, are in the test jar of kafka-streams. They write the input, and
read input and outputs in the end; names of topics, and the application's id, are theirs. What they don't notice,
`overlooked` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from actors.declare.names import group_of
from actors.local_kafka.jars import jars_of, java
from tests.kafka.helpers import WorkerProcess, eventually, read_all

VERSION = "4.2.0"
"""The last that has all three in its test jar."""
NEEDS = (
    f"org.apache.kafka:kafka-streams:{VERSION}",
    f"org.apache.kafka:kafka-streams:{VERSION}:test",
    f"org.apache.kafka:kafka-clients:{VERSION}:test",
    "org.slf4j:slf4j-simple:1.7.36",
)
EOS, SMOKE, RELATIONAL = "StreamsEosTest", "StreamsSmokeTest", "RelationalSmokeTest"
PARTITIONS = 5
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""Of the topics: some records are days ahead."""
WORKERS = 3
SESSION_S = 6.0
TOPICS = {
    EOS: ("data", "echo", "min", "sum", "repartition", "max", "cnt"),
    SMOKE: (
        *("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw", "sws-suppressed"),
        *("cnt", "avg", "tagg", "fk"),
    ),
    RELATIONAL: (
        *("in-article", "in-comment", "out-augmented-article", "out-augmented-comment"),
        *("article-for-counts", "article-for-comments", "comment-count"),
    ),
}
APPS = {
    EOS: ("EosTest", "tests.judges.eos_app"),
    SMOKE: ("SmokeTest", "tests.judges.smoke_app"),
    RELATIONAL: ("RelationalSmokeTest", "tests.judges.relational_app"),
}


class Driver:
    """A process of one of the drivers; what it prints is in a file."""

    def __init__(self, test: str, brokers: str, folder: Path) -> None:
        properties = folder / "driver.properties"
        properties.write_text(f"bootstrap.servers={brokers}\nprocessing.guarantee=exactly_once_v2\n")
        # One of them reads no file, and takes what to do before the brokers.
        self._is_relational, self._where = test == RELATIONAL, brokers if test == RELATIONAL else str(properties)
        self._log = folder / "driver.log"
        classes = f"{jars_of(NEEDS, f'kafka-streams-test-{VERSION}')}/*"
        package, logger = "org.apache.kafka.streams.tests", "-Dorg.slf4j.simpleLogger"
        levels = [f"{logger}.defaultLogLevel=warn", f"{logger}.log.{package}=info"]
        self._command = [java(), "-Xmx512m", *levels, "-cp", classes, f"{package}.{test}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: str) -> None:
        """Begin to do what `command` says; what was printed before is gone."""
        arguments = (command, self._where) if self._is_relational else (self._where, command)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*self._command, *arguments], stdout=log, stderr=log)

    def printed(self) -> str:
        """Return what it printed so far."""
        return self._log.read_text(errors="replace")

    async def ended(self, *, stop: bool = False) -> str:
        """Wait for its end, which `stop` brings about, and return what it printed."""
        assert self._process is not None
        if stop:
            self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, 900)
        return self.printed()

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)


class Workers:
    """Three workers of an app that is driven, and what happens to them."""

    def __init__(self, test: str, brokers: str, folder: Path, **environment: str) -> None:
        self.app, module = APPS[test]
        self.brokers = brokers
        self.kills = 0
        self._chance = random.Random(1)
        folders = (folder / f"worker-{number}" for number in range(WORKERS))
        self._workers = [WorkerProcess(module, brokers, folder, **environment) for folder in folders]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run them for the time of the block; whoever is left then is killed."""
        try:
            for worker in self._workers:
                worker.start()
            yield
        finally:
            for worker in self._workers:
                worker.kill()

    async def kill_one(self) -> None:
        """`kill -9` of one, started again at once or when others have its partitions."""
        worker = self._chance.choice(self._workers)
        worker.kill()
        self.kills += 1
        await asyncio.sleep(self._chance.choice([0.0, SESSION_S + 2.0]))
        worker.start()

    async def kill_all(self) -> None:
        """`kill -9` of all at once."""
        for worker in self._workers:
            worker.kill()
            self.kills += 1
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Let them commit and leave the group."""
        codes = await asyncio.gather(*(asyncio.to_thread(worker.terminate) for worker in self._workers))
        assert codes == [0] * WORKERS, self.log()

    def log(self) -> str:
        """Return the ends of their logs."""
        return "\n".join(worker.log()[-2000:] for worker in self._workers)

    async def committed(self) -> dict[TopicPartition, int]:
        """Return the offsets that their group has committed."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(group_of(self.app))
        finally:
            await admin.close()
        return {part: offset.offset for part, offset in offsets.items()}

    async def did_all(self, *inputs: str) -> None:
        """Wait until everything that the inputs have is committed."""

        async def done() -> bool:
            committed, ends = await self.committed(), await end_offsets(self.brokers, inputs)
            return all(committed.get(part, 0) >= end for part, end in ends.items())

        await eventually(done, deadline_s=180, what=self.log)

    async def tell_offsets(self, *inputs: str) -> None:
        """Copy the group's offsets to the group that Kafka Streams would have: the driver looks for them there."""
        offsets = {part: offset for part, offset in (await self.committed()).items() if part.topic in inputs}
        consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers, group_id=self.app, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign(list(offsets))
            await consumer.commit({part: OffsetAndMetadata(offset, "") for part, offset in offsets.items()})
        finally:
            await consumer.stop()


async def end_offsets(brokers: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the ends of all partitions of topics."""
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers)
    await consumer.start()
    try:
        return await consumer.end_offsets(
            [TopicPartition(topic, part) for topic in topics for part in range(PARTITIONS)]
        )
    finally:
        await consumer.stop()


async def records_of(brokers: str, topics: Iterable[str]) -> dict[str, list[Any]]:
    """Return the committed records of topics."""
    return {topic: await read_all(brokers, topic) for topic in topics}


def produced(printed: str) -> int:
    """Return how many records `EosTestDriver` says that it wrote."""
    match = re.search(r"Producer closed: (\d+) records produced", printed)
    assert match is not None, printed[-2000:]
    return int(match[1])


def overlooked(records: Mapping[str, Iterable[Any]], count: int) -> list[str]:
    """Return what is wrong with the topics of `EosTestDriver` and isn't found by it.

    Its check of the input's offsets looks into a map that nothing is ever put into. Of echo and repartition it compares
    only as many records as there are, and so takes a part of them for all. A whole partition of an aggregate it doesn't
    miss, and it reads inputs up to the committed offsets only, however few these are.
    """
    wrong = []
    counts: dict[str, dict[int, int]] = {}
    for topic, topic_records in records.items():
        offsets: dict[int, list[int]] = defaultdict(list)
        for record in topic_records:
            offsets[record.partition].append(record.offset)
        counts[topic] = {part: len(places) for part, places in offsets.items()}
        gaps = [part for part, places in offsets.items() if sorted(places) != list(range(len(places)))]
        if topic == "data" and gaps:
            wrong.append(f"data has gaps in the partitions {sorted(gaps)}")
    if sum(counts["data"].values()) != count:
        wrong.append(f"data has {sum(counts['data'].values())} records, {count} were written")
    for topic, partitions in counts.items():
        source = "repartition" if topic in ("max", "cnt") else "data"
        if partitions != counts[source]:
            wrong.append(f"{topic} has {partitions} records by partition, {source} {counts[source]}")
    return wrong
