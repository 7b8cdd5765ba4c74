"""Queries: each process is asked for what its stores hold, as the owner or from a copy, at any time.

An answer of all keys of a partition is the state behind one commit. The owner's answer has all that anybody could have
read, or was told, before the question came; nothing has what isn't committed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, cast

from actors.errors import QueryError
from actors.ports import Identity, TopicPartition
from actors.runtime.queries.queries import Bounds, Held, StateReader, read, read_part
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.spec import ActorSpec
from actors.testing.fakes.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberError
from actors.testing.fakes.log import PartitionLog
from tests.sim import app
from tests.sim.fakes.loop import Process
from tests.sim.part import Host, Operation, Part, Stores

if TYPE_CHECKING:
    from tests.sim.node import Node

REBALANCE_S = 8.0
"""The fake group's rebalance time-out."""
MOST_ROWS = 1000
State = Mapping[bytes, bytes]


class Asked:
    """What the reader needs to know of an actor."""

    name = app.ACTOR
    topic = app.INPUT


SPEC = cast("ActorSpec", Asked)


class QueriesPart(Part):
    """Somebody asks each process for the keys of a store, all of them in one answer or one."""

    name = "queries"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._answered: defaultdict[PartitionLog, int] = defaultdict(int)
        """Up to where an owner has told of a changelog."""

    def make_input(self, key: str) -> str:
        return "count:asked"

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        return {}

    async def open(self, node: Node, process: Process) -> None:
        process.spawn(self._ask(node, process), name="queries")

    # --- those who ask ---------------------------------------------------------------------------------------------

    async def _ask(self, node: Node, process: Process) -> None:
        while node.worker is None or node.process is not process:
            if node.process is not process:
                return
            await asyncio.sleep(0.1)
        lease, standbys = self._lease(), node._copies[process]._standbys
        owner = StateReader(node.worker.task_of, lease, node.clock)
        copies = StateReader(node.worker.task_of, lease, node.clock, standbys.stores_of)
        random = Random(f"{self._seed} queries of {process.name}")
        while True:
            await asyncio.sleep(random.choice((0.003, 0.05, 0.3, 2.0)))
            partition = random.randrange(self.world.partitions)
            store = random.choice(app.STORES)
            reader = copies if "standbys" in self.world.features and random.random() < 0.4 else owner
            try:
                await self._ask_one(reader, store, partition)
            except QueryError:
                self.count("query refused")

    def _lease(self) -> ReadLease:
        world = self.world

        async def confirm(member: Identity) -> bool:
            group = world.cluster.group
            try:
                await world.network.ask("Heartbeat?", group.heartbeat, member.member_id, member.generation)
            except (RebalanceInProgressError, UnknownMemberError, IllegalGenerationError):
                return False
            return True

        return ReadLease(
            confirm,
            lasts_s=min(world.session_s, REBALANCE_S),
            renew_s=world.session_s / 3,
            is_exclusive="static" not in world.features,
            now_s=world.loop.time,
        )

    async def _ask_one(self, reader: StateReader, store: str, partition: int) -> None:
        log = self._log(store, partition)
        least = self._least(log)
        (task,) = await reader.hold(SPEC, (partition,))
        held = task.of(store)
        self._check(log, held, _rows(held), least)

    def _log(self, store: str, partition: int) -> PartitionLog:
        return self.world.cluster.log(TopicPartition(app.changelog(store), partition))

    def _least(self, log: PartitionLog) -> int:
        """Give up to where an answer has to have everything: somebody has read it, or was told."""
        return max(log.last_stable, self._answered[log])

    # --- the oracle ------------------------------------------------------------------------------------------------

    def _check(self, log: PartitionLog, held: Held, found: State, least: int) -> None:
        """See that an answer is the state behind a commit that isn't older than it may be."""
        is_owner = held.staleness_ms is None
        self.count("query answered" if is_owner else "query answered by a copy")
        for end, state in _states(log, least if is_owner else 0):
            if state == found:
                if is_owner:
                    self._answered[log] = max(self._answered[log], end)
                return
        who = "the owner" if is_owner else "a copy"
        self.world.audit.violated(
            f"queries: {who} of {log.name} answers {found}, which isn't the state behind any commit from {least} on"
        )


def _rows(held: Held) -> State:
    """Read all keys in one answer, and see that each alone gives the same."""
    part = read_part([held], Bounds(), None, MOST_ROWS)
    rows = {key: found.value for (key, _), (_, found) in part.rows}
    return {key: read(held, key).value or b"" for key in rows}


def _states(log: PartitionLog, least: int) -> Iterator[tuple[int, State]]:
    """Give the committed state at `least`, and behind each commit after it, with where it ends."""
    state: dict[bytes, bytes] = {}
    records: list[Any] = [record for record in log.history if record.is_committed]
    at = 0
    while at < len(records) and records[at].offset < least:
        _put(state, records[at])
        at += 1
    yield least, state
    while at < len(records):
        transaction = records[at].transaction
        while at < len(records) and records[at].transaction is transaction:
            _put(state, records[at])
            at += 1
        yield records[at - 1].offset + 1, state


def _put(state: dict[bytes, bytes], record: Any) -> None:
    if record.value is None:
        state.pop(record.key, None)
    else:
        state[record.key] = record.value
