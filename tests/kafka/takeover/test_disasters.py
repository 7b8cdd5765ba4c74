"""docs/how-to/disasters.md: its commands, as they stand there, do what it promises."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from dev.kafka import CONSUMER_GROUP_COMMAND, LOG_DIRS_COMMAND, TOPIC_COMMAND, Cluster, tool_command
from tests.documents import ROOT, block
from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, delete, eventually, make_topics, read_all, send, unique

# Each command of a page has two minutes.
pytestmark = pytest.mark.timeout(900)

PAGE = "docs/how-to/disasters.md"
STORE = "totals"
PARTITIONS = 2
KEYS = [b"key-%d" % number for number in range(20)]
LINES = (ROOT / PAGE).read_text().splitlines()


def said_below(title: str) -> list[re.Pattern[str]]:
    """Give the errors that the page quotes below a heading, up to its first table."""
    start = LINES.index(f"## {title}")
    end = next(number for number in range(start, len(LINES)) if LINES[number].startswith("|"))
    quoted = re.findall(r"`([^`]*…[^`]*)`", " ".join(LINES[start:end]))
    assert quoted, title
    return [re.compile(".+?".join(map(re.escape, text.split("…")))) for text in quoted]


@dataclass
class Operator:
    """Somebody who gives the page's commands for one app, whose handler counts each key's messages."""

    brokers: str
    folder: Path
    started: list[WorkerProcess]
    name: str = field(default_factory=lambda: unique("disaster"))
    worker: WorkerProcess | None = None
    sent: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the page's beginning, and what the app takes."""
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "KAFKA_URL": ";".join(f"kafka://{broker}" for broker in self.brokers.split(",")),
            "APP_NAME": self.name,
            "APP_KIND": STORE,
            "BROKER": self.brokers,
            "MODULE": "tests.kafka.apps.registry_app",
            "APP": self.name,
            "INPUT": f"{self.name}-in",
            "PARTITIONS": str(PARTITIONS),
            "STORE": STORE,
            "DATA": str(self.folder / "data"),
            "BACKUP": str(self.folder / "backup"),
        }

    @property
    def changelog(self) -> str:
        return f"{self.name}--{STORE}-changelog"

    async def make(self, *kinds: str) -> None:
        await make_topics(self.brokers, *(f"{self.name}-{kind}" for kind in kinds or ("in", "out")))

    async def send(self) -> None:
        """Send a message to each key."""
        await send(self.brokers, f"{self.name}-in", [(key, b"x") for key in KEYS])

    async def has_handled(self, count: int) -> None:
        """Wait until so many messages were handled, and no more."""

        async def done() -> bool:
            found = len(await read_all(self.brokers, f"{self.name}-out"))
            assert found <= count, self.log()
            return found == count

        await eventually(done, what=self.log)

    async def holds(self, count: int) -> None:
        """Check that the state is so many messages of each key."""
        found = {record.key: int(record.value) for record in await read_all(self.brokers, self.changelog)}
        assert found == dict.fromkeys(KEYS, count)

    def log(self) -> str:
        assert self.worker is not None
        return self.worker.log()

    def start(self, **settings: str) -> WorkerProcess:
        made = WorkerProcess(
            self.environment["MODULE"], self.brokers, Path(self.environment["DATA"]), **self.environment, **settings
        )
        made.log_file = self.folder / f"{len(self.started)}.log"
        self.started.append(made)
        self.worker = made
        return made.start()

    async def run(self, **settings: str) -> None:
        """Start a worker, and wait until all partitions run."""
        self.start(**settings)
        await self.says(re.compile(f"actor counter owns {self.name}-in"), times=PARTITIONS)

    async def says(self, text: re.Pattern[str], *, times: int) -> None:
        await eventually(lambda: len(text.findall(self.log())) >= times, what=self.log)

    async def stop(self) -> None:
        if self.worker is not None and self.worker.is_running():
            assert await asyncio.to_thread(self.worker.terminate) == 0, self.log()

    async def stands_still(self, title: str, quoted: int = 0, *, times: int = PARTITIONS, **settings: str) -> str:
        """Start a worker that stops with the error that the page quotes below a heading; give its log."""
        worker = self.start(**settings)
        await self.says(said_below(title)[quoted], times=times)
        await asyncio.to_thread(worker.terminate)
        return worker.log()

    async def follow(self, title: str, number: int = 1, *, page: str = PAGE, **more: str) -> list[str]:
        """Give the commands of a block in order, and stop each worker but the last one when its partitions run.

        Spark's take too long: tests/spark runs them, and tests/unit/docs/test_blocks.py parses those of this page.
        """
        said = []
        for command in block(page, title, number).commands():
            words = command.split()
            if "worker" in words:
                await self.stop()
                at = words.index("faust")
                assert words[at:] == ["faust", "-A", "$MODULE", "-D", "$DATA", "worker", "-l", "info"]
                await self.run(**dict(word.split("=") for word in words[:at]))
            elif "spark_replay" not in words:
                said.append(await self.give(command, **more))
        return said

    async def give(self, command: str, **more: str) -> str:
        """Run a command in a shell, or one of the app as a fork; give what it prints."""
        environment = {**os.environ, **self.environment, **more}
        if command.startswith("faust "):
            words = shlex.split(Template(command).substitute(environment))
            done = await asyncio.to_thread(forked.faust, *words[1:], environment=environment)
            assert done.returncode == 0, (command, done)
            return done.stdout
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(120):
                out, trouble = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
        # Kafka's tools end with 0 after some of their errors, too.
        assert (process.returncode, b"Error" in out) == (0, False), (command, out, trouble)
        return out.decode()

    async def set_offsets(self, offset: int | None) -> None:
        """Do what a tool does that sets the group's offsets; None deletes the group."""
        group = f"{self.name}-actors"
        if offset is None:
            await self.give("kafka-consumer-groups.sh --bootstrap-server $BROKER --delete --group $APP-actors")
            return
        async with AIOKafkaConsumer(bootstrap_servers=self.brokers, group_id=group, enable_auto_commit=False) as tool:
            parts = [TopicPartition(f"{self.name}-in", number) for number in range(PARTITIONS)]
            tool.assign(parts)
            await tool.commit(dict.fromkeys(parts, offset))


@pytest.fixture
def operator(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> Operator:
    programs = {
        "faust": [sys.executable, "-m", "faust"],
        "python": [sys.executable],
        "kafka-topics.sh": tool_command(TOPIC_COMMAND),
        "kafka-consumer-groups.sh": tool_command(CONSUMER_GROUP_COMMAND),
        "kafka-log-dirs.sh": tool_command(LOG_DIRS_COMMAND),
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (folder / name).chmod(0o755)
    return Operator(brokers, tmp_path, workers)


@pytest.mark.nightly
async def test_a_changelog_that_was_deleted(operator: Operator) -> None:
    title = "A changelog was deleted"
    await operator.make()
    await operator.send()
    await operator.run()
    await operator.has_handled(20)
    await operator.stop()
    assert STORE in (await operator.follow("First"))[1]
    await delete(operator.brokers, operator.changelog)
    await operator.stands_still(title, times=1)
    await operator.follow(title)
    await operator.send()
    await operator.has_handled(40)
    await operator.holds(2)

    await operator.stop()
    await operator.follow(title, 2)
    await operator.has_handled(80)
    await operator.holds(2)
    shown, listed = await operator.follow("Verify")
    assert all(f"counter, partition {number}" in shown for number in range(PARTITIONS))
    assert STORE in listed
    sizes = await operator.follow("Sizing", page="docs/how-to/scaling.md")
    assert "bytes on disk" in sizes[0]
    assert '"size":' in sizes[1]


@pytest.mark.nightly
async def test_an_input_that_was_created_again(operator: Operator) -> None:
    title = "An input was created again"
    await operator.make()
    await operator.send()
    await operator.run()
    await operator.has_handled(20)

    async def recreate() -> None:
        await operator.stop()
        await delete(operator.brokers, f"{operator.name}-in")
        await operator.make("in")
        await operator.send()

    await recreate()
    await operator.stands_still(title)
    await operator.follow(title, 1)
    await operator.has_handled(40)
    await operator.holds(2)

    await recreate()
    await operator.follow(title, 2)
    await operator.send()
    await operator.has_handled(60)
    await operator.holds(3)

    await recreate()
    await operator.follow(title, 3)
    await operator.has_handled(80)
    await operator.holds(1)


def remedies(log: str) -> dict[str, str]:
    """Give the partition of each error, and the offset that it names."""
    return dict(re.findall(r"--topic \S+:(\d+) --reset-offsets --execute --to-offset (\d+)", log))


@pytest.mark.nightly
async def test_offsets_that_are_wrong(operator: Operator) -> None:
    title = "The offsets are wrong"
    await operator.make()
    await operator.send()
    await operator.run()
    await operator.has_handled(20)

    for offset, quoted in ((0, 0), (None, 1)):
        await operator.stop()
        await operator.set_offsets(offset)
        log = await operator.stands_still(title, quoted)
        for partition, last in remedies(log).items():
            await operator.follow(title, 1, PARTITION=partition, OFFSET=last)
        await operator.follow(title, 2)
        await operator.send()
        await operator.has_handled(40 if offset == 0 else 60)
    await operator.holds(3)

    await operator.stop()
    await operator.set_offsets(0)
    await operator.follow(title, 2)
    await operator.has_handled(120)
    await operator.holds(6)


@pytest.mark.nightly
async def test_a_cluster_that_is_lost(operator: Operator, tmp_path: Path) -> None:
    title, here = "The cluster is lost", operator.brokers
    with Cluster.up(tmp_path / "lost") as lost:
        operator.brokers = lost.bootstrap
        await operator.make()
        for count in (20, 40):
            await operator.send()
            if operator.worker is None:
                await operator.run()
            await operator.has_handled(count)
        await operator.stop()
    # Without a broker.
    await operator.follow("First")
    operator.brokers = here
    await operator.make()
    await operator.stands_still(title)
    await delete(here, f"{operator.name}-in")
    await operator.follow(title)
    await operator.holds(2)
    await operator.send()
    await operator.has_handled(20)
    await operator.holds(3)

    await operator.stop()
    await operator.give("rm -rf $DATA; cp -a $BACKUP $DATA")
    await operator.stands_still(title, LOST_CHANGELOG="restore")
    await operator.holds(3)
    assert "key-1" in await operator.give("faust --json -A $MODULE -D $DATA state get $STORE key-1")


@pytest.mark.nightly
async def test_backups(operator: Operator) -> None:
    title = "Back up"
    await operator.make()
    await operator.send()
    await operator.run()
    await operator.has_handled(20)
    await operator.stop()
    _, listed = await operator.follow(title, 1)
    assert STORE in listed
    await operator.run()
    await operator.send()
    await operator.has_handled(40)
    await operator.stop()

    await operator.follow(title, 2)
    assert re.search(r"restored [1-9]\d* records", operator.log())
    await operator.send()
    await operator.has_handled(60)
    await operator.holds(3)

    await operator.stop()
    await operator.give("rm -rf $DATA; cp -a $BACKUP $DATA")
    stores = json.loads(await operator.give("faust --json -A $MODULE -D $DATA state list"))
    for part in stores[0]["partitions"]:
        offset = str(part["position"]["source_offset"])
        await operator.follow("The offsets are wrong", 1, PARTITION=str(part["partition"]), OFFSET=offset)
    await operator.follow(title, 3)
    await operator.has_handled(100)
    await operator.holds(3)
