"""One actor with one partition, whose owners reach the broker through the proxy, and the audit of what they did.

The handler appends (input offset, owner) to a chain per key, keeps the chain as state and echoes it. So each committed
echo tells the whole history that its owner knew of: an input lost, doubled, or handled on top of another state than the
one before it shows in the next link.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from actors._core.backoff import Backoff
from actors._core.group.members import Member as GroupMember
from actors._core.group.members import encode_member_data
from actors._core.task.commit import CommitPolicy
from actors._core.task.lifecycle import State
from actors._core.task.takeover import LostChangelog, ResetPolicy, StartRules
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors._kafka.connection import Connection
from actors._kafka.consume.logs import KafkaLogs
from actors._kafka.produce.writer import TransactionWriter
from actors.ports import Identity, TopicPartition
from actors.runtime.clock import SystemClock
from actors.runtime.committer import Committer, Membership
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store import Store
from actors.runtime.spec import ActorSpec, InputSpec, TaskServices, TaskSettings
from actors.runtime.state.restore import Changelog, Restorer
from actors.runtime.task.task import Task
from stores._core.record import METADATA_BYTES
from stores.folder import if_copied
from stores.memory import MemoryStore
from stores.ports import PartitionStore
from tests.kafka.helpers import eventually, make_topics, read_all, send, unique
from tests.kafka.wire.proxy import WireProxy

MAX_RECORD_BYTES = 1_000_000
KEYS = (b"a", b"b")
ACTOR = "chain"
STORE = "chains"
COMMIT_DEADLINE_S = 3.0
PROGRESS_S = 20.0
STALLED_S = 2.0
"""How long an audit that expects damage waits for an end that may never come."""


def _says(transactional_id: str | None) -> type[RoundRobinPartitionAssignor]:
    """An assignor whose member says which transactional id it has."""

    class Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc]
        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            data = encode_member_data(GroupMember("", transactional_id=transactional_id))
            return ConsumerProtocolMemberMetadata(cls.version, list(topics), data)

    return Assignor


class Member:
    """A member of the group that does nothing else: what makes an owner's claim true, for as long as it is in."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    @classmethod
    async def join(cls, brokers: str, group: str, topic: str, transactional_id: str | None) -> Member:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=brokers,
            group_id=group,
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=(_says(transactional_id),),
        )
        await consumer.start()
        return cls(consumer)

    @property
    def identity(self) -> Identity:
        """As the coordinator knows it now."""
        return Identity(self._consumer._coordinator.member_id, self._consumer._coordinator.generation)

    async def leave(self) -> None:
        """Leave the group."""
        await self._consumer.stop()


class Feed:
    """The source of one owner: gives the input's records up to `limit`, from where the task asks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next: int | None = None
        self.limit: int | None = None
        self.task: Task | None = None

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        self._next = offset
        # The task isn't running yet while it says so.
        asyncio.get_running_loop().call_soon(self.pump)

    def stop_delivery(self, source: TopicPartition) -> None:
        self._next = None

    def has_room(self) -> None:
        """Nothing is held back."""

    def position(self, source: TopicPartition) -> int | None:
        return None

    def allow(self, limit: int | None) -> None:
        """Give records before `limit`; None is all."""
        self.limit = limit
        self.pump()

    def pump(self) -> None:
        """Give what there is."""
        if self._next is None or self.task is None:
            return
        records = self._world.inputs[self._next : self.limit]
        if records:
            self._next += len(records)
            self.task.inbox.put(0, records)


class Stores:
    """One owner's store, for as long as the owner lives."""

    def __init__(self) -> None:
        self.held = MemoryStore()

    async def open(self, store: str, partition: int) -> PartitionStore:
        return self.held

    async def reopen(self, store: str, partition: int) -> None:
        """It is in memory."""

    async def mend(self, store: str, partition: int, error: object) -> None:
        raise AssertionError("not here")

    async def discard(self, store: str, partition: int) -> None:
        self.held = MemoryStore()


class Owner:
    """A process that owns the partition, or believes so: the real task over the real clients."""

    def __init__(self, world: World, name: str, identity: Identity) -> None:
        self.name = name
        self.connection = Connection((world.proxy.bootstrap,), client_id=name)
        self.feed = Feed(world)
        self.stores = Stores()
        self.control: ControlPlane | None = None
        self.task: Task | None = None
        self.writer = world.writer(self.connection)
        self._committer = Committer(self.writer, MAX_RECORD_BYTES, Membership(identity))
        self._world = world

    @property
    def producer(self) -> str:
        """The client id of what it commits with."""
        return f"{self.name}-commits"

    @property
    def running(self) -> Task:
        """Its task."""
        assert self.task is not None
        return self.task

    async def start(self, *, limit: int | None = None) -> Owner:
        """Begin the takeover; records before `limit` are given then."""
        world = self._world
        self.control = await ControlPlane.open(self.connection, world.group)
        self._committer.knows = self.control.knows
        self.feed.limit = limit
        self.task = self.feed.task = Task(
            world.spec(self.name),
            0,
            member=self._committer.member,
            log=self._committer.new_log(),
            services=world.services(self.connection, self.control, self.stores, self.feed),
            settings=world.settings(self.name),
        )
        self.task.start(lambda _: None)
        return self

    async def runs(self) -> Owner:
        """Wait until the takeover is done."""
        await eventually(
            lambda: self.running.state in (State.RUNNING, State.COMMITTING), deadline_s=PROGRESS_S, what=repr(self.task)
        )
        return self

    async def did(self, offset: int) -> Owner:
        """Wait until everything before `offset` is committed and stored."""
        await eventually(
            lambda: (
                self.running._processor is not None
                and self.running._processor.inputs[0].committed_offset >= offset
                and self.running.state is State.RUNNING
            ),
            deadline_s=PROGRESS_S,
            what=lambda: f"{self.name} committed {offset}: {self.task!r}",
        )
        return self

    async def stop(self) -> None:
        """Commit and end."""
        if self.task is not None:
            self.task.request_stop()
            if not await self.task.ended(PROGRESS_S):
                self.task.abandon()
                await self.task.ended(PROGRESS_S)
        await self._committer.close()
        if self.control is not None:
            await self.control.close()

    def stored(self) -> dict[bytes, bytes]:
        """What its disk holds."""
        return {key: value[METADATA_BYTES:] for key, value in self.stores.held.scan()}


class World:
    """Topics, inputs and owners of one test."""

    def __init__(self, brokers: str, proxy: WireProxy, *, output: dict[str, str] | None = None) -> None:
        self._output = output
        self.brokers = brokers
        self.proxy = proxy
        self.name = unique("wire")
        self.group = f"{self.name}-actors"
        self.input, self.out = f"{self.name}-in", f"{self.name}-out"
        self.changelog, self.registry = f"{self.name}--{STORE}-changelog", f"{self.name}-actors-owners"
        self.source = TopicPartition(self.input, 0)
        self.inputs: list[Any] = []
        self.has_store = True
        self.transactional_id: str | None = None
        self.commit_deadline_s = COMMIT_DEADLINE_S
        self.transaction_timeout_ms = int(COMMIT_DEADLINE_S * 1000) + 10_000
        self._changelog_id = ""
        self._open = contextlib.AsyncExitStack()
        self._direct: ControlPlane | None = None

    async def __aenter__(self) -> World:
        topics = [self.input, self.changelog, self.registry]
        if self._output is None:
            topics.append(self.out)
        else:
            await make_topics(self.brokers, self.out, partitions=1, config=self._output)
        await make_topics(self.brokers, *topics, partitions=1)
        self._direct = await ControlPlane.open(Connection((self.brokers,), client_id="audit"), self.group)
        self._open.push_async_callback(self._direct.close)
        self._changelog_id = str((await self._direct.topics([self.changelog]))[self.changelog].topic_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def direct(self) -> ControlPlane:
        """Asks the broker itself."""
        assert self._direct is not None
        return self._direct

    # --- input and owners ------------------------------------------------------------------------------------------

    async def add_inputs(self, count: int) -> None:
        """Write so many more records to the input, and let the owners' feeds have them."""
        known = len(self.inputs)
        records = [(KEYS[number % len(KEYS)], b"%d" % number) for number in range(known, known + count)]
        await send(self.brokers, self.input, records, partitions=1)
        self.inputs = await read_all(self.brokers, self.input)

    async def member(self, owner: str = "") -> Member:
        """Join the group with one more member; it says whose transactional id it has, if that is given."""
        said = self.id_of(owner) if owner else None
        member = await Member.join(self.brokers, self.group, self.input, said)
        self._open.push_async_callback(member.leave)
        return member

    def owner(self, name: str, identity: Identity) -> Owner:
        """Make an owner, which is stopped with the test."""
        owner = Owner(self, name, identity)
        self._open.push_async_callback(owner.stop)
        return owner

    async def sole_owner(self, inputs: int, **options: Any) -> Owner:
        """One owner that has taken over, and so many inputs, which it gets when the test allows it."""
        await self.add_inputs(inputs)
        owner = await self.owner("a", (await self.member()).identity).start(limit=0, **options)
        return await owner.runs()

    # --- what an owner is made of ----------------------------------------------------------------------------------

    def id_of(self, owner: str) -> str:
        """The transactional id of an owner: its own, unless all have one."""
        return self.transactional_id or f"{self.name}:worker:w-{owner}"

    def writer(self, connection: Connection) -> TransactionWriter:
        return TransactionWriter(
            connection=connection,
            group=self.group,
            transactional_id=self.id_of(connection.client_id),
            transaction_timeout_ms=self.transaction_timeout_ms,
            batch_bytes=lambda topic: MAX_RECORD_BYTES,
            compression=None,
            commit_deadline_s=self.commit_deadline_s,
            if_shared=if_copied("/data/copy"),
        )

    def services(self, connection: Connection, control: ControlPlane, stores: Any, sink: Any) -> TaskServices:
        clock = SystemClock()
        logs = KafkaLogs(connection, control)
        return TaskServices(
            group=control,
            logs=logs,
            owners=KafkaOwners(self.registry, logs),
            restorer=Restorer(logs, clock, clock_skew_margin_ms=1000, lost=LostChangelog.STOP),
            stores=stores,
            sink=sink,
            clock=clock,
            resolve_output=lambda topic: OutputTopic(topic, str.encode, str.encode, MAX_RECORD_BYTES),
            encode_owner=lambda record: encode_owner(self.registry, record),
        )

    def settings(self, worker: str) -> TaskSettings:
        return TaskSettings(
            worker=worker,
            address="",
            # Each record is a transaction of its own.
            policy=CommitPolicy(interval_s=0.0, max_bytes=1 << 30),
            rules=StartRules(ResetPolicy.EARLIEST, allow_reprocessing=False, allow_lost_input=False),
            backoff=Backoff(),
            queue_records=1000,
            checkpoint_refresh_s=3600.0,
            transactional_id=self.id_of(worker),
        )

    def spec(self, owner: str) -> ActorSpec:
        chains: Store[str, str] = Store(
            STORE, encode_key=str.encode, decode_key=bytes.decode, encode_value=str.encode, decode_value=bytes.decode
        )

        async def link(ctx: Context, value: str) -> None:
            before = (chains.get(ctx.key) or "") if self.has_store else ""
            chain = f"{before} {ctx.offset}{owner}".strip()
            if self.has_store:
                chains.set(ctx.key, chain)
            ctx.send(self.out, key=ctx.key, value=chain)

        changelog = Changelog(STORE, self.changelog, self._changelog_id, 86_400_000, MAX_RECORD_BYTES, 1)
        return ActorSpec(
            name=ACTOR,
            inputs=(InputSpec(self.input, link, bytes.decode, bytes.decode),),
            partition_count=1,
            stores=(chains,) if self.has_store else (),
            changelogs={STORE: changelog} if self.has_store else {},
        )

    # --- the audit -------------------------------------------------------------------------------------------------

    async def committed(self) -> int:
        """The group's committed offset, 0 for none."""
        found = await self.direct.committed(self.source)
        return 0 if found is None else found.offset

    async def damage(self, *owners: Owner, expected: bool = False) -> list[str]:
        """What is wrong once the input is handled, or nothing. With `expected` the wait for the end is short."""
        found: list[str] = []
        deadline_s = STALLED_S if expected else PROGRESS_S
        with contextlib.suppress(AssertionError):
            await eventually(lambda: self._is_over(owners), deadline_s=deadline_s)
        if not await self.is_done(owners):
            states = ", ".join(map(repr, (owner.task for owner in owners)))
            found.append(f"{await self.committed()} of {len(self.inputs)} inputs are committed; {states}")
            found += [f"{owner.name} failed: {owner.running.failure!r}" for owner in owners if owner.running.failure]
        echoes, changes = await asyncio.gather(*(read_all(self.brokers, topic) for topic in (self.out, self.changelog)))
        found += self.broken_links(echoes)
        if self.has_store:
            fold = {record.key: record.value for record in changes}
            last = {record.key: record.value for record in echoes}
            if fold != last:
                found.append(f"the changelog holds {fold}, the last echoes are {last}")
            found += [f"{o.name} stores {o.stored()}, the changelog {fold}" for o in owners if o.stored() != fold]
        return found

    async def _is_over(self, owners: Iterable[Owner]) -> bool:
        stuck = (State.HALTED, State.REFUSED, State.CLOSED)
        return any(owner.running.state in stuck for owner in owners) or await self.is_done(owners)

    async def is_done(self, owners: Iterable[Owner]) -> bool:
        """Tell whether the owners are at work, and everything is committed."""
        if not all(owner.running.state is State.RUNNING for owner in owners):
            return False
        return await self.committed() == len(self.inputs)

    def broken_links(self, echoes: list[Any], upto: int | None = None) -> list[str]:
        """What is wrong with the chains of the first `upto` inputs."""
        chains: dict[bytes, list[list[str]]] = defaultdict(list)
        for record in echoes:
            chains[record.key].append(record.value.decode().split())
        found = []
        for key in KEYS:
            wanted = [record.offset for record in self.inputs[:upto] if record.key == key]
            offsets = [int(chain[-1].rstrip("abcdefghijklmnopqrstuvwxyz")) for chain in chains[key]]
            if offsets != wanted:
                found.append(f"key {key!r}: inputs {wanted}, echoes of {offsets}")
            before: list[str] = []
            for chain in chains[key]:
                if self.has_store and chain[:-1] != before:
                    found.append(f"key {key!r}: {chain} doesn't follow {before}")
                before = chain
        return found

    async def emitted_by(self, name: str) -> list[str]:
        """What an owner has committed: takeovers, and links of chains."""
        registry = [r.value.decode() for r in await read_all(self.brokers, self.registry)]
        echoes = [r.value.decode() for r in await read_all(self.brokers, self.out)]
        return [v for v in registry if f'"worker":"{name}"' in v] + [v for v in echoes if v.endswith(name)]
