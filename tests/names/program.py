"""A program under faults: its topics, its workers, its producers, and the account of what is to be handled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from tests.crash.checks import Record
from tests.crash.world import World
from tests.kafka.helpers import ROOT, WorkerProcess, delete, eventually, make_topics, producing
from tests.names.checks import Findings, Jump, Life, check, may_start_at

logger = logging.getLogger("names")

PARTITIONS, OUT_PARTITIONS, KEYS = 4, 16, 500
BATCH, REST_S = 10, 0.2
_EVENT = re.compile(
    r"^\[(?P<at>[^]]+)\] \[\d+\] \[\w+\] (?:actor \w+ (?:owns (?P<owned>\S+) from offset (?P<offset>\d+) in epoch "
    r"(?P<epoch>\d+)|is (?:still )?stopped on (?P<stopped>\S+): (?P<why>.*))|(?P<again>\S+): (?P<failed>.*); taking "
    r"over again in)",
    re.MULTILINE,
)


class Event(NamedTuple):
    """What a worker said of a partition: that it owns it from an offset on, or an error."""

    at: str
    source: str
    offset: int | None
    epoch: int
    error: str
    worker: WorkerProcess


@dataclass(slots=True, eq=False)
class Program:
    """An app with a state, `kinds` of inputs, and everything that faults and operators do to it.

    `generation` counts its ids: one that is carried over to more partitions gets another. `damages` are those that
    weren't put right yet, with the kind of input, and `told` what errors told of. `violations` are what is wrong apart
    from the account.
    """

    world: World
    label: str
    kinds: tuple[str, ...]
    chance: Random
    has_timers: bool = False
    generation: int = 0
    workers: list[WorkerProcess] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    ended: list[Life] = field(default_factory=list)
    sent: int = 0
    unsure: set[int] = field(default_factory=set)
    damages: set[tuple[str, str]] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    stops: Counter[str] = field(default_factory=Counter)
    violations: Findings = field(default_factory=Findings)
    strangers: list[WorkerProcess] = field(default_factory=list)
    is_over: bool = False
    paused: bool = False
    chosen: dict[str, str] = field(default_factory=dict)
    started: list[WorkerProcess] = field(default_factory=list)
    _before: dict[TopicPartition, int] = field(default_factory=dict)
    _marks: dict[WorkerProcess, int] = field(default_factory=dict)
    _accounted: set[str] = field(default_factory=set)
    _flying: dict[str, int] = field(default_factory=dict)

    @property
    def app(self) -> str:
        """The app's id, and how the names of its topics begin."""
        return f"{self.label}-{self.generation}"

    @property
    def brokers(self) -> str:
        """The cluster's addresses."""
        return self.world.cluster.bootstrap

    @property
    def step_file(self) -> Path:
        """It says by how many milliseconds the workers' wall clock is off."""
        return self.world.folder / f"{self.label}-step"

    def set_clock(self, off_ms: int) -> None:
        """Set the workers' wall clock."""
        new = self.step_file.with_suffix(".new")
        new.write_text(str(off_ms))
        new.replace(self.step_file)

    async def create(self, workers: int) -> None:
        """Make the topics, and start the workers."""
        self.set_clock(0)
        await make_topics(self.brokers, f"{self.label}-out", partitions=OUT_PARTITIONS)
        await self.begin(workers, PARTITIONS)

    async def begin(self, workers: int, partitions: int) -> None:
        """Make the inputs of a generation, and its workers, which aren't started."""
        self.workers.clear()
        for kind in ("in", "plain"):
            count = partitions if kind == "in" else PARTITIONS
            await make_topics(self.brokers, f"{self.app}-{kind}", partitions=count)
            self.lives[kind] = Life(f"{self.app}-{kind}", count)
        self.workers += [self.worker(f"{self.app}-worker-{number}") for number in range(workers)]

    def worker(self, name: str, **environment: str) -> WorkerProcess:
        """A worker that isn't started."""
        if self.has_timers:
            environment["TIMERS"] = "1"
        environment |= {"APP_NAME": self.app, "OUT": f"{self.label}-out", "STEP_FILE": str(self.step_file)}
        return WorkerProcess("tests.names.app", self.brokers, self.world.folder / name / "data", **environment)

    # --- producers -------------------------------------------------------------------------------------------------

    async def feed(self, kind: str) -> None:
        """Send all the time, whatever becomes of the topic."""
        chance = Random(f"{self.label} {kind}")
        async with producing(
            self.brokers, acks="all", request_timeout_ms=10_000, metadata_max_age_ms=2_000
        ) as producer:
            while not self.is_over:
                if self.paused:
                    await asyncio.sleep(0.05)
                    continue
                life, first = self.lives[kind], self.sent
                self.sent += BATCH
                self._flying[kind] = first
                sent: list[asyncio.Future] = []
                with contextlib.suppress(KafkaError):
                    known = len(await producer.partitions_for(life.topic))
                    for number in range(first, first + BATCH):
                        key = b"key-%d" % chance.randrange(KEYS)
                        place = partition_for(key, min(known, life.partitions))
                        sent.append(await producer.send(life.topic, b"%d" % number, key, partition=place))
                results = await asyncio.gather(*sent, return_exceptions=True)
                if len(sent) < BATCH or any(isinstance(result, BaseException) for result in results):
                    self.unsure.update(range(first, first + BATCH))
                del self._flying[kind]
                await asyncio.sleep(REST_S)

    async def pause(self) -> None:
        """Have the producers wait, with nothing on its way."""
        self.paused = True
        await eventually(lambda: not self._flying)

    # --- topics ----------------------------------------------------------------------------------------------------

    async def recreate(self, kind: str, pause_s: float) -> None:
        """Delete an input, and create it again."""
        life, count = self.lives[kind], PARTITIONS if kind == "plain" else self.own_partitions
        if count != life.partitions:
            # Producers have to place by the new number; what they sent by the former one would be in wrong partitions.
            await self.pause()
        self.account(await self.ends())
        await self.note_reached()
        first = self._flying.get(kind, self.sent)
        life.records = await self.world.read(life.topic)
        await delete(self.brokers, life.topic)
        await asyncio.sleep(pause_s)
        await make_topics(self.brokers, life.topic, partitions=count)
        self.unsure.update(range(first, self.sent))
        life.end = "deleted"
        self.ended.append(life)
        self.lives[kind] = Life(life.topic, count, waiting=set(range(count)))
        self.paused = False

    @property
    def own_partitions(self) -> int:
        """How many partitions the state has."""
        return PARTITIONS + 2 * self.generation

    async def carry_over(self, partitions: int) -> None:
        """Follow docs/how-to/snapshots.md: another app id, with the state, and with the inputs that weren't handled."""
        await self.pause()
        former, left = self.app, dict[str, list[Record]]()
        for kind, life in self.lives.items():
            life.records = await self.world.read(life.topic)
            life.end = "carried"
            left[kind] = [
                record
                for record in life.records
                if record.partition in life.waiting or record.offset >= life.reached.get(record.partition, 0)
            ]
            self.ended.append(life)
        self.generation += 1
        assert partitions == self.own_partitions, f"{partitions} partitions, {self.own_partitions} were expected"
        await self.begin(len(self.workers), partitions)
        command = ["-m", "spark_replay", "publish", "--brokers", self.brokers, "--partitions", str(partitions)]
        command += ["--changelog", f"{former}--tally-changelog", "--to", f"{self.app}--tally-changelog"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()[-3000:]
        async with producing(self.brokers, acks="all") as producer:
            for kind, records in left.items():
                life = self.lives[kind]
                for record in sorted(records, key=lambda record: (record.partition, record.offset)):
                    assert record.key is not None
                    place = partition_for(record.key, life.partitions)
                    await producer.send(life.topic, record.value, record.key, partition=place)
            await producer.flush()
        self.damages.clear()
        self.told.clear()
        self.paused = False

    async def offsets(self) -> dict[TopicPartition, int]:
        """The group's offsets, asked until a coordinator answers."""
        while True:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                return await self.world.offsets_of(f"{self.app}-actors")
            await asyncio.sleep(0.2)

    async def ends(self) -> dict[TopicPartition, int]:
        """The ends of the inputs."""
        return await self.world.ends(*(life.topic for life in self.lives.values()))

    async def note_reached(self) -> None:
        """Take the committed offsets of partitions with which nobody tampered."""
        offsets = await self.offsets()
        for life in self.lives.values():
            for number in set(range(life.partitions)) - life.waiting - life.tampered:
                found = offsets.get(TopicPartition(life.topic, number))
                life.reached[number] = life.reached.get(number, 0) if found is None else found

    # --- workers ---------------------------------------------------------------------------------------------------

    async def start(self, workers: list[WorkerProcess] | None = None, **chosen: str) -> None:
        """Start workers, for this one time with these settings."""
        self._before, self.chosen = await self.offsets(), chosen
        self._accounted.clear()
        for worker in self.workers:
            self._marks[worker] = len(worker.log())
        self.started = list(self.workers if workers is None else workers)
        for worker in self.started:
            worker.start(**chosen)

    async def stop(self) -> None:
        """Stop all workers, and note where partitions went on since the start, and where they are."""
        await asyncio.gather(*(asyncio.to_thread(worker.terminate) for worker in self.workers))
        self.account(await self.ends())
        await self.note_reached()

    def events(self) -> Iterator[Event]:
        """What all workers said of their partitions since the last start, in order."""
        found = []
        for worker in self.workers:
            for match in _EVENT.finditer(worker.log()[self._marks.get(worker, 0) :]):
                source = match["owned"] or match["stopped"] or match["again"]
                offset = None if match["offset"] is None else int(match["offset"])
                error = match["why"] or match["failed"] or ""
                found.append(Event(match["at"], source, offset, int(match["epoch"] or 0), error, worker))
        return iter(sorted(found, key=lambda event: event.at))

    def account(self, ends: dict[TopicPartition, int]) -> None:
        """Note where partitions went on after the start; a place that nobody chose is a violation."""
        first: dict[str, Event] = {}
        for event in self.events():
            if event.offset is not None and event.epoch < first.get(event.source, event._replace(epoch=1 << 62)).epoch:
                first[event.source] = event
        for life in self.lives.values():
            for number in range(life.partitions):
                source, part = f"{life.topic}[{number}]", TopicPartition(life.topic, number)
                found = first.get(source)
                if found is None or found.offset is None or source in self._accounted:
                    continue
                self._accounted.add(source)
                before = self._before.get(part)
                if not may_start_at(found.offset, life, number, before, ends.get(part, 0), self.chosen):
                    text = f"{source} at {found.offset}, it was at {life.reached.get(number, 0)}, offset {before}"
                    self.violations.note("wrong start", f"{text}, {self.chosen}, waiting {life.waiting}")
                at = life.reached.get(number, 0)
                if found.offset != at:
                    life.jumps.append(Jump(number, at, found.offset))
                life.waiting.discard(number)
                life.tampered.discard(number)

    async def findings(self) -> Findings:
        """Compare everything that the topics hold."""
        for life in self.lives.values():
            life.records = await self.world.read(life.topic)
        said = await self.world.read(f"{self.label}-out")
        state = await self.world.read(f"{self.app}--tally-changelog")
        lives = [*self.ended, *self.lives.values()]
        return check(lives, said, state, unsure=self.unsure, has_timers=self.has_timers)

    def end(self) -> None:
        """Kill what is left."""
        for worker in [*self.workers, *self.strangers]:
            worker.kill()
