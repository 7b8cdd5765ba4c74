"""The invariants. Each one that breaks is a line in `violations`; nothing is raised inside of the product."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actors._core.group.members import TaskId
from actors._core.partitioner import partition_for
from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.completed import decode_finished
from actors.errors import RecordError
from actors.ports import Identity, TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.task.task import Task
from actors.runtime.worker import Worker
from actors.testing.fakes.log import Decision, PartitionLog, StoredRecord, Transaction
from stores._core.record import METADATA_BYTES, METADATA_HEADER, decode_metadata
from tests.sim import app
from tests.sim.fakes.cluster import SimKafka, fold
from tests.sim.fakes.disk import Files
from tests.sim.fakes.loop import current_process
from tests.sim.fakes.source import FakeSource
from tests.sim.ownership import Phase, phase

NOBODY = Identity("", 0)
LOOKED_MS = 2_000
"""How long before its claim is decided a task may have looked at its input's end."""


@dataclass
class _Committed:
    offset: int = 0
    epoch: int = 0
    transaction: int = 0
    owner: Identity = NOBODY
    input_id: str = ""


@dataclass
class _Input:
    """What happened to one input partition: the offsets that an operator set, where its log began, what was processed.

    A topic that was re-created is another input. `is_first` is false if the app had committed in the one before.
    `spans` are what the takeovers and commits went through, in their order; `retired` its owners but the last;
    `finished` the inputs behind the committed offset that the last commit says are finished.
    """

    set_offsets: set[int | None] = field(default_factory=set)
    starts: set[int] = field(default_factory=lambda: {0})
    spans: list[tuple[int, int]] = field(default_factory=list)
    highest: int = 0
    retired: set[Identity] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    reached: int = 0
    is_first: bool = True


class Audit:
    """Watches the cluster's decisions and the disks' writes.

    Attributes:
        counted: how often what came, for the tests that ask whether anything is looked at.
        may_lack: gives the rows of a store, of those that are committed, that a disk needn't have any more.
        stops: the error that each input partition was stopped with last.
    """

    def __init__(
        self,
        cluster: SimKafka,
        deployment: app.Deployment,
        *,
        stores: tuple[str, ...] = app.STORES,
        inputs: tuple[str, ...] = (app.INPUT,),
        is_static: bool = False,
        check_phases: bool = True,
    ) -> None:
        self.violations: list[str] = []
        self.counted: Counter[str] = Counter()
        self.stops: dict[TopicPartition, Exception] = {}
        self.trace: deque[str] = deque(maxlen=200)
        self.print_trace = False
        self.now_s: Callable[[], float] = float
        self.may_lack: Callable[[str, Mapping[bytes, bytes]], Iterable[bytes]] = lambda *_: ()
        self.owners: dict[str, Identity] = {}
        self.members: dict[Worker, FakeSource] = {}
        self._cluster = cluster
        self._deployment = deployment
        self._stores = stores
        self._topics = inputs
        self._check_phases = check_phases
        self._committed: dict[TopicPartition, _Committed] = {}
        self._inputs: defaultdict[TopicPartition, _Input] = defaultdict(_Input)
        self._former: dict[str, dict[TopicPartition, tuple[PartitionLog, _Input]]] = {}
        self._folds: dict[PartitionLog, tuple[int, dict[bytes, bytes]]] = {}
        self._present: set[str] = set()
        self._assigned: dict[tuple[int, str], list[TopicPartition]] = {}
        self._ids: dict[str, object] = {}
        self._messages: dict[object, str] = {}
        cluster.transactions.on_decision.append(self._decided)
        if is_static:
            cluster.group.on_change.append(self._changed)

    def note(self, text: str) -> None:
        process = current_process()
        line = f"{self.now_s():9.3f} {'-' if process is None else process.name:8} {text}"
        self.trace.append(line)
        if self.print_trace:
            print(line)

    def violated(self, text: str) -> None:
        self.note(f"VIOLATED {text}")
        self.violations.append(text)

    def around(self, handler: Callable[[Context, Any], Awaitable[None]]) -> Callable[[Context, Any], Awaitable[None]]:
        """Give the handler with a look at the ids: each message has its own, whenever and by whomever it is handled."""

        async def handle(ctx: Context, value: Any) -> None:
            id, message = ctx.message_id, (ctx.topic, ctx.partition, ctx.offset, ctx.timestamp_ms, ctx.key, value)
            known, other = self._messages.setdefault(message, id), self._ids.setdefault(id, message)
            if (known, other) != (id, message):
                self.violated(f"ids: {message} has the id {id}, and had {known}; the id is that of {other}")
            home = partition_for(ctx._raw_key, ctx._working("home").partition_count)
            if home != ctx.partition:
                self.violated(f"home: {message} is handled, and the state of its key is in partition {home}")
            await handler(ctx, value)

        return handle

    # --- one owner -------------------------------------------------------------------------------------------------

    def _decided(self, transaction: Transaction) -> None:
        self.note(f"{transaction.transactional_id} epoch {transaction.epoch}: {transaction.decision.value}")
        if transaction.decision is not Decision.COMMIT:
            return
        self._check_together(transaction)
        for (_, source), (offset, metadata) in transaction.offsets.items():
            mark = parse_mark(metadata)
            if mark is None:
                self.operator_set(source, offset)
            else:
                self._check_offset(source, offset, mark, self.owners[metadata])

    def _check_together(self, transaction: Transaction) -> None:
        """See that the offsets of all inputs of a task are in the transaction, and of one commit."""
        commits: defaultdict[int, set[object]] = defaultdict(set)
        for (_, source), (_, metadata) in transaction.offsets.items():
            mark = parse_mark(metadata)
            if mark is not None:
                commits[source.partition] |= {source.topic, (mark.epoch, mark.transaction, mark.nonce)}
        for partition, found in commits.items():
            if len(found) > len(self._topics) + 1 or not found.issuperset(self._topics):
                self.violated(f"one transaction: partition {partition} is committed with {found}")

    def _check_offset(self, source: TopicPartition, offset: int, mark: CommitMark, owner: Identity) -> None:
        before = self._committed.setdefault(source, _Committed())
        input_id = "" if mark.topics is None else mark.topics.input_id
        now = _Committed(offset, mark.epoch, mark.transaction, owner, input_id)
        if (now.epoch, now.transaction) <= (before.epoch, before.transaction):
            self.violated(f"one owner: {source} commits {now} after {before}: the epoch or its number isn't higher")
        log, held = self._input_of(source, input_id)
        if held is not self._inputs[source]:
            # It was under way while the input was re-created.
            self._inputs[source].is_first = False
        if owner != before.owner:
            held.retired.add(before.owner)
        if owner in held.retired or owner.generation < before.owner.generation:
            self.violated(f"one owner: {source} commits {now} after {before}: an old owner came back")
        if mark.transaction == 1 and input_id in self._former:
            # It looked at an input that is deleted by now, of which nothing more can be fetched.
            held.spans.append((offset, offset))
        elif mark.transaction == 1:
            self._check_takeover(log, held, offset, decode_finished(offset, mark.finished))
        elif offset < before.offset:
            self.violated(f"exactly once: the offset of {source} goes back from {before.offset} to {offset}")
        held.highest = max(held.highest, offset)
        if held.spans:
            held.spans[-1] = (held.spans[-1][0], offset)
        self._finish(held, offset, mark)
        self._committed[source] = now

    def _finish(self, held: _Input, offset: int, mark: CommitMark) -> None:
        """Note what is finished behind an offset: nothing of it may get lost until the offset has passed it."""
        finished = decode_finished(offset, mark.finished)
        if finished:
            self.counted["finished ahead"] += 1
        lost = {at for at in held.finished if at >= offset} - finished
        if lost:
            self.violated(f"exactly once: {sorted(lost)} were finished, and at {offset} aren't any more")
        held.finished = finished
        held.reached = max(held.reached, offset, *(at + 1 for at in finished))

    def check_epochs(self, log: PartitionLog) -> None:
        highest = 0
        for record in log.history:
            if record.is_committed:
                epoch = decode_metadata(_metadata(record)).epoch
                if epoch < highest:
                    self.violated(f"one owner: {log.name} has epoch {epoch} at {record.offset}, after {highest}")
                highest = max(highest, epoch)

    # --- operators and retention -----------------------------------------------------------------------------------

    def operator_set(self, source: TopicPartition, offset: int | None) -> None:
        """Note what an operator set the group's offset to, None if it was deleted."""
        self.note(f"OPERATOR sets {source} to {offset}")
        self._inputs[source].set_offsets.add(offset)

    def retained(self, log: PartitionLog) -> None:
        """Note the log's new start."""
        self.note(f"RETENTION {log}")
        self._inputs[log.name].starts.add(log.start)

    def processed(self, source: TopicPartition) -> int:
        """The input offset that the app committed last, whatever the group says now."""
        held = self._committed.get(source)
        return 0 if held is None or not self._is_current(source, held.input_id) else held.offset

    def spans(self, source: TopicPartition) -> list[tuple[int, int]]:
        return self._inputs[source].spans

    def has_moved(self, partition: int) -> bool:
        """Whether some takeover went on elsewhere than the last commit: inputs may be handled again, or never."""
        sources = [TopicPartition(topic, partition) for topic in self._topics]
        former = [held for source in sources for _, held in self._former_of(source)]
        return any(len(held.spans) > 1 for held in [*former, *(self._inputs[source] for source in sources)])

    def recreated(self, topic_id: str, logs: Iterable[PartitionLog]) -> None:
        """Note that the input was re-created: its former id and partitions."""
        self.note(f"RE-CREATES the input {topic_id}")
        former = self._former[topic_id] = {}
        for log in logs:
            former[log.name] = (log, self._inputs.pop(log.name, _Input()))
            self._inputs[log.name].is_first = log.name not in self._committed
        self.counted["recreated"] += 1

    def expected(self, source: TopicPartition) -> app.Expected:
        """What has to come of all that was processed, in the former inputs first."""
        return app.expected(self.handled(source))

    def handled(self, source: TopicPartition) -> list[StoredRecord]:
        """Give what was processed, in the former inputs first."""
        found: list[StoredRecord] = []
        for log, held in [*self._former_of(source), (self._cluster.log(source), self._inputs[source])]:
            for begin, end in [*held.spans, *((at, at + 1) for at in sorted(held.finished))]:
                found += [record for record in log.history if begin <= record.offset < end and record.is_committed]
        return found

    def _former_of(self, source: TopicPartition) -> list[tuple[PartitionLog, _Input]]:
        return [inputs[source] for inputs in self._former.values() if source in inputs]

    def _is_current(self, source: TopicPartition, input_id: str) -> bool:
        return input_id in ("", self._cluster.topic(source.topic).topic_id)

    def _input_of(self, source: TopicPartition, input_id: str) -> tuple[PartitionLog, _Input]:
        """Give the input that a commit is about, which may have been deleted before the commit took effect."""
        former = self._former.get(input_id)
        return (self._cluster.log(source), self._inputs[source]) if former is None else former[source]

    def is_foreign(self, source: TopicPartition) -> bool:
        """Whether somebody else wrote, or deleted, the group's offset after the app did."""
        committed = self._cluster.group.offsets.get(source)
        if committed is None:
            return source in self._committed
        mark = parse_mark(committed.metadata)
        return mark is None or (mark.topics is not None and not self._is_current(source, mark.topics.input_id))

    def has_lost_input(self, source: TopicPartition) -> bool:
        """Whether retention removed records behind the group's offset."""
        committed = self._cluster.group.offsets.get(source)
        return committed is not None and committed.offset < self._cluster.log(source).start

    def _check_takeover(self, log: PartitionLog, held: _Input, offset: int, finished: set[int]) -> None:
        """Look at where a takeover goes on: where the last commit was, unless somebody wanted it otherwise."""
        source, deployment = log.name, self._deployment
        # Where a tool set the same offset, nothing behind it is finished any more.
        is_reset = held.finished != finished and self.is_foreign(source)
        if source in self._committed and held.spans and offset == held.spans[-1][1] and not is_reset:
            return
        wanted: set[int] = set()
        is_begun = bool(held.spans) or not held.is_first
        if not is_begun or deployment.accept_moved or deployment.allow_reprocessing:
            wanted = {at for at in held.set_offsets if at is not None}
        if not is_begun or (None in held.set_offsets and deployment.allow_reprocessing):
            wanted |= held.starts
        is_missing = None in held.set_offsets if held.spans else is_begun
        choices = deployment.chosen if is_missing else ()
        for choice in choices:
            wanted |= held.starts if choice == "earliest" else {self._stable_end(log, offset)}
            self.counted[f"missing offset {choice}"] += 1
        if self._deployment.allow_lost_input:
            wanted |= {start for start in held.starts if start > min({self.processed(source), *wanted})}
        where = f"a takeover of {source} goes on at {offset}, not at {self.processed(source)}"
        if offset not in wanted:
            self.violated(f"exactly once: {where}, which nobody wanted")
        if offset > log.end:
            self.violated(f"operator: {where}, which is behind the input's end {log.end}")
        proven = self._proven(source)
        # Retention may have taken what lies behind the offset that was set.
        is_start = deployment.allow_lost_input and offset in held.starts
        set_offsets = {at for at in held.set_offsets if at is not None}
        is_set = deployment.accept_moved and (
            offset in set_offsets or (is_start and min(set_offsets, default=offset) < offset)
        )
        is_wanted = deployment.allow_reprocessing or is_set or not held.is_first
        if offset <= proven and proven not in finished and not is_wanted:
            self.violated(f"operator: {where}, although the state has the input at {proven}")
        if held.spans:
            self.counted["reprocessed" if offset < held.highest else "skipped"] += 1
        held.spans += [(at, at + 1) for at in sorted(held.finished - finished)]
        held.finished = set()
        held.spans.append((offset, offset))

    def _stable_end(self, log: PartitionLog, offset: int) -> int:
        """Give the offset, if nothing was committed behind it by the time; else the end."""
        # The offset that is committed now is the claim's, and the task looked at the end before its claim.
        looked_ms = self._cluster.wall_ms() - LOOKED_MS
        later = (record for record in log.history if record.offset >= offset and record.timestamp < looked_ms)
        is_end = not any(record.is_committed for record in later)
        return offset if is_end else log.end

    def _proven(self, source: TopicPartition) -> int:
        """The highest input offset that a living value comes from: nobody can doubt that it was processed."""
        proven = -1
        for store in self._stores:
            log = self._cluster.log(TopicPartition(app.changelog(store), source.partition))
            for raw in self.folded(log, log.last_stable).values():
                metadata = decode_metadata(raw[:METADATA_BYTES])
                if self._topics[metadata.input] == source.topic:
                    proven = max(proven, metadata.source_offset)
        return proven

    # --- records that can't be handled -----------------------------------------------------------------------------

    def stopped(self, source: TopicPartition, error: Exception) -> None:
        """Look at what a task says that it was stopped by."""
        self.note(f"STOPPED {source}: {error}")
        self.stops[source] = error
        self.counted[type(error).__name__] += 1
        if isinstance(error, RecordError) and error.topic == source.topic:
            named = [record for record in self._cluster.log(source).history if record.offset == error.offset]
            if [self._failure_of(record) for record in named] != [type(error).__name__]:
                self.violated(f"offender: {source} is stopped by {named}: {error}")

    def _failure_of(self, record: StoredRecord) -> str | None:
        """Give what a record may stop its partition with; a program that doesn't park stops where it would."""
        if self._deployment.has_stopped_parking and app.operation_of(record) == "doomed":
            return "HandlerFailedError"
        partitions = len(self._cluster.topic(app.changelog(app.COUNTS)).partitions)
        if record.key is not None and partition_for(record.key, partitions) != record.partition:
            return "MisplacedRecordError"
        return app.failure_of(record)

    def check_savepoints(self, log: PartitionLog) -> None:
        for record in log.history:
            if record.is_committed and app.GARBAGE.encode() in (record.value or b""):
                self.violated(f"savepoint: {log.name} has at {record.offset} what a handler wrote before it raised")

    def check_times(self, log: PartitionLog) -> None:
        """Look at the timestamps of echoes, which are those of their inputs."""
        sources = [TopicPartition(topic, log.name.partition) for topic in self._topics]
        inputs = [self._cluster.log(source) for source in sources]
        inputs += [former for source in sources for former, _ in self._former_of(source)]
        came = {(app.place(record).encode(), record.timestamp) for each in inputs for record in each.history}
        places = {place for place, _ in came}
        for record in log.history:
            place = record.value.split()[0]
            if record.is_committed and place in places and (place, record.timestamp) not in came:
                self.violated(f"times: {log.name} has {record.value!r} at {record.timestamp}, which isn't its input's")

    # --- static members --------------------------------------------------------------------------------------------

    def _changed(self, what: str, client: str) -> None:
        self.note(f"{client} {what}")
        if what == "leaves":
            self.violated(f"static: {client} leaves the group, its restart moves its partitions")
        elif what == "joins" and client in self._present:
            self.violated(f"static: {client} joins anew while its last life is still a member")
        elif what == "returns":
            self.counted["returned"] += 1
        if what in ("leaves", "expires"):
            self._present.discard(client)
        else:
            self._present.add(client)

    def assigned(self, client: str, identity: Identity, partitions: list[TopicPartition]) -> None:
        """Look at an assignment: a client's is the same all over a generation, whichever of its lives asks."""
        first = self._assigned.setdefault((identity.generation, client), list(partitions))
        if first != list(partitions):
            self.violated(f"static: {client} has {partitions} in generation {identity.generation}, and had {first}")

    def check_given(self, identity: Identity, partitions: Collection[TopicPartition], receiver: Worker) -> None:
        """See that no other member has a partition that is given: one that took part in the last generation."""
        for worker, member in self.members.items():
            ids = [TaskId(app.ACTOR, source.partition) for source in partitions]
            tasks = (worker._leaving.get(id) or worker.task_of(id) for id in ids)
            held = [task.sources[0] for task in tasks if task is not None and not (task.has_ended or task.is_abandoned)]
            is_member = member.identity().member_id in self._cluster.group.members
            if held and is_member and worker is not receiver and member.last_generation == identity.generation - 1:
                self.violated(f"handed over: {held} are given to {identity}, and {member.identity()} has them")

    def check_kept(
        self, running: Mapping[TopicPartition, Task], partitions: Collection[TopicPartition], worker: Worker
    ) -> None:
        """See that tasks that stay go on, save those that stand still: these are tried again."""
        for source in running.keys() & set(partitions):
            if running[source].halted_by is not None:
                continue
            self.counted["kept"] += 1
            if worker.task_of(TaskId(app.ACTOR, source.partition)) is not running[source] and worker.is_assigned:
                self.violated(f"kept: the task of {source} stays, and was started anew")

    # --- the disk --------------------------------------------------------------------------------------------------

    def written(self, kind: str, files: Files, *, is_copy: bool = False) -> None:
        """Look at what a write left on the disk. No task writes to a copy."""
        where = f"{files.store}[{files.partition}] after {kind}"
        if not is_copy:
            self.check_phase(f"writes {where}")
        position = files.position
        if kind == "wipe" or position is None:
            return
        topic = self._cluster.topic(app.changelog(files.store))
        if position.changelog_id != topic.topic_id:
            # It is of a topic that was replaced, or is about to be written back to this one.
            return
        log = topic.partitions[files.partition]
        if position.changelog_offset > log.end:
            self.violated(f"disk ahead: {where}: {position} is behind the log's end {log.end}")
        for topic, offset in zip(self._topics, position.offsets, strict=False):
            source = TopicPartition(topic, files.partition)
            highest = max(
                held.reached for held in (self._inputs[source], *(held for _, held in self._former_of(source)))
            )
            if offset > highest:
                self.violated(f"disk ahead: {where}: {position}, {source} is committed to {highest}")
        expected = self.kept(files, self.folded(log, position.changelog_offset))
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

    def kept(self, files: Files, expected: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Give what a disk has to have of a fold: of what is past its retention, what it has."""
        if files.data == expected:
            return expected
        gone = set(self.may_lack(files.store, expected)) - files.data.keys()
        return {key: raw for key, raw in expected.items() if key not in gone}

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

    def check_phase(self, what: str) -> None:
        if self._check_phases and phase() is not Phase.OWNER:
            self.violated(f"after a fence: a task {what} although it {phase().value}")


def _first_at(history: list[StoredRecord], offset: int) -> int:
    low, high = 0, len(history)
    while low < high:
        middle = (low + high) // 2
        if history[middle].offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _metadata(record: StoredRecord) -> bytes:
    return next(value for name, value in record.headers if name == METADATA_HEADER)


def _raw(record: StoredRecord) -> bytes:
    return _metadata(record) + (record.value or b"")
