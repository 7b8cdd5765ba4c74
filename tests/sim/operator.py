"""The people around the app: they reset offsets, deploy, and mend what stands still."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from random import Random

from actors._core.task.takeover import LostChangelog
from actors.errors import UndecodableRecordError
from actors.ports import TopicPartition
from actors.runtime.task.task import State
from actors.testing.fakes.direct import retried
from actors.testing.fakes.errors import RefusedError
from tests.sim import app
from tests.sim.node import DELETE_RETENTION_MS, Node, World
from tests.sim.pauses import Pausing
from tests.sim.unparking import Unparking

STOP_S = 15.0
EMPTY_S = 60.0
"""How long an operator waits for the group to be empty: until the last session is over."""
LOOK_S = 0.25
CATCH_UP_S = 20.0
EXPIRY_S = 160.0
"""How long it takes until the group has forgotten its offsets, and compaction the keys."""


class Operator:
    """Does what the features of a run ask for, in the middle of everything else, and puts it right at the end."""

    def __init__(self, world: World, nodes: list[Node], random: Random) -> None:
        self._world = world
        self._nodes = nodes
        self._random = random
        self._work: asyncio.Task[None] | None = None
        self._stopping: list[Node] = []
        self._tools = 0
        if "pauses" in world.features:
            world.pausing = Pausing(world, nodes, Random(f"{random.random()} pauses"))
        self.unparking = Unparking(world, nodes, random, self._stop_all)

    @property
    def is_needed(self) -> bool:
        """Whether something may stand still until somebody acts."""
        return not self._world.features.isdisjoint(
            ("operator", "retention", "poison", "refused", "versions", "expired", "recreate", "replaced")
        )

    @property
    def has_to_deploy(self) -> bool:
        """Whether some process runs an older program, or hasn't looked at a new changelog or an offset that was set."""
        features, audit = self._world.features, self._world.audit
        if not features.isdisjoint(("operator", "expired")) and any(map(audit.is_foreign, self._world.sources)):
            return True
        deployment = self._world.deployment
        if "replaced" in features and not deployment.lost_changelog.restores:
            return True
        return "versions" in features and not deployment.is_mended

    def faults(self) -> Iterator[Callable[[], float | None]]:
        features = self._world.features
        if "operator" in features:
            yield self.reset_offset
        if "retention" in features:
            yield self.retention
        if "expired" in features:
            yield self.expire_offsets
        if "recreate" in features:
            yield self.recreate_input
        if not features.isdisjoint(("poison", "refused")):
            yield self.deploy
        if "unparking" in features:
            yield self.stop_parking
        if "refused" in features:
            yield self.limit_records
        if "replaced" in features:
            yield self.replace_changelog
        if "grow" in features:
            yield self.grow_input
        yield from self._world.model.faults(self._nodes)
        yield from () if self._world.pausing is None else self._world.pausing.faults()

    def interrupt(self) -> None:
        """Drop what is being done; a worker that is half stopped wouldn't come back by itself."""
        if self._work is not None:
            self._work.cancel()
        if "recreate" in self._world.features:
            self._world.deployment.choose(None)
        for node in self._stopping:
            node.kill(finishes=True)
        self.unparking.interrupt()

    # --- faults ----------------------------------------------------------------------------------------------------

    def reset_offset(self) -> None:
        """Somebody moves or deletes the group's offset of a partition, with a tool, while nobody or somebody runs."""
        source = TopicPartition(self._some_input(), self._random.randrange(self._world.partitions))
        way = self._random.choice((self._reset_at_once, self._reset_while_stopped, self._reset_in_a_transaction))
        self._begin(way(source))

    def retention(self) -> None:
        """The input's first records are deleted, processed or not."""
        log = self._random.choice(self._world.cluster.topic(self._some_input()).partitions)
        log.delete_before(self._random.randint(log.start, log.end))
        self._world.audit.retained(log)

    def recreate_input(self) -> None:
        """The input topic is deleted under the workers, and created again at once; somebody may choose where to go on.

        The choice is for one start: later processes have to know that it was made.
        """
        former = self._world.cluster.topic(self._some_input())
        self._world.audit.recreated(former.topic_id, former.partitions)
        self._world.cluster.recreate_topic(former.name)
        if self._random.random() < 0.5:
            self._begin(self._choose())

    def _some_input(self) -> str:
        inputs = self._world.inputs
        return inputs[0] if len(inputs) == 1 else self._random.choice(inputs)

    async def _choose(self) -> None:
        deployment = self._world.deployment
        await self._stop_all()
        deployment.choose(self._random.choice(("earliest", "latest")))
        self._start_all()
        await asyncio.sleep(self._random.choice((1.0, 5.0)))
        deployment.choose(None)
        await self.restart()

    def expire_offsets(self) -> float:
        """All are off for so long that the group forgets its offsets."""
        empties = self._random.random() < 0.6
        self._begin(self._expire_offsets(empties=empties))
        return EXPIRY_S if empties else 0.0

    async def _expire_offsets(self, *, empties: bool) -> None:
        if empties:
            self._world.delete_keys()
            deadline_s = self._world.loop.time() + CATCH_UP_S
            await self._until(lambda: self._has_caught_up() or self._world.loop.time() >= deadline_s)
        await self._stop_all()
        await self._until_empty()
        if empties:
            await self._forget_state()
        for source in self._world.sources:
            self._set(source, None)
        self._world.audit.counted["expired"] += 1
        self._start_all()

    def _has_caught_up(self) -> bool:
        offsets, cluster = self._world.cluster.group.offsets, self._world.cluster
        return all(
            source in offsets and offsets[source].offset >= app.last_input(cluster.log(source))
            for source in self._world.sources
        )

    async def _forget_state(self) -> None:
        """Lose the disks and have compaction remove tombstones: of keys that were deleted nothing is left."""
        cluster = self._world.cluster
        await self._until(lambda: not cluster.transactions.open_transactions())
        for node in self._nodes:
            node.disk.erase()
        for _ in range(2):
            for log in cluster.logs():
                if log.is_compacted:
                    # The log's last record stays, and a later one would take its place.
                    log.compact(cluster.wall_ms(), log.end)
            await asyncio.sleep(DELETE_RETENTION_MS / 1000 + 1)

    def deploy(self) -> None:
        """All workers are restarted, with a handler that is mended or the one that isn't."""
        self._world.deployment.is_mended = self._random.random() < 0.4
        self._begin(self.restart())

    def stop_parking(self) -> None:
        """All workers are restarted with a program that doesn't park, and back."""
        self._begin(self.unparking.try_for_a_while())

    def limit_records(self) -> None:
        """The topics' limit is lifted, or set."""
        limit = self._random.choice((None, app.MAX_RECORD_BYTES))
        self._limit(limit)

    def grow_input(self) -> None:
        """The input is given partitions under the workers: producers put keys elsewhere than their state is."""
        count = len(self._world.cluster.topic(app.INPUT).partitions)
        if count < 2 * self._world.partitions:
            self._world.audit.counted["grown"] += 1
            self._world.cluster.grow_topic(app.INPUT, count + self._random.randint(1, 2))

    def replace_changelog(self) -> None:
        """A changelog is deleted, and created again at once."""
        name = app.changelog(self._random.choice(app.STORES))
        self._world.audit.note(f"REPLACES {name}")
        self._world.audit.counted["replaced"] += 1
        self._world.cluster.delete_topic(name)
        self._world.cluster.make_topic(
            name, self._world.partitions, is_compacted=True, delete_retention_ms=DELETE_RETENTION_MS
        )

    def _limit(self, limit: int | None) -> None:
        for topic in (app.ECHO, *map(app.changelog, app.STORES)):
            self._world.cluster.limit_records(topic, limit)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        """Do one thing at a time: what is asked for meanwhile isn't done."""
        if self._work is not None and not self._work.done():
            work.close()
            return
        self._work = self._world.loop.create_task(work)

    # --- resets ----------------------------------------------------------------------------------------------------

    async def _reset_at_once(self, source: TopicPartition) -> None:
        self._set(source, self._some_offset(source))

    async def _reset_while_stopped(self, source: TopicPartition) -> None:
        await self._stop_all()
        await self._until_empty()
        self._set(source, self._some_offset(source))
        self._start_all()

    async def _reset_in_a_transaction(self, source: TopicPartition) -> None:
        """A program that isn't a member commits the group's offset with its outputs: the broker doesn't mind."""
        transactions = self._world.cluster.transactions
        self._tools += 1
        name = f"tool-{self._tools}"
        epoch = await self._insist(lambda: transactions.init_producer_id(name, 60.0))
        offset = self._some_offset(source) or 0
        await self._insist(lambda: transactions.commit_offsets(name, epoch, app.GROUP, {source: (offset, "")}))
        await asyncio.sleep(self._random.choice((0.0, 0.3)))
        await self._insist(lambda: transactions.end(name, epoch, commit=True))

    async def _insist(self, request: Callable[[], int | None]) -> int:
        async def ask() -> int | None:
            return request()

        return await retried(ask, retry_s=0.1, deadline_s=math.inf)

    def _some_offset(self, source: TopicPartition) -> int | None:
        """An offset that makes sense, or doesn't; None to delete it."""
        random, log = self._random, self._world.cluster.log(source)
        committed = self._world.cluster.group.offsets.get(source)
        at = min(0 if committed is None else committed.offset, log.end)
        back, forward = random.randint(0, at), random.randint(at, log.end)
        return random.choice((back, back, forward, log.end + random.randint(1, 9), None))

    def _set(self, source: TopicPartition, offset: int | None) -> None:
        """Set or delete the offset, as long as the group has no members."""
        group, audit = self._world.cluster.group, self._world.audit
        try:
            if offset is None:
                group.delete_offset(source)
            else:
                group.set_offset(source, offset)
        except RefusedError as error:
            audit.note(f"OPERATOR is refused: {error!r}")
            audit.counted["operator refused"] += 1
        else:
            audit.operator_set(source, offset)
            audit.counted["operator"] += 1

    # --- stop and start --------------------------------------------------------------------------------------------

    async def restart(self) -> None:
        """Restart all workers."""
        await self._stop_all()
        self._start_all()

    async def _stop_all(self) -> None:
        self._stopping = [node for node in self._nodes if self._random.random() < 0.5]
        stops = [self._world.loop.create_task(node.stop()) for node in self._stopping]
        if stops:
            await asyncio.wait(stops, timeout=STOP_S)
        for node in self._nodes:
            node.kill(finishes=True)
        self._stopping = []

    def _start_all(self) -> None:
        for node in self._nodes:
            if not node.is_up:
                node.start()

    async def _until_empty(self) -> None:
        group, deadline_s = self._world.cluster.group, self._world.loop.time() + EMPTY_S
        await self._until(lambda: not group.members or self._world.loop.time() >= deadline_s)

    @staticmethod
    async def _until(condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  what is waited for is the cluster's, which wakes nobody
            await asyncio.sleep(LOOK_S)

    # --- the end ---------------------------------------------------------------------------------------------------

    async def repair(self) -> None:
        """Stop all workers, put right what keeps a partition from going on, and start them."""
        world = self._world
        stood = {
            source: held.state
            for node in self._nodes
            if node.worker is not None
            for held in node.worker.tasks
            for source in held.sources
        }
        await self._stop_all()
        await self._until_empty()
        await self._until(lambda: not world.cluster.transactions.open_transactions())
        world.deployment.is_mended = True
        if "replaced" in world.features:
            world.deployment.lost_changelog = LostChangelog.RESTORE
        self._limit(None)
        for source in world.sources:
            self._repair(source, stood.get(source))
        self._start_all()

    def _repair(self, source: TopicPartition, state: State | None) -> None:
        world = self._world
        error = world.audit.stops.get(source)
        if state is State.HALTED and isinstance(error, UndecodableRecordError):
            if error.topic != source.topic:
                return
            if error.is_passed:
                world.deployment.skips = True
            else:
                self._set(source, error.offset + 1)
                world.deployment.accept_moved = True
        elif "recreate" in world.features:
            if state is State.REFUSED and world.deployment.missing_offset is None:
                world.deployment.choose(self._random.choice(("earliest", "latest")))
        elif not world.features.isdisjoint(("operator", "retention", "expired")):
            self._mend_offset(source, state)

    def _mend_offset(self, source: TopicPartition, state: State | None) -> None:
        """Set the offset where the app was, or let it go on where the offset is now."""
        is_foreign = self._world.audit.is_foreign(source)
        self._world.deployment.accept_moved |= is_foreign or self._world.audit.has_lost_input(source)
        audit, deployment, log = self._world.audit, self._world.deployment, self._world.cluster.log(source)
        committed = self._world.cluster.group.offsets.get(source)
        if audit.has_lost_input(source):
            if self._random.random() < 0.5 or deployment.allow_lost_input:
                self._set(source, log.start)
            else:
                deployment.allow_lost_input = True
        elif "expired" in self._world.features and committed is None and audit.is_foreign(source):
            # Where there is state, that choice isn't taken, and the offset has to be set.
            if deployment.missing_offset is None and self._random.random() < 0.7:
                deployment.choose(self._random.choice(("earliest", "latest")))
            elif deployment.missing_offset is None or state is State.REFUSED:
                self._set(source, max(audit.processed(source), log.start))
        elif audit.is_foreign(source):
            # Where the input is gone, going back to it leads nowhere.
            goes_back = self._random.random() < 0.6 and audit.processed(source) >= log.start
            if goes_back or (committed is not None and committed.offset > log.end):
                self._set(source, audit.processed(source))
            else:
                deployment.allow_reprocessing = True
