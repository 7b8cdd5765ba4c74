"""One run: a world drawn from a seed, inputs and faults, then peace, and every invariant.

About half of the runs have features beside faults:

    operator        the group's offsets are reset, by people who don't ask the app
    retention       inputs are deleted, processed or not
    unparking       a program without on_error="park" is deployed while messages are parked, or were; with `park`
    expired         all are off until the group's offsets are forgotten, and perhaps all state was deleted before
    poison          some inputs make their handler raise, or can't be decoded
    refused         some make it write or send what the broker doesn't take
    static          workers are static members of the group
    parallel        messages of different keys are handled side by side
    timers          the actor sets durable timers
    effects         it asks for calls outside
    expiry          some of its values expire
    park            messages that can't be handled are put aside
    sessions        the states of a class actor expire, its hook may fail
    dedupe          messages with an id that was seen are skipped
    rows            a key has a list, a map and a set, whose rows expire one by one
    windows         events out of order are counted in windows, whose closes say what was in them
    joins           records of two sides are joined, those without a match are called when their window closes
    foreign         rows are joined by a foreign key, whose halves tell each other of them; in runs of their own
    views           handlers read a view; its database is damaged while it is open, or one of the task's
    queries         each process is asked for what its stores hold, as the owner or from a copy
    versions        processes run one of two programs, and the newer one's values are of a later version
    asks            handlers ask another key of the actor, several at a time; comes with `parallel`
    standbys        workers keep copies of each other's partitions; in runs of their own
    swapped         two partitions' folders are swapped while their process is down, and moved back later
    grow            the input is given partitions: with at most `parallel` and `windows`
    inputs          the actor has two inputs, whose messages meet in the state of a key; likewise
    pauses          the actor or a partition of it is paused and resumed: in runs of their own
    steps           clocks are set, by more than the margin; likewise

With `operator`, `retention`, `expired`, `poison`, `refused` and `versions` partitions may stand still after the last
fault: each has to do so for its own reason and with all before it committed, and to go on when the operator has put it
right.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from actors._core.group.placement import PlacementRules
from actors._core.task.pauses import PREFIX
from actors.errors import InputGrownError, LostChangelogError, MisplacedRecordError, RecordError
from actors.ports import TopicPartition
from actors.runtime import worker
from actors.runtime.replicas import standbys
from actors.runtime.state import restore, stores
from actors.runtime.task.task import State
from actors.runtime.virtual_time import StuckError
from tests.sim import app
from tests.sim.audit import Audit
from tests.sim.fakes.cluster import SimKafka, fold
from tests.sim.fakes.loop import VirtualLoop
from tests.sim.fakes.network import Network
from tests.sim.inputs import Inputs
from tests.sim.merging import refolded
from tests.sim.model import FLAKY, ODDS, Model, completed, drawn
from tests.sim.nemesis import Nemesis
from tests.sim.node import DELETE_RETENTION_MS, FOLDED, Node, World
from tests.sim.operator import Operator
from tests.sim.starts import RECORD
from tests.sim.watched import logs_to

PROGRESS_S = 90.0
"""How long after the last fault everything has to be processed."""
TRACE_LINES = 60
FEATURES = ("operator", "retention", "poison", "refused", "static")
NOT_WITH_EXPIRED = frozenset(("park", "windows", "joins"))
"""Where nothing tells that there was an offset, or what goes on must not go back."""
NOT_WITH_SWAPPED = frozenset(("views",))
"""What damages or copies databases itself."""
NOT_WITH_UNPARKING = FLAKY | {"versions"}
"""What else may fail."""
WITH_GROWN = frozenset(("parallel", "windows"))
"""What a run whose input grows may have beside: its partitions stand still from then on."""
WITH_RECREATED = frozenset(("static", "parallel", "standbys"))
"""What a run with re-created inputs may have beside: the oracles of the other features know of one input only."""
MODEL = tuple(ODDS)
"""What the actor does beside handling one message after the other (see `tests.sim.model`)."""
MODEL_S = 120.0
"""How long after all was processed nothing may be left to come: timers, retries, what expires."""
MENDINGS = 12
"""How often an operator may have to act: each of a partition's bad inputs is another one."""


class SimulationFailedError(AssertionError):
    """An invariant broke; the text has the seed, the invariant and the end of the trace."""


@dataclass
class Report:
    """What a run was like."""

    seed: int
    violations: list[str]
    trace: list[str]
    inputs: int = 0
    takeovers: int = 0
    recovery_s: float = 0.0
    virtual_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    counted: Counter[str] = field(default_factory=Counter)


def features_of(seed: int) -> tuple[str, ...]:
    """The features that a seed has if nobody says otherwise."""
    random = Random(f"{seed} features")
    found = random.sample(FEATURES, random.choice((0, 0, 0, 1, 1, 2, 3)))
    found += drawn(seed, found)
    if NOT_WITH_EXPIRED.isdisjoint(found) and Random(f"{seed} expired").random() < 0.08:
        found.append("expired")
    if WITH_RECREATED.issuperset(found) and Random(f"{seed} recreate").random() < 0.12:
        found.append("recreate")
    if NOT_WITH_SWAPPED.isdisjoint(found) and Random(f"{seed} swapped").random() < 0.1:
        found.append("swapped")
    if WITH_GROWN.issuperset(found) and Random(f"{seed} grow").random() < 0.12:
        found.append("grow")
    if "park" in found and NOT_WITH_UNPARKING.isdisjoint(found) and Random(f"{seed} unparking").random() < 0.5:
        found.append("unparking")
    return tuple(sorted(found))


def check(
    seed: int, *, print_trace: bool = False, faults: Sequence[str] = (), features: Sequence[str] | None = None
) -> Report:
    """Run a seed with all kinds of faults, or with these, and its own features, or these.

    Raises:
        SimulationFailedError: an invariant broke.
    """
    features = features_of(seed) if features is None else features
    report = simulate(seed, print_trace=print_trace, faults=faults, features=features)
    if report.violations:
        trace = "\n".join(report.trace[-TRACE_LINES:])
        broken = "\n".join(report.violations[:10])
        only = f" FAULTS={','.join(faults)}" if faults else ""
        only += f" FEATURES={','.join(features) or 'none'}"
        raise SimulationFailedError(f"seed {seed}\n{broken}\n--- replay it: make sim SEED={seed}{only}\n{trace}")
    return report


def simulate(
    seed: int,
    *,
    print_trace: bool = False,
    check_phases: bool = True,
    faults: Sequence[str] = (),
    features: Sequence[str] = (),
) -> Report:
    """Run a seed and report, whatever happens. `faults` restricts it to these kinds."""
    loop = VirtualLoop()
    features = completed(features)
    simulation = Simulation(loop, seed, faults, features, print_trace=print_trace, check_phases=check_phases)
    loop.set_exception_handler(simulation.on_exception)
    with logs_to(simulation.audit, is_read="grow" in features), simulation.small_limits(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = simulation.on_warning
        try:
            loop.run_until_complete(simulation.run())
        except StuckError as error:
            simulation.audit.violated(f"progress: {error}")
        finally:
            simulation.is_over = True
            loop.close()
            for node in simulation.nodes:
                node.kill(finishes=False)
                for process in list(node.left_behind):
                    node.forget(process)
                for process in node.dead:
                    process.reap()
            # What the dead leave behind warns now, while it is known whose it was.
            gc.collect(1)
    return simulation.report()


def _placement(seed: int) -> PlacementRules:
    random = Random(f"{seed} placement")
    return PlacementRules(
        standbys=random.choice((0, 1, 1, 2)),
        acceptable_lag=random.choice((0, 3, 20)),
        max_warm_ups=random.choice((1, 8)),
    )


def _audit(
    cluster: SimKafka,
    deployment: app.Deployment,
    model: Model,
    features: Sequence[str],
    *,
    check_phases: bool,
) -> Audit:
    return Audit(
        cluster,
        deployment,
        stores=app.STORES + model.stores,
        inputs=app.INPUTS if "inputs" in features else app.INPUTS[:1],
        is_static="static" in features,
        check_phases=check_phases,
    )


class Simulation:
    """A seed's world."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        faults: Sequence[str],
        features: Sequence[str],
        *,
        print_trace: bool,
        check_phases: bool,
    ) -> None:
        self.seed = seed
        self.is_over = False
        self._loop = loop
        self._random = Random(f"{seed} world")
        random = self._random
        cluster = SimKafka(app.GROUP, rebalance_s=8.0, marker_s=lambda: random.uniform(0.0005, 0.005))
        self._bad_inputs = Random(f"{seed} bad inputs")
        deployment = app.Deployment()
        model = Model(seed, features)
        self.audit = _audit(cluster, deployment, model, features, check_phases=check_phases)
        self.audit.print_trace = print_trace
        self.audit.may_lack = model.may_lack
        self.audit.now_s = loop.time
        network = Network(Random(f"{seed} network"))
        network.trace = self.audit.note
        self._world = World(
            loop=loop,
            cluster=cluster,
            network=network,
            audit=self.audit,
            random=Random(f"{seed} disk"),
            partitions=random.randint(1, 3),
            chunk_records=random.choice((1, 3, 20, 500)),
            max_poll_records=random.choice((1, 3, 10, 50)),
            queue_records=random.choice((5, 20, 1000)),
            commit_interval_s=random.choice((0.0, 0.05, 0.1, 0.5)),
            commit_max_bytes=random.choice((200, 1_000_000)),
            commit_deadline_s=random.choice((2.0, 5.0, 9.0)),
            session_s=random.choice((3.0, 6.0)),
            features=frozenset(features),
            deployment=deployment,
            model=model,
            placement=_placement(seed) if "standbys" in features else PlacementRules(),
            max_task_idle_s=Random(f"{seed} idle").choice((0.0, 0.0, 0.5, 3.0)),
            concurrency=Random(f"{seed} lanes").choice((2, 3, 20)) if "parallel" in features else 1,
        )
        if "inputs" in features:
            cluster.on_append.append(self._world.note_append)
        model.join(self._world)
        self.model = model
        self._make_topics()
        self.nodes = [Node(self._world, f"w{number}") for number in range(random.randint(1, 3))]
        self._operator = Operator(self._world, self.nodes, Random(f"{seed} operator"))
        self._nemesis = Nemesis(
            self._world, self.nodes, Random(f"{seed} faults"), kinds=faults, further=self._operator.faults()
        )
        keys = [f"k{number}" for number in range(random.choice((1, 3, 8)))]
        self._inputs = Inputs(self._world, self._bad_inputs, keys)
        self._world.delete_keys = self._inputs.delete_keys
        self._healed_s = self._settled_s = 0.0

    def _make_topics(self) -> None:
        cluster, partitions = self._world.cluster, self._world.partitions
        for topic in (*self._world.inputs, app.ECHO, *self.model.topics):
            cluster.make_topic(topic, partitions)
        cluster.make_topic(app.OWNERS, 1, is_compacted=True, delete_retention_ms=DELETE_RETENTION_MS)
        for topic in (*map(app.changelog, self._world.stores), *self.model.compacted):
            if topic not in self.model.made_at_start:
                cluster.make_topic(topic, partitions, is_compacted=True, delete_retention_ms=DELETE_RETENTION_MS)

    @contextlib.contextmanager
    def small_limits(self) -> Iterator[None]:
        """Have a hundred records do what the product does from thousands on: writes in a thread, long restores.

        Polls take longer, for the simulation's speed: most of what happens in a silence are polls.
        """
        before = restore.LONG_READ, stores.INLINE_WRITES, worker.POLL_S
        restore.LONG_READ = standbys.LONG_READ = self._random.choice((2, 10, 1000))
        stores.INLINE_WRITES = self._random.choice((0, 2, 1000))
        worker.POLL_S = self._random.choice((0.2, 1.0, 1.0))
        try:
            with self.model.small_limits():
                yield
        finally:
            restore.LONG_READ, stores.INLINE_WRITES, worker.POLL_S = before
            standbys.LONG_READ = restore.LONG_READ

    async def run(self) -> None:
        for part in self.model.parts:
            part.begin()
        for node in self.nodes:
            node.start()
        random = self._random
        count = random.choice((30, 60, 120))
        producing = [self._loop.create_task(self._inputs.produce(Random(f"{self.seed} inputs"), count))]
        if "inputs" in self._world.features:
            producing += [self._loop.create_task(self._inputs.produce_second(Random(f"{self.seed} second")))]
        producing += [self._loop.create_task(self._inputs.produce_for(part)) for part in self.model.parts]
        await self._nemesis.run(random.randint(3, 12), random.choice(((0.02, 0.5), (0.2, 4.0), (2.0, 12.0))))
        await asyncio.gather(*producing)
        await asyncio.sleep(random.choice((0.0, 2.0, 30.0)))
        self._operator.interrupt()
        self._nemesis.heal()
        for part in self.model.parts:
            part.heal()
        if self._world.pausing is not None:
            await self._world.pausing.hold(self._inputs.produce_some, self._operator.restart)
        await (self._settle_and_mend() if self._operator.is_needed else self._settle())
        if not self.audit.violations and "unparking" in self._world.features:
            await self._operator.unparking.try_before_cure()
            await self._settle()
        if not self.audit.violations:
            await self._settle_model()
        if not self.audit.violations and "unparking" in self._world.features:
            await self._operator.unparking.finish()
            self._inputs.produce_some()
            await self._settle()
        if not self.audit.violations:
            self._check_end()

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _settle_and_mend(self) -> None:
        """Wait until everything is processed or stands still for a reason, and act until it is processed."""
        for _ in range(MENDINGS):
            await self._settle(may_stand=True)
            if self.audit.violations or (self._is_settled() and not self._operator.has_to_deploy):
                return
            self.audit.counted["mended"] += 1
            await self._operator.repair()
        self.audit.violated(f"progress: {', '.join(self._unsettled())}, and nobody can mend it")

    async def _settle(self, *, may_stand: bool = False) -> None:
        """Wait until everything is processed, or stands still for a reason if it may."""
        self._healed_s = self._loop.time()
        while self._loop.time() < self._healed_s + PROGRESS_S:
            if self.audit.violations:
                return
            if self._is_settled(may_stand=may_stand):
                self._settled_s = self._loop.time()
                return
            await asyncio.sleep(0.25)
        unsettled = ", ".join(self._unsettled(may_stand=may_stand))
        self.audit.violated(f"progress: {unsettled} after {PROGRESS_S:g} s without faults")

    async def _settle_model(self) -> None:
        """Wait until nothing is to come any more, and do what people do meanwhile."""
        deadline_s = self._loop.time() + MODEL_S
        while not self.audit.violations:
            if self._is_settled() and not self.model.operate() and next(self.model.unsettled(), None) is None:
                return
            if self._loop.time() > deadline_s:
                for left in [*self._unsettled(), *self.model.unsettled()][:10]:
                    self.audit.violated(f"{left}, {MODEL_S:g} s after all was processed")
            await asyncio.sleep(0.5)

    def _is_settled(self, *, may_stand: bool = False) -> bool:
        return next(iter(self._unsettled(may_stand=may_stand)), None) is None

    def _unsettled(self, *, may_stand: bool = False) -> Iterator[str]:
        cluster = self._world.cluster
        tasks = [held for node in self.nodes if node.worker is not None for held in node.worker.tasks]
        for source in self._world.sources:
            owners = [held for held in tasks if source in held.sources]
            if self._world.is_given_up(source) and [owner.state for owner in owners] == [State.REFUSED]:
                continue
            if self._has_grown(source) and [owner.state for owner in owners] in ([State.HALTED], [State.REFUSED]):
                yield from self._unfounded(source, owners[0].state)
                continue
            if may_stand and all(node.lacks_changelog for node in self.nodes):
                # No worker starts before somebody chooses what becomes of the state.
                continue
            if may_stand and [owner.state for owner in owners] in ([State.HALTED], [State.REFUSED]):
                yield from self._unfounded(source, owners[0].state)
                continue
            if [owner.state for owner in owners] != [State.RUNNING]:
                yield f"{source} is held by {owners}"
            committed = cluster.group.offsets.get(source)
            wanted = app.last_input(cluster.log(source))
            # Somebody else set the offset, or a request that came late did: what is processed is processed.
            may_differ = may_stand and self.audit.is_foreign(source)
            if may_differ and self.audit.processed(source) >= wanted:
                continue
            if committed is None or committed.offset < wanted:
                yield f"{source} is committed to {committed}, not {wanted}"
        if cluster.transactions.open_transactions():
            yield "transactions are open"

    def _has_grown(self, source: TopicPartition) -> bool:
        """Whether a partition stands still because the input was given partitions."""
        is_more = len(self._world.cluster.topic(app.INPUT).partitions) > self._world.partitions
        return is_more and isinstance(self.audit.stops.get(source), InputGrownError | MisplacedRecordError)

    def _unfounded(self, source: TopicPartition, state: State) -> Iterator[str]:
        """Say why a partition shouldn't stand as it does."""
        error, log = self.audit.stops.get(source), self._world.cluster.log(source)
        task = [source._replace(topic=topic) for topic in self._world.inputs]
        if state is State.REFUSED:
            if isinstance(error, InputGrownError) and self._has_grown(source):
                return
            if isinstance(error, LostChangelogError) and "replaced" in self._world.features:
                return
            if not any(self.audit.is_foreign(one) or self.audit.has_lost_input(one) for one in task):
                yield f"{source} is refused without a reason: {error}"
        elif not isinstance(error, RecordError):
            yield f"{source} is halted without a record: {error}"
        elif error.topic == source.topic:
            at = self.audit.processed(source)
            left = [
                record.offset
                for record in log.history
                if max(at, log.start) <= record.offset < error.offset and record.is_committed
            ]
            if left or at > error.offset:
                yield f"{source} is committed to {at}, and stands at {error.offset} with {left} in front of it"

    def _check_end(self) -> None:
        cluster, audit = self._world.cluster, self.audit
        for number in range(self._world.partitions):
            source = TopicPartition(app.INPUT, number)
            if self._world.is_given_up(source):
                audit.counted["given up"] += 1
            elif len(self._world.inputs) > 1:
                for violation in refolded(self._world, source.partition):
                    audit.violated(violation)
            else:
                self._check_exactly_once(source)
            for topic in (app.ECHO, *self.model.topics, *map(app.changelog, self._world.stores)):
                audit.check_savepoints(cluster.log(TopicPartition(topic, source.partition)))
            audit.check_times(cluster.log(TopicPartition(app.ECHO, source.partition)))
        for violation in self.model.check():
            audit.violated(violation)
        self._check_changelogs()
        self._check_stores()

    def _check_exactly_once(self, source: TopicPartition) -> None:
        cluster = self._world.cluster
        expected = self.audit.expected(source)
        found = app.echoed(cluster.log(TopicPartition(app.ECHO, source.partition)))
        wanted = expected.echo
        if not self._world.features.isdisjoint(("parallel", "park")):
            # Each key's are in order, and that is all that was promised.
            found, wanted = sorted(found, key=_first), sorted(wanted, key=_first)
        if self._world.deployment.skips:
            wanted = [effect for effect in wanted if effect[0]]
        if found != wanted:
            self.audit.violated(f"exactly once: {source}: {_first_difference(wanted, found)}")
        for store in app.STORES:
            held, wanted = self._state(store, source.partition), expected.state(store)
            if held != wanted:
                self.audit.violated(f"exactly once: {store}[{source.partition}] is {held}, not {wanted}")

    def _state(self, store: str, partition: int) -> dict[bytes, bytes]:
        log = self._world.cluster.log(TopicPartition(app.changelog(store), partition))
        return {key: record.value for key, record in fold(log.history).items()}

    def _check_changelogs(self) -> None:
        cluster, audit = self._world.cluster, self.audit
        for store in self._world.stores:
            for log in cluster.topic(app.changelog(store)).partitions:
                audit.check_epochs(log)
                records, _ = log.read(log.start, max_records=1_000_000)
                if fold(records) != fold(log.history):
                    audit.violated(f"the simulated compaction of {log.name} changed its state")

    def _check_stores(self) -> None:
        for node in self.nodes:
            if node.worker is None:
                continue
            owned = {held.partition for held in node.worker.tasks}
            for files in node.disk.files():
                if files.store.endswith(FOLDED):
                    continue
                log = self._world.cluster.log(TopicPartition(app.changelog(files.store), files.partition))
                if files.store == app.PARKED and not self._world.deployment.parks:
                    continue
                expected = self.audit.kept(files, self.audit.folded(log, log.end))
                source = TopicPartition(app.INPUT, files.partition)
                is_left = self._world.is_given_up(source) or self._has_grown(source)
                if files.partition in owned and not is_left and files.data != expected:
                    self.audit.violated(
                        f"state isn't the fold of its changelog: {node.name} {files.store}[{files.partition}] at "
                        f"{files.position}: {files.data}, not {expected}"
                    )

    def on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if not self.is_over:
            self.audit.violated(f"unhandled: {context.get('message')}: {context.get('exception')!r}")

    def on_warning(self, message: Warning | str, *_: object, **__: object) -> None:
        if not self.is_over:
            self.audit.violated(f"unhandled: {message!r}")

    def report(self) -> Report:
        owners = self._world.cluster.log(TopicPartition(app.OWNERS, 0))
        return Report(
            seed=self.seed,
            violations=self.audit.violations,
            trace=list(self.audit.trace),
            inputs=self._inputs.made,
            takeovers=len(
                {
                    (record.key, json.loads(record.value)["epoch"])
                    for record in owners.history
                    if record.is_committed and not (record.key or b"").startswith((RECORD, PREFIX))
                }
            ),
            recovery_s=self._settled_s - self._healed_s,
            virtual_s=self._loop.time(),
            faults=self._nemesis.done,
            features=tuple(sorted(self._world.features)),
            counted=self.audit.counted,
        )


def _first(effect: tuple[bytes, bytes]) -> bytes:
    return effect[0]


def _first_difference(expected: list[tuple[bytes, bytes]], found: list[tuple[bytes, bytes]]) -> str:
    for index, (wanted, got) in enumerate(zip(expected, found, strict=False)):
        if wanted != got:
            return f"effect {index} is {got}, not {wanted}"
    return f"{len(found)} effects, not {len(expected)}: {(expected[len(found) :] or found[len(expected) :])[:1]}"
