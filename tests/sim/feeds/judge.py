"""What a run is judged by: its results beside the oracle's, and its committed times."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from actors._core.task.commit import parse_mark
from actors.ports import Committed, TopicPartition
from actors.testing.fakes.cluster import EPOCH_MS
from actors.testing.fakes.log import Transaction, offset_of
from tests.sim.feeds.machine import FeedWorld
from tests.sim.feeds.oracle import Promise, Read, Result, end_ms, first_stage, second_stage, waits_in_vain
from tests.sim.feeds.program import (
    FIRST,
    LATE,
    LATE_SECOND,
    NOTES,
    ONE_MANY,
    RESULTS,
    Event,
    Found,
    Total,
    entry,
)
from tests.sim.node import SKEW_MARGIN_MS


class Judge:
    """Looks at what is committed, and says what isn't as the oracle has it.

    Attributes:
        last_id, last_ms: of the record that ends all windows but its own.
        commits: how many transactions have ended, those with nothing in them too.
    """

    def __init__(self, world: FeedWorld, counted: Counter[str]) -> None:
        self.world, self.notes, self.counted = world, world.audit, counted
        self.last_id, self.last_ms, self.commits = -1, 10**15, 0
        self._reached: list[tuple[float, int]] = []
        self._offsets: dict[TopicPartition, Committed] = {}
        group = world.cluster.group
        group.complete = self._completing(group.complete)  # type: ignore[method-assign]
        world.cluster.transactions.on_decision.append(self._count)

    def _count(self, *_: object) -> None:
        self.commits += 1

    @property
    def sources(self) -> list[TopicPartition]:
        """The partitions of the topics whose writers the app doesn't know."""
        cluster = self.world.cluster
        return [log.name for topic in self.world.shape.sources for log in cluster.topic(topic).partitions]

    def _completing(self, complete: Any) -> Any:
        """Look at each offset that comes to count."""
        group = self.world.cluster.group

        def completed(source: TopicPartition, committed: Committed, appended: int) -> None:
            complete(source, committed, appended)
            if group.offsets.get(source) is committed:
                self._committed(source, committed)

        return completed

    def _committed(self, source: TopicPartition, committed: Committed) -> None:
        """Note up to which times sources are committed, and see that no committed time goes back."""
        before, self._offsets[source] = self._offsets.get(source), committed
        if source.topic in self.world.shape.sources:
            handled_from = before.offset if before is not None else 0
            history = self.world.cluster.log(source).history
            handled = history[bisect_left(history, handled_from, key=offset_of) :]
            top_ms = max((one.timestamp for one in handled if one.offset < committed.offset), default=-1)
            if top_ms > (self._reached[-1][1] if self._reached else -1):
                self._reached.append((self.world.loop.time(), top_ms))
        former, mark = before and parse_mark(before.metadata), parse_mark(committed.metadata)
        if former and mark:
            for what in ("source_ms", "output_ms"):
                if getattr(mark.times, what) < getattr(former.times, what):
                    self.notes.violated(f"time of {source} goes back: {former.times} to {mark.times}")

    def _records(self, topic: str) -> Iterator[Any]:
        found = self.world.cluster.find_topic(topic)
        for log in found.partitions if found is not None else ():
            yield from (record for record in log.history if _is_readable(record))

    def reads(self) -> list[Read]:
        return [
            Read(
                event.id,
                self.world.shape.group_of(record.topic, event),
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
            )
            for topic in self.world.shape.sources
            for record in self._records(topic)
            if record.value is not None  # a command
            for event in [msgspec.json.decode(record.value, type=Event)]
        ]

    def differences(self) -> Iterator[str]:
        """Say what isn't as the oracle has it."""
        shape, reads = self.world.shape, self.reads()
        written_s = {tuple(source): self.world.cluster.log(source).written_s for source in self.sources}
        clock_s = None if shape.idle_ms is None else self._clock_s
        promise = Promise(reads, written_s, self._reached, clock_s=clock_s)  # type: ignore[arg-type]
        by_id = {read.id: read for read in reads}
        late = self._late(reads)
        second_late = [msgspec.json.decode(record.value, type=Found | Event) for record in self._records(LATE_SECOND)]
        for one in second_late:
            if isinstance(one, Found):
                # A timer of a record that came after a silence may be due before it was set.
                read = by_id[one.ids[0]]
                if shape.kind == "wall":
                    # Its time is the clock's.
                    continue
                if shape.kind != "timers" or not promise.allows(read, one.from_ms):
                    yield f"late: a result of the first stage, {one}"
            else:
                late.add(one.id)
        for read in reads:
            yield from self._wrongly_late(promise, read, reads, is_late=read.id in late)
        self.counted["late"] = len(late)
        self.counted["records"] = len(reads)
        if shape.kind == "wall":
            yield from self._wall_differences(reads)
        else:
            yield from self._first_differences(promise, [read for read in reads if read.id not in late])
        left_out = [one for one in second_late if isinstance(one, Found)]
        notes = [read for read in reads if read.topic == NOTES and read.id not in late]
        yield from self._second_differences(notes, Counter(tuple(entry(found)) for found in left_out))

    def _wrongly_late(self, promise: Promise, read: Read, reads: list[Read], *, is_late: bool) -> Iterator[str]:
        """Say if a record is late without being allowed to, or has waited in vain and isn't."""
        shape = self.world.shape
        if not is_late:
            if read.id < self.last_id and waits_in_vain(shape, read, reads):
                yield f"in vain: {read} is nowhere, and has no one"
            return
        # One of which the promise says nothing may come when those that it has don't wait any more, or after its end.
        grace_ms = shape.grace_ms
        ones = (
            one
            for one in reads
            if not promise.allows(one, one.at_ms + grace_ms)
            and not promise.allows(read, end_ms(shape, one) + grace_ms - 1)
        )
        if waits_in_vain(shape, read, ones):
            self.counted["waited in vain"] += 1
        elif not promise.allows(read, shape.late_behind_ms(read.topic, read.at_ms)):
            yield f"late: {read}, which no earlier record and no silence of its source allows"

    def _late(self, reads: list[Read]) -> set[int]:
        """Return which records were late for the first stage."""
        if self.world.shape.late == "topic":
            return {msgspec.json.decode(record.value, type=Event).id for record in self._records(LATE)}
        results = [msgspec.json.decode(record.value, type=Found) for record in self._records(FIRST)]
        handled = {number for result in results for number in result.ids} | {self.last_id}
        return {read.id for read in reads if read.topic != NOTES and read.id not in handled}

    def _clock_s(self, at_ms: int) -> float:
        """Return when the clock of a machine may have been so far that it made a time late."""
        return (at_ms + (self.world.shape.idle_ms or 0) - EPOCH_MS - SKEW_MARGIN_MS) / 1000

    def _wall_differences(self, reads: list[Read]) -> Iterator[str]:
        """Say what isn't in one window, once, or in one that ended before it was written."""
        windows = Counter[tuple[str, int]]()
        ids = Counter[int]()
        reads_by_id = {read.id: read for read in reads}
        for record in self._records(FIRST):
            found = msgspec.json.decode(record.value, type=Found)
            windows[found.user, found.from_ms] += 1
            ids.update(found.ids)
            for number in found.ids:
                read = reads_by_id[number]
                written_s = self.world.cluster.log(TopicPartition(read.topic, read.partition)).written_s[read.offset]
                if found.to_ms < EPOCH_MS + written_s * 1000 - SKEW_MARGIN_MS:
                    yield f"first stage has {read} in a window that was over, {found}"
        for window, count in windows.items():
            if count > 1:
                yield f"first stage closes {window} {count} times"
        for read in reads:
            if read.topic != NOTES and ids[read.id] != 1 and read.id != self.last_id:
                yield f"first stage has {read} {ids[read.id]} times"

    def _first_differences(self, promise: Promise, reads: list[Read]) -> Iterator[str]:
        shape = self.world.shape
        firsts = [read for read in reads if read.topic != NOTES]
        wanted = first_stage(shape, firsts)
        sent: dict[str, list[Result]] = {}
        for record in self._records(FIRST):
            found = msgspec.json.decode(record.value, type=Found)
            sent.setdefault(found.user, []).append((found.user, found.from_ms, found.to_ms, tuple(found.ids)))
        for user in wanted.keys() | sent.keys():
            own = [read for read in promise.records if read.user == user and read.topic != NOTES]
            if (
                not shape.is_ordered
                and shape.kind in ("join", ONE_MANY, "sliding", "session")
                and any(promise.allows(read, read.at_ms + shape.grace_ms) for read in own if read.id != self.last_id)
            ):
                # A record may then be in time for itself, and too late for another one, or for a session that closed.
                self.counted["users left out"] += 1
                continue
            results = sent.get(user, [])
            if shape.kind == "emit":
                results = list({result[:3]: result for result in results}.values())
            got = Counter(results)
            want = Counter({one: count for one, count in wanted.get(user, Counter()).items() if self._is_over(one)})
            for result, count in (want - got).items():
                yield f"first stage lacks {result}, {count} times of {want[result]}"
            for result, count in (got - want).items():
                if self._is_over(result):
                    yield f"first stage has {result}, {count} times too often"
            self.counted["results"] += len(results)

    def _is_over(self, result: Result) -> bool:
        """Whether a result isn't one of the last record, which ends all others."""
        return self.last_id not in result[3]

    def _second_differences(self, notes: list[Read], late: Counter[tuple[int, ...]]) -> Iterator[str]:
        inputs = []
        is_across = bool(self.world.shape.across)
        for record in self._records(FIRST):
            found = msgspec.json.decode(record.value, type=Found)
            if late[tuple(entry(found))]:
                continue
            at_ms = found.from_ms if is_across else record.timestamp
            inputs.append((record.key.decode(), at_ms, entry(found), found.user))
        if is_across:
            # A change takes the place of the one before.
            inputs = list({(user, at_ms): one for one in inputs for _, at_ms, _, user in [one]}.values())
        inputs += [(read.user, read.at_ms, [read.id], read.user) for read in notes]
        wanted = second_stage(self.world.shape, [one[:3] for one in inputs])
        totals = [msgspec.json.decode(record.value, type=Total) for record in self._records(RESULTS)]
        got = Counter((total.group, total.from_ms) for total in totals)
        for window, count in got.items():
            if count > 1:
                yield f"second stage closes {window} {count} times"
        contents = {(total.group, total.from_ms): total.entries for total in totals}
        for window, entries in wanted.items():
            is_last = window[1] + 2 * self.world.shape.second_ms + 2 * self.world.shape.span_ms > self.last_ms
            if not is_last and contents.get(window) != entries:
                yield f"second stage has {window}: {contents.get(window)}, not {entries}"


def _is_readable(record: Any) -> bool:
    transaction: Transaction | None = record.transaction
    return bool(record.is_committed and (transaction is None or not transaction.unmarked))
