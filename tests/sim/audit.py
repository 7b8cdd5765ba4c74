"""The invariants. Each one that breaks is a line in `violations`; nothing is raised inside of the product."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from actors.errors import OutcomeUnknownError
from actors.ports import CommitBatch, CommitReceipt, Identity, TaskLog, TopicPartition
from actors.testing import Decision, Files, PartitionLog, SimKafka, StoredRecord, Transaction, current_process, fold
from stores._core.record import STAMP_HEADER, decode_stamp
from tests.sim import app


class Phase(enum.Enum):
    """What the task that is running knows of its right to write."""

    NEW = "new"
    FENCED = "has fenced the others and not asked the group since"
    OWNER = "was confirmed by the group after it fenced"
    UNKNOWN = "has a commit of unknown outcome"
    MIGRATED = "was told that it isn't the owner"


_phase: ContextVar[Phase] = ContextVar("phase", default=Phase.NEW)


@dataclass
class _Committed:
    offset: int = 0
    epoch: int = 0
    transaction: int = 0
    generation: int = 0


class Audit:
    """Watches the cluster's decisions and the disks' writes."""

    def __init__(self, cluster: SimKafka, *, check_phases: bool = True) -> None:
        self.violations: list[str] = []
        self.trace: deque[str] = deque(maxlen=200)
        self.print_trace = False
        self.now_s: Callable[[], float] = float
        self.generations: dict[str, int] = {}
        self._cluster = cluster
        self._check_phases = check_phases
        self._committed: dict[TopicPartition, _Committed] = {}
        self._folds: dict[PartitionLog, tuple[int, dict[bytes, bytes]]] = {}
        cluster.transactions.on_decision.append(self._decided)

    def note(self, text: str) -> None:
        process = current_process()
        line = f"{self.now_s():9.3f} {'-' if process is None else process.name:8} {text}"
        self.trace.append(line)
        if self.print_trace:
            print(line)

    def violated(self, text: str) -> None:
        self.note(f"VIOLATED {text}")
        self.violations.append(text)

    # --- one owner -------------------------------------------------------------------------------------------------

    def _decided(self, transaction: Transaction) -> None:
        self.note(f"{transaction.transactional_id} epoch {transaction.epoch}: {transaction.decision.value}")
        if transaction.decision is not Decision.COMMIT:
            return
        for (_, source), (offset, metadata) in transaction.offsets.items():
            self._check_offset(source, offset, metadata)

    def _check_offset(self, source: TopicPartition, offset: int, metadata: str) -> None:
        before = self._committed.setdefault(source, _Committed())
        epoch, number, _ = metadata.split(";")
        now = _Committed(offset, int(epoch), int(number), self.generations.get(metadata, 0))
        if (now.epoch, now.transaction) <= (before.epoch, before.transaction):
            self.violated(f"one owner: {source} commits {now} after {before}: the epoch or its number isn't higher")
        if now.generation < before.generation:
            self.violated(f"one owner: {source} commits {now} after {before}: an old generation came back")
        if offset < before.offset:
            self.violated(f"exactly once: the offset of {source} goes back from {before.offset} to {offset}")
        self._committed[source] = now

    def check_epochs(self, log: PartitionLog) -> None:
        highest = 0
        for record in log.history:
            if record.is_committed:
                epoch = decode_stamp(_stamp(record)).epoch
                if epoch < highest:
                    self.violated(f"one owner: {log.name} has epoch {epoch} at {record.offset}, after {highest}")
                highest = max(highest, epoch)

    # --- the disk --------------------------------------------------------------------------------------------------

    def written(self, kind: str, files: Files) -> None:
        """Look at what a write left on the disk."""
        where = f"{files.store}[{files.partition}] after {kind}"
        self._check_phase(f"writes {where}")
        position = files.position
        if kind == "wipe" or position is None:
            return
        log = self._cluster.log(TopicPartition(app.changelog(files.store), files.partition))
        committed = self._committed.get(TopicPartition(app.INPUT, files.partition), _Committed())
        if position.changelog_offset > log.end:
            self.violated(f"disk ahead: {where}: {position} is behind the log's end {log.end}")
        if position.source_offset > committed.offset:
            self.violated(f"disk ahead: {where}: {position}, committed is {committed}")
        expected = self.folded(log, position.changelog_offset)
        if files.data != expected:
            self._check_keys(where, files, expected, log, is_restoring=kind == "load")

    def _check_keys(
        self, where: str, files: Files, expected: dict[bytes, bytes], log: PartitionLog, *, is_restoring: bool
    ) -> None:
        """Compare key by key. A restore is judged by its end: until then, it only may not hold what isn't committed."""
        end = files.position.changelog_offset
        for key in sorted(files.data.keys() | expected.keys()):
            held, wanted = files.data.get(key), expected.get(key)
            if held == wanted:
                continue
            if held is not None and not any(_raw(r) == held for r in log.history if r.is_committed and r.key == key):
                self.violated(f"disk ahead: {where}: {key!r} has {held!r}, which nobody committed")
            elif not is_restoring:
                what = "a deleted key came back" if wanted is None else "state isn't the fold of its changelog"
                self.violated(f"{what}: {where} at {end}: {key!r} is {held!r}, not {wanted!r}")

    def folded(self, log: PartitionLog, end: int) -> dict[bytes, bytes]:
        """The fold of the committed records below `end`, as a store holds it."""
        reached, state = self._folds.get(log, (0, {}))
        if end < reached:
            return {key: _raw(record) for key, record in fold(log.history, end).items()}
        index = _first_at(log.history, reached)
        for record in log.history[index:]:
            if record.offset >= end:
                break
            if record.is_committed and record.key is not None:
                if record.value is None:
                    state.pop(record.key, None)
                else:
                    state[record.key] = _raw(record)
        self._folds[log] = (end, state)
        return state

    # --- after a fence ---------------------------------------------------------------------------------------------

    def _check_phase(self, what: str) -> None:
        if self._check_phases and _phase.get() is not Phase.OWNER:
            self.violated(f"after a fence: a task {what} although it {_phase.get().value}")


class WatchedLog:
    """A task's log whose calls have to come in an order that keeps nothing of a lost ownership alive."""

    def __init__(self, log: TaskLog, audit: Audit, identity: Identity) -> None:
        self._log = log
        self._audit = audit
        self._identity = identity

    async def fence(self) -> None:
        if _phase.get() is Phase.MIGRATED:
            self._audit._check_phase("fences")
        await self._log.fence()
        self._audit.note("fenced")
        _phase.set(Phase.FENCED)

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        self._audit._check_phase("commits")
        self._audit.generations[batch.metadata] = self._identity.generation
        changes = {topic: len(writes) for topic, writes in batch.changelogs.items()}
        mark = batch.metadata.rpartition(";")[0]
        self._audit.note(f"commit {batch.source} at {batch.next_offset} {mark} {changes}")
        try:
            receipt = await self._log.commit(batch)
        except OutcomeUnknownError as error:
            self._audit.note(str(error))
            _phase.set(Phase.UNKNOWN)
            raise
        self._audit.note(f"committed {batch.source} at {batch.next_offset}")
        return receipt

    async def close(self) -> None:
        await self._log.close()


class WatchedGroup:
    """The group's view, noting what each task was told."""

    def __init__(self, group: Any, audit: Audit) -> None:
        self._group = group
        self._audit = audit

    async def is_member(self, identity: Identity) -> bool:
        is_member: bool = await self._group.is_member(identity)
        if not is_member:
            self._audit.note(f"{identity} isn't a member")
            _phase.set(Phase.MIGRATED)
        elif _phase.get() is Phase.FENCED:
            _phase.set(Phase.OWNER)
        return is_member

    async def committed(self, source: TopicPartition) -> Any:
        return await self._group.committed(source)


def _first_at(history: list[StoredRecord], offset: int) -> int:
    low, high = 0, len(history)
    while low < high:
        middle = (low + high) // 2
        if history[middle].offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _stamp(record: StoredRecord) -> bytes:
    return next(value for name, value in record.headers if name == STAMP_HEADER)


def _raw(record: StoredRecord) -> bytes:
    return _stamp(record) + (record.value or b"")
