"""A task's ports, watched: what it does with them, what it is told, and as whom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from actors.errors import CommitRefusedError, OutcomeUnknownError, StaleGenerationError
from actors.ports import CommitBatch, CommitReceipt, Identity, TaskLog, TopicPartition, Writer
from tests.sim.audit import Audit
from tests.sim.ownership import Ownership, Phase, enter, ownership, phase


class WatchedLog:
    """A task's log whose calls have to come in an order that keeps nothing of a lost ownership alive."""

    def __init__(self, log: TaskLog, audit: Audit) -> None:
        self._log = log
        self._audit = audit

    async def fence(self) -> None:
        if phase() is Phase.MIGRATED:
            self._audit.check_phase("fences")
        await self._log.fence()
        self._audit.note("fenced")
        enter(Phase.FENCED)

    async def end_transaction_of(self, transactional_id: str) -> None:
        self._audit.note(f"ends the transaction of {transactional_id}")
        self._audit.counted["ended transactions"] += 1
        await self._log.end_transaction_of(transactional_id)

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        self._audit.check_phase("commits")
        changes = {topic: len(writes) for topic, writes in batch.changelogs.items()}
        marks = []
        for committed in batch.offsets.values():
            epoch, transaction, _, *finished = committed.metadata.split(";")
            marks.append(";".join((epoch, transaction, *finished)))
        self._audit.note(f"{batch} {' '.join(marks)} {changes}")
        try:
            receipt = await self._log.commit(batch)
        except (OutcomeUnknownError, CommitRefusedError) as error:
            self._audit.note(str(error))
            self._audit.counted[type(error).__name__] += 1
            ownership.get().phase = Phase.UNKNOWN
            raise
        self._audit.note(f"done: {batch}")
        return receipt

    def is_ready(self, wake: Callable[[], None]) -> bool:
        return self._log.is_ready(wake)

    def end(self) -> None:
        self._log.end()

    async def close(self) -> None:
        await self._log.close()


class WatchedWriter:
    """A worker's writer, noting as whom it commits what."""

    def __init__(self, writer: Writer, audit: Audit) -> None:
        self._writer = writer
        self._audit = audit
        self.fence, self.close = writer.fence, writer.close
        self.end_transaction_of = writer.end_transaction_of

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        offsets = (committed for batch in batches for committed in batch.offsets.values())
        self._audit.owners.update((committed.metadata, identity) for committed in offsets)
        try:
            return await self._writer.write(identity, batches)
        except StaleGenerationError as error:
            self._audit.note(str(error))
            self._audit.counted["StaleGenerationError"] += 1
            raise


class WatchedGroup:
    """The group's view, noting what each task was told."""

    def __init__(self, group: Any, audit: Audit) -> None:
        self._group = group
        self._audit = audit

    async def is_member(self, identity: Identity) -> bool:
        is_member: bool = await self._group.is_member(identity)
        if not is_member:
            self._audit.note(f"{identity} isn't a member")
            ownership.set(Ownership(Phase.MIGRATED, ownership.get(None)))
            return False
        known = ownership.get(Ownership())
        if known.phase is Phase.MIGRATED:
            # It was asked as a former identity, and the task is the worker's in the next generation too.
            ownership.set(known.before or Ownership())
        if phase() is Phase.FENCED:
            enter(Phase.OWNER)
        return True

    async def committed(self, source: TopicPartition) -> Any:
        return await self._group.committed(source)

    async def stable_offset(self, source: TopicPartition) -> Any:
        return await self._group.stable_offset(source)

    async def knows(self, member_id: str) -> bool:
        return bool(await self._group.knows(member_id))

    async def left_open(self, own_id: str) -> Any:
        return await self._group.left_open(own_id)

    async def topic_ids(self, names: Iterable[str]) -> Any:
        return await self._group.topic_ids(names)

    async def look(self, commits: Any, ends: Any, topics: Any) -> Any:
        return await self._group.look(commits, ends, topics)

    async def require_agreement(self, names: Iterable[str]) -> None:
        await self._group.require_agreement(names)


class logs_to:  # noqa: N801
    """Takes the product's log into the trace while it is printed, and silences it otherwise."""

    def __init__(self, audit: Audit, *, is_read: bool) -> None:
        self._audit = audit
        # A partition that is refused for what is known of its topic is told of at that level.
        self._level = logging.INFO if audit.print_trace or is_read else logging.ERROR
        self._logger = logging.getLogger("actors")
        self._before = (self._logger.level, self._logger.propagate)
        self._handler = logging.Handler()
        self._handler.emit = self._emit  # type: ignore[method-assign]

    def __enter__(self) -> None:
        self._logger.propagate = False
        self._logger.setLevel(self._level)
        self._logger.addHandler(self._handler)

    def _emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("actor %s is stopped on"):
            _, names, error = record.args
            for name in names.split(", "):
                topic, _, number = name.rstrip("]").rpartition("[")
                self._audit.stopped(TopicPartition(topic, int(number)), error)
        elif self._audit.print_trace:
            self._audit.note(f"log: {record.getMessage()}")

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.level, self._logger.propagate = self._before
        self._logger.setLevel(self._before[0])
