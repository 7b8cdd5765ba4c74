"""Another app of a similar name that comes to the changelog of one of the simulated app's stores.

Several of its processes start at once, as do those of the simulated app. They die at any step, and write to the
changelog once their start went through. Never may both apps use one changelog, and when the other app is gone the
simulated one has to start.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from actors.errors import BrokerUnavailableError, ConfigurationError, RestoreError
from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.testing.fakes.errors import RefusedError
from actors.testing.fakes.log import PartitionLog
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.sim import app
from tests.sim.fakes.clock import MachineClock
from tests.sim.fakes.loop import Process
from tests.sim.part import Host, Operation, Part, Stores
from tests.sim.starts import SimRegistry, answered, recorded, setup_of, start

if TYPE_CHECKING:
    from tests.sim.node import Node

STORE = "eu-orders"
APP, THEIR_STORE = f"{app.APP}-eu", "orders"
OPERATION = "order"
FOREIGN_HEADER = "foreign"
FIRST_OFFSET = 1_000_000
"""Of the rival's inputs: none of the simulated app's has it."""
DELETE_RETENTION_MS = 60_000
LOOK_S = 0.25
STILL_S = 25.0
"""How long after a process was killed the last of its requests may arrive."""
STARTS = 30
"""How often the rival is started until it is decided whose the changelog is."""
STEPS = ("Metadata", "CreateTopics", "InitProducerId", "Produce", "ListOffsets", "Read")


class RivalPart(Part):
    """A store that inputs count in, and the other app.

    Attributes:
        first_start_s: when the simulated app is deployed.
    """

    name = "rival"
    stores = (STORE,)
    counts = (8, 20)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made_at_start = (app.changelog(STORE),) if self.random.random() < 0.6 else ()
        self.first_start_s = self.random.choice((0.0, 0.002, 0.005, 0.01, 1.0, 15.0))
        self._processes: list[Process] = []
        self._running: list[Process] = []
        self._is_last = False
        self._is_given_up = False
        self._refusal: ConfigurationError | None = None
        self._work: asyncio.Task[None] | None = None
        self._lives = 0
        self._dead: list[Process] = []
        self._users: defaultdict[str, set[str]] = defaultdict(set)

    # --- the app ---------------------------------------------------------------------------------------------------

    def make_input(self, key: str) -> str:
        return f"{OPERATION}:{self.random.randrange(100)}"

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        (store,) = stores

        async def order(ctx: Context, argument: str) -> None:
            key = ctx.key.encode()
            store.set(key, b"%d" % (int(store.get(key, b"0")) + 1))

        return {OPERATION: order}

    async def deployed(self) -> None:
        """Wait until the app is deployed: then all of its nodes start at once."""
        await asyncio.sleep(max(0.0, self.first_start_s - self.world.loop.time()))

    def used(self, name: str) -> None:
        """Note that an app's start went through: it uses the changelog as it is now."""
        topic = self.world.cluster.find_topic(app.changelog(STORE))
        if topic is not None:
            self.count(f"{name} uses the changelog")
            self._users[topic.topic_id].add(name)
            self._check_users(topic.topic_id)

    def _check_users(self, topic_id: str) -> None:
        if len(self._users[topic_id]) > 1:
            self.world.audit.violated(f"rival: {sorted(self._users[topic_id])} use {app.changelog(STORE)}")

    def _appended(self, log: PartitionLog, base: int) -> None:
        """Look at whose the records are that are in one changelog."""
        if log.name.topic != app.changelog(STORE):
            return
        headers = [{name for name, _ in record.headers} for record in log.history]
        if len({FOREIGN_HEADER in names for names in headers if METADATA_HEADER in names}) > 1:
            self.world.audit.violated(f"rival: {log.name} has the records of both apps")

    # --- the rival -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.world.cluster.on_append.append(self._appended)
        if self.random.random() < 0.7:
            self.world.loop.call_later(self.random.choice((0.0, 0.0, 0.01, 0.03, 2.0)), self.start_rival)

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        return iter((self.start_rival, self.crash_rival, self.retire_rival))

    def start_rival(self) -> None:
        """Some workers start, and each may die at some step of its start."""
        for process in self._start_if_down():
            if self.random.random() < 0.5:
                self._die_at_some_step(process)

    def crash_rival(self) -> None:
        if self._processes:
            self._kill(self.random.choice(self._processes))

    def retire_rival(self) -> None:
        """It is given up, if it has the changelog: its state is deleted."""
        if self._running and not self._is_given_up:
            self._work = self.world.loop.create_task(self._retire())

    def _start_if_down(self) -> list[Process]:
        if self._processes or self._is_last or self._is_given_up:
            return []
        self._refusal = None
        for _ in range(self.random.choice((1, 2, 2, 3))):
            self._lives += 1
            process = Process(self.world.loop, f"rival.{self._lives}")
            self._processes.append(process)
            self.world.audit.note(f"starts {process.name}")
            process.spawn(self._main(process), name="main").add_done_callback(self._ended)
        return list(self._processes)

    def _die_at_some_step(self, process: Process) -> None:
        step = f"{self.random.choice(STEPS)} {self.random.choice(('to send', 'answered'))}"
        left = self.random.choice((0, 0, 1, 3))

        def reached(name: str) -> None:
            nonlocal left
            if name == step:
                left -= 1
                if left < 0 and process in self._processes:
                    self.world.audit.note(f"FAULT at {step}")
                    self._kill(process)

        process.on_step = reached

    def _kill(self, process: Process) -> None:
        if process not in self._processes:
            return
        self._processes.remove(process)
        if process in self._running:
            self._running.remove(process)
        self.world.audit.note(f"kills {process.name}")
        process.kill()
        self._dead.append(process)

    def _kill_all(self) -> None:
        for process in list(self._processes):
            self._kill(process)

    async def _retire(self) -> None:
        """Stop it, and delete its state when nothing of its processes is on its way any more."""
        self.world.audit.note("RETIRES the rival")
        self.count("rival retired")
        await self._stop()
        self.world.cluster.delete_topic(app.changelog(STORE))
        self._is_given_up = False

    async def _withdraw(self) -> None:
        """Stop it, and delete its registry: it has no such store any more."""
        self.world.audit.note("WITHDRAWS the rival's claim")
        self.count("rival withdrawn")
        await self._stop()
        self.world.cluster.make_topic(
            f"{APP}-actors-owners", 1, is_compacted=True, delete_retention_ms=DELETE_RETENTION_MS
        )
        self._is_given_up = False

    async def _stop(self) -> None:
        self._is_given_up = True
        self._kill_all()
        await asyncio.sleep(STILL_S)

    def _ended(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled() and main.exception() is not None:
            self.world.audit.violated(f"progress: the rival ended: {main.exception()!r}")

    async def _main(self, process: Process) -> None:
        world = self.world
        registry = SimRegistry(
            setup_of(APP, (THEIR_STORE,), parks=False),
            world.cluster,
            world.network,
            MachineClock(),
            chunk_records=world.chunk_records,
        )
        try:
            await start(registry, world.partitions, DELETE_RETENTION_MS)
            self.used(APP)
            self._running.append(process)
            await self._write_on()
        except ConfigurationError as error:
            world.audit.note(f"{process.name} is refused: {error}")
            self.count("rival refused")
            self._refusal = error
        except (BrokerUnavailableError, RestoreError) as error:
            world.audit.note(f"{process.name} ends: {error}")
        self._kill(process)

    async def _write_on(self) -> None:
        cluster, network = self.world.cluster, self.world.network
        topic = cluster.topic(app.changelog(STORE))
        number = 0

        def produce(partition: int) -> None:
            if cluster.find_topic(topic.name) is not topic:
                raise RefusedError("the topic is gone")
            headers = [(METADATA_HEADER, encode_metadata(1, FIRST_OFFSET + number)), (FOREIGN_HEADER, b"")]
            cluster.produce(TopicPartition(topic.name, partition), [(b"k0", b"%d" % number, headers)])

        while True:
            number += 1
            partition = self.random.randrange(self.world.partitions)
            await answered("writing", lambda partition=partition: network.ask("Produce", produce, partition))
            await asyncio.sleep(self.random.choice((0.1, 1.0, 5.0)))

    # --- the end ---------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Have the rival go on to where it is refused, or retire it."""
        self._work = self.world.loop.create_task(self._resolve())

    async def _resolve(self, *, is_last: bool = False) -> None:
        for process in self._processes:
            process.on_step = None
        for _ in range(STARTS):
            while self._is_given_up:  # noqa: ASYNC110  another task does that
                await asyncio.sleep(LOOK_S)
            self._start_if_down()
            while len(self._running) < len(self._processes):  # noqa: ASYNC110  they are other processes
                await asyncio.sleep(LOOK_S)
            if self._running:
                await self._retire()
                return
            if self._refusal is not None:
                if self._claims() and not is_last:
                    await self._withdraw()
                return
            await asyncio.sleep(self.random.uniform(1.0, 3.0))

    def _claims(self) -> list[str]:
        return [record.changelog for record in recorded(self.world.cluster, APP).values() if not record.topic_id]

    def unsettled(self) -> Iterator[str]:
        if not self._is_last or self._work is None or not self._work.done():
            yield "rival: it isn't decided whose the changelog is"

    def operate(self) -> bool:
        """Start the rival once more, while the app runs."""
        if self._work is None or not self._work.done() or self._is_last:
            return False
        self._work = self.world.loop.create_task(self._try_last())
        return True

    async def _try_last(self) -> None:
        await self._resolve(is_last=True)
        self._is_last = True

    def check(self) -> Iterator[str]:
        topic_id = self.world.cluster.topic(app.changelog(STORE)).topic_id
        if claims := self._claims():
            yield f"rival: it claims {claims}, though it was refused"
        ours = recorded(self.world.cluster, app.APP).get(STORE)
        if ours is None or ours.topic_id not in ("", topic_id):
            yield f"rival: the app runs on {STORE}, and its registry has {ours}"
        if self._refusal is None:
            yield "rival: it wasn't refused while the app runs"
        for partition in range(self.world.partitions):
            wanted: defaultdict[bytes, int] = defaultdict(int)
            for record in self.inputs(partition):
                if app.is_decodable(record) and app.operation_of(record) == OPERATION:
                    wanted[record.key] += 1
            found = {key: int(value) for key, value in self.folded(STORE, partition).items()}
            if found != wanted:
                yield f"rival: partition {partition} has {found}, not {dict(wanted)}"

    def reap(self) -> None:
        self._kill_all()
        for process in self._dead:
            process.reap()
