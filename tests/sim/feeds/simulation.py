"""One run: a program by event time, sources, faults, then peace, and the results beside the oracle's.

The sources have backlogs, bursts, silences, disorder up to the grace, transactions that are committed, aborted or left
open, and producers that lag. Stream time may not depend on any of it: a result that differs, a record that is late
without being allowed to by the promise of `docs/design/0013-event-time.md`, a window that closes twice or never, a
committed time that goes back, and anything written at rest are violations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from actors._core.partitioner import MURMUR2
from actors._core.task.pauses import Pause
from actors._faust.setup import Setup
from actors.ports import TopicPartition
from actors.runtime import worker
from actors.runtime.commands import CONTROL_HEADER, Command
from actors.runtime.task.task import Task
from actors.runtime.virtual_time import StuckError
from actors.testing.driving import SimTopics, make_topics, record_stores
from actors.testing.fakes.cluster import EPOCH_MS
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.errors import RefusedError
from actors.testing.fakes.ports import FakeClock
from tests.sim.fakes.loop import VirtualLoop
from tests.sim.fakes.network import Network
from tests.sim.feeds.judge import Judge
from tests.sim.feeds.machine import FeedKafka, FeedWorld, Machine, Notes
from tests.sim.feeds.program import (
    CLICKS,
    FIRST,
    LATE,
    NOTES,
    RESULTS,
    Event,
    Shape,
    make_app,
)
from tests.sim.nemesis import Nemesis
from tests.sim.simulation import SimulationFailedError

FAULTS = (
    "crash",
    "crash_at_step",
    "pause",
    "pause_at_step",
    "wake_in_takeover",
    "rebalance",
    "rebalance_at_step",
    "unknown_outcome",
    "bad_network",
    "cut_off",
    "move_group_coordinator",
    "move_transaction_coordinator",
    "slow_disk",
    "clock_jump",
    "foreign_transaction",
    "slow_markers",
    "bounce",
    "slow_actor",
    "lost_look",
    "slow_look",
    "grow",
)
QUIET_S = 90.0
"""How long after the last record everything has to be handed out."""
LAST_REST_S = 30.0
"""How long times may still move when all results are there."""
REST_S = 15.0
"""How long nothing may be written then."""
TRACE_LINES = 60
USERS = ("u0", "u1", "u2", "u3")


@dataclass
class Report:
    """What a run was like."""

    seed: int
    shape: Shape
    violations: list[str]
    trace: list[str]
    counted: Counter[str] = field(default_factory=Counter)


def check(
    seed: int, *, faults: Sequence[str] | None = None, features: Sequence[str] = (), print_trace: bool = False
) -> Report:
    """Run a seed.

    Raises:
        SimulationFailedError: something isn't as the promise says.
    """
    report = simulate(seed, faults=faults, features=features, print_trace=print_trace)
    if report.violations:
        lines = [f"feeds, seed {seed}: {report.shape}", *report.violations[:10], "---", *report.trace[-TRACE_LINES:]]
        raise SimulationFailedError("\n".join(lines))
    return report


def simulate(
    seed: int, *, faults: Sequence[str] | None = None, features: Sequence[str] = (), print_trace: bool = False
) -> Report:
    """Run a seed and report, whatever happens; with these faults only, if they are given.

    `features` are those of `Shape.with_features`.
    """
    loop = VirtualLoop()
    run = Run(loop, seed, faults, frozenset(features), print_trace=print_trace)
    loop.set_exception_handler(lambda _, context: run.notes.violated(f"unhandled: {context}"))
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loop.run_until_complete(run.play())
        except StuckError as error:
            run.notes.violated(f"progress: {error}")
        finally:
            loop.set_exception_handler(lambda *_: None)
            loop.close()
            for machine in run.machines:
                machine.kill(finishes=False)
                for process in list(machine.left_behind):
                    machine.forget(process)
                for process in machine.dead:
                    process.reap()
    return Report(seed, run.world.shape, run.notes.violations, run.notes.trace, run.counted)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the product's log, and have polls take longer: most of what happens in a silence are polls."""
    logger, poll_s = logging.getLogger("actors"), worker.POLL_S
    before, logger.disabled, worker.POLL_S = logger.level, True, 1.0
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.disabled, worker.POLL_S = False, poll_s
        logger.setLevel(before)


class FeedNemesis(Nemesis):
    """The faults of all runs, and those of looks and of slow actors."""

    def __init__(self, run: Run, random: Random, kinds: Sequence[str]) -> None:
        world: Any = run.world
        machines: Any = run.machines
        more = [self.slow_actor, self.lost_look, self.slow_look, self.grow]
        if "failing" in world.features:
            more.append(self.fail)
            kinds = [*kinds, "fail"]
        if "paused" in world.features:
            more.append(self.pause_actor)
            kinds = [*kinds, "pause_actor"]
        self._paused: list[Task] = []
        self._grow = run.grow
        super().__init__(world, machines, random, kinds=kinds, further=more)

    def slow_actor(self) -> None:
        """A partition of an actor takes long for each record, or stands still for a while."""
        world: Any = self._world
        number, name = self._random.randrange(3), self._random.choice((f"{CLICKS}-repartition", "stage", "total"))
        world.slow_s[f"{name}[{number}]"] = self._random.choice((0.05, 0.5, 6.0))
        self._after(self._random.choice((2.0, 8.0)), lambda: world.slow_s.pop(f"{name}[{number}]", None))

    def lost_look(self) -> None:
        """One of the two requests of some look has no answer."""
        process = self._some_node().process
        if process is not None:
            request = self._random.choice(("OffsetFetch", "ListOffsets"))
            self._world.network.planned[process.name, request] = "lost"

    def grow(self) -> None:
        """The topic that is read by another key is given a partition, once."""
        self._grow()

    def fail(self) -> None:
        """The first stage raises for a while, for some records and what they led to."""
        self._world.is_failing = True  # type: ignore[attr-defined]
        self._after(self._random.uniform(0.5, 6.0), lambda: setattr(self._world, "is_failing", False))

    def pause_actor(self) -> None:
        """Somebody pauses an actor, or some of its tasks, for a while."""
        tasks = [task for node in self._nodes if node.is_up and node.worker for task in node.worker.tasks]
        if not tasks:
            return
        name = self._random.choice(sorted({task.spec.name for task in tasks}))
        pause = Pause(actor=name, partition=None, is_paused=True, at_ms=0, by="somebody")
        chosen = [task for task in tasks if task.spec.name == name and self._random.random() < 0.7]
        for task in chosen:
            task.pause(pause)
        self._paused += chosen
        self._world.audit.note(f"PAUSES {', '.join(task.name for task in chosen)}")
        self._after(self._random.choice((1.0, 6.0, 20.0)), self._resume)

    def _resume(self) -> None:
        while self._paused:
            self._paused.pop().pause(None)

    def heal(self) -> None:
        super().heal()
        self._resume()

    def slow_look(self) -> None:
        """Answers of all kinds take their time."""
        latency_s = (0.0005, self._random.choice((0.3, 1.2)))
        self._world.network.conditions.latency_s = latency_s
        self._after(self._random.uniform(1.0, 6.0), self._mend_network)


class Run:
    """A seed's world, and what becomes of it."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        faults: Sequence[str] | None,
        features: frozenset[str] = frozenset(),
        *,
        print_trace: bool = False,
    ) -> None:
        self.seed = seed
        self.notes = Notes(loop, print_trace=print_trace)
        self.counted: Counter[str] = Counter()
        random = self._random = Random(f"{seed} feeds")
        self._disorder_ms = random.choice((0, 0, 600))
        close_s, has_ends = Random(f"{seed} closes").choice((0.0, 0.0, 0.02)), Random(f"{seed} ends").random() < 0.5
        shape = Shape.drawn(random, self._disorder_ms, close_s, has_ends=has_ends)
        if "across" in features:
            shape = shape.across_users(Random(f"{seed} across"))
        else:
            shape = shape.with_features(features, Random(f"{seed} features"))
        cluster = FeedKafka("shop", rebalance_s=8.0, marker_s=lambda: random.uniform(0.0005, 0.005))
        network = Network(Random(f"{seed} network"))
        network.trace = self.notes.note
        self.world = FeedWorld(
            loop=loop,
            cluster=cluster,
            network=network,
            audit=self.notes,
            random=Random(f"{seed} disk"),
            shape=shape,
            max_poll_records=random.choice((1, 3, 10, 50)),
            queue_records=random.choice((5, 20, 1000)),
            commit_interval_s=random.choice((0.05, 0.1, 0.5)),
            session_s=random.choice((3.0, 6.0)),
            features=features,
        )
        self._partitions = random.randint(1, 3)
        self._clicks = random.randint(1, 3)
        self._lag_ms = random.choice((0, 60_000))
        self._is_prompt = random.random() < 0.5 or shape.late == "stop"
        self._live_s = random.choice((6.0, 15.0))
        self._ids = 0
        self._open = 0
        self._producing: list[asyncio.Task[None]] = []
        self.machines = [Machine(self.world, f"w{number}") for number in range(random.randint(1, 3))]
        kinds = random.sample(FAULTS, random.randint(0, 6)) if faults is None else faults
        has_faults = bool(kinds) or not features.isdisjoint(("failing", "paused"))
        self._nemesis = FeedNemesis(self, Random(f"{seed} faults"), kinds) if has_faults else None
        self.judge = Judge(self.world, self.counted)
        self.notes.note(f"{shape}, {self._partitions} partitions, {self._clicks} of clicks, faults {kinds}")

    # --- what happens ----------------------------------------------------------------------------------------------

    async def play(self) -> None:
        world, random = self.world, self._random
        await self._make_topics()
        for machine in self.machines:
            machine.start()
        loop = world.loop
        self._producing += [
            loop.create_task(self._produce(source, Random(f"{self.seed} {source}"))) for source in self.judge.sources
        ]
        mending = loop.create_task(self._mend(), context=Context())
        if self._nemesis is not None:
            pause_s = random.choice(((0.02, 0.5), (0.2, 4.0), (2.0, 8.0)))
            await self._nemesis.run(random.randint(2, 8), pause_s)
        await asyncio.gather(*self._producing)
        if self._nemesis is not None:
            self._nemesis.heal()
        world.slow_s.clear()
        world.is_failing = False
        await self._end_all_windows()
        await self._settle()
        await self._rest()
        mending.cancel()

    async def _mend(self) -> None:
        """Do as somebody does who sees partitions that stand still: retry what stopped them, or start a worker again.

        Both come too early at times, and what stopped the partition stops it again.
        """
        while self.world.shape.then == "stop" and "failing" in self.world.features:
            await asyncio.sleep(3.0)
            for machine in self.machines:
                worker = machine.worker if machine.is_up else None
                halts = [] if worker is None else [task for task in worker.tasks if task.halted_by is not None]
                for task in halts:
                    self.counted["halted"] += 1
                    internal = getattr(task.halted_by, "internal", None)
                    if internal is None:
                        await machine.stop()
                        machine.start()
                        break
                    command = Command(actor=internal[0], what="internal", command="retry", id=internal[1])
                    headers = [(CONTROL_HEADER, msgspec.json.encode(command))]
                    self.world.cluster.produce(task.sources[0], [(None, None, headers, 0)])

    def grow(self) -> None:
        """Give the forwarder's topic a partition more, which is written to once its owner has begun with it."""
        cluster, loop, number = self.world.cluster, self.world.loop, self._clicks
        if len(cluster.topic(CLICKS).partitions) > number:
            return
        cluster.grow_topic(CLICKS, number + 1)
        cluster.group.rebalance()
        source = TopicPartition(CLICKS, number)

        async def produce() -> None:
            # Its owner has begun with it by then, and readers have looked since.
            await asyncio.sleep(40.0)
            random = Random(f"{self.seed} grown")
            self.world.slow_s[f"{CLICKS}-repartition[{number}]"] = random.choice((0.0, 1.0))
            for _ in range(12):
                await asyncio.sleep(0.3)
                # Another one goes on, without waiting for what the new one holds back.
                for partition in (TopicPartition(CLICKS, 0), source):
                    self._write(partition, [cluster.wall_ms() - self._lag_ms], random)

        self._producing.append(loop.create_task(produce(), context=Context()))

    async def _make_topics(self) -> None:
        setup, cluster = Setup(make_app(self.world.shape)), self.world.cluster
        cluster.make_topic(CLICKS, self._clicks)
        make_topics(cluster, setup, self._partitions)
        inputs = await setup.check_topics(SimTopics(cluster))  # type: ignore[arg-type]
        await record_stores(setup, inputs, cluster, DirectNetwork(), FakeClock())

    async def _produce(self, source: TopicPartition, random: Random) -> None:
        """Write a backlog, and then live records with silences between them.

        Producers are prompt in half of the runs: what comes after a silence isn't late then. In the others each lags by
        as much as it does.
        """
        lag_ms = self._lag_ms + (0 if self._is_prompt else random.choice((0, 0, 200, 4_000)))
        top_ms = EPOCH_MS - 120_000 + random.randrange(2_000)
        if not self._is_prompt and random.random() < 0.2:
            await asyncio.sleep(random.uniform(1.0, 6.0))
        backlog = random.choice((0, 0, 5, 10, 20))
        step_ms = max(1, (EPOCH_MS - lag_ms - top_ms) // max(1, backlog))
        for _ in range(backlog):
            top_ms += random.randrange(step_ms)
            self._write(source, [top_ms], random)
        is_busy = random.random() < 0.6
        while self.world.loop.time() < self._live_s:
            await asyncio.sleep(random.choice((0.1, 0.4, 0.6) if is_busy else (0.4, 1.5, 4.0, 9.0)))
            times, live_ms = [], self.world.cluster.wall_ms() - lag_ms
            for _ in range(random.choice((1, 1, 1, 4))):
                step_ms = 1_000_000 if self._is_prompt else random.choice((1, 100, 1_000, 3_000, 100_000))
                top_ms = max(top_ms, min(live_ms, top_ms + step_ms))
                times.append(top_ms)
            self._write(source, times, random)

    def _write(self, source: TopicPartition, times: list[int], random: Random) -> None:
        """Write records of these times, apart from disorder; some in a transaction that ends later, or never."""
        records = []
        for at_ms in times:
            self._ids += 1
            key = user = random.choice(USERS)
            if source.topic == CLICKS:
                key = f"k{random.randrange(5)}"
            else:
                user = key = self._key_in(source, random)
            early_ms = random.randrange(self._disorder_ms + 1)
            value = msgspec.json.encode(Event(self._ids, user, at_ms - early_ms))
            records.append((key.encode(), value, (), at_ms - early_ms))
        transactions = self.world.cluster.transactions
        if random.random() > 0.12 or transactions.is_moving:
            self.world.cluster.produce(source, records)
            return
        self._open += 1
        name = f"producer-{self._open}"
        epoch = transactions.init_producer_id(name, 5.0)
        self.world.cluster.produce_in_transaction(name, epoch, source, records)
        ending = random.choice(("commit", "commit", "abort", "expire"))
        if ending != "expire":
            self.world.loop.call_later(
                random.choice((0.01, 0.4, 2.5)), self._end_transaction, name, epoch, ending == "commit"
            )

    def _end_transaction(self, name: str, epoch: int, is_committed: bool) -> None:
        transactions = self.world.cluster.transactions
        if transactions.is_moving:
            self.world.loop.call_later(0.1, self._end_transaction, name, epoch, is_committed)
        else:
            # It may have come too late.
            with contextlib.suppress(RefusedError):
                transactions.end(name, epoch, commit=is_committed)

    def _key_in(self, source: TopicPartition, random: Random) -> str:
        """Return a key that belongs in the partition: of the groups for notes, of users otherwise."""
        names = [f"g{number}" for number in range(2)] if source.topic == NOTES else list(USERS)
        home = [name for name in names if MURMUR2.home(name.encode(), self._partitions) == source.partition]
        if home:
            return random.choice(home)
        return next(
            name
            for number in range(1000)
            if MURMUR2.home((name := f"x{number}").encode(), self._partitions) == source.partition
        )

    async def _end_all_windows(self) -> None:
        """Write a record that is later than all, once the clock has come so far, and by that end all windows."""
        shape, cluster = self.world.shape, self.world.cluster
        latest_ms = max((read.at_ms for read in self.judge.reads()), default=EPOCH_MS)
        if shape.idle_ms is not None:
            # All of them end by themselves.
            self.judge.last_ms, self.judge.last_id = 10**15, -1
            return
        if shape.kind == "wall":
            latest_ms = max(latest_ms, cluster.wall_ms() + 2 * shape.span_ms)
        last_ms = latest_ms + 4 * shape.span_ms + 2 * shape.grace_ms + 2 * shape.second_ms + 5_000
        await asyncio.sleep(max(6.0, (last_ms - cluster.wall_ms()) / 1000 + 3.0))
        self.judge.last_ms = last_ms
        self.judge.last_id = self._ids = self._ids + 1
        value = msgspec.json.encode(Event(self._ids, USERS[0]))
        cluster.produce(TopicPartition(CLICKS, 0), [(b"k0", value, (), last_ms)])
        self.notes.note(f"the last record, of {last_ms}")

    async def _settle(self) -> None:
        deadline_s = self.world.loop.time() + QUIET_S
        while self.world.loop.time() < deadline_s and not self.notes.violations:
            await asyncio.sleep(3.0)
            if next(self.judge.differences(), None) is None:
                return
        for difference in list(self.judge.differences())[:8]:
            self.notes.violated(difference)

    async def _rest(self) -> None:
        """Check that nothing comes any more: no record, no commit, however empty, and no further owner.

        A rebalance has a cause, and all causes are over by now: machines run, sessions and transactions of the dead
        have timed out, and what was to be handed over is.
        """
        # What only keeps stream time is committed once in a while.
        await asyncio.sleep(LAST_REST_S)
        before = self._written()
        await asyncio.sleep(REST_S)
        if self._written() != before:
            for name, end in self._written().items():
                if before.get(name) != end:
                    self.notes.violated(f"rest: {name} goes from {before.get(name)} to {end}")
        for difference in self.judge.differences():
            self.notes.violated(difference)

    def _written(self) -> dict[str, object]:
        cluster = self.world.cluster
        ends: dict[str, object] = {str(log.name): log.end for log in cluster.logs()}
        if self.world.shape.idle_ms is not None:
            # Times go on with the clock.
            return {name: end for name, end in ends.items() if name.startswith((FIRST, RESULTS, LATE))}
        offsets = {f"offset of {source}": one for source, one in cluster.group.offsets.items()}
        return {**ends, **offsets, "the count of commits": self.judge.commits, "the group": cluster.group.generation}
