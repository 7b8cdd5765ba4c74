"""Follows logs into stores, as standbys and views do; a policy decides what is followed, and how it is opened.

    wanted ──▶ opened ──▶ followed ──▶ closed
                  ▲           │
                  └───────────┘       its store failed, the log begins behind it, or deletes may have escaped it

One consumer reads for all stores of a follower. What must hold:

Never ahead. Only committed records are read, in the log's order, and each chunk is written with its position in one
    step: the store is a prefix of the log, and a process that dies reads on from there.
Deletes. A store's wall time is when it was last known to be all that the log held: the time of a look at the log's end
    that it reached since. A chunk is applied only while that is younger than deletes are kept: whatever was deleted
    since then was still there to be read. An older store is opened again, as is one that the log doesn't reach back
    to: the policy rebuilds it.
One writer. From `release` on nothing here touches a store.
A store that fails is left alone for a while that gets longer; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from actors._core.backoff import Backoff
from actors._core.task.takeover import Retention, why_not_followed
from actors.errors import (
    BrokerUnavailableError,
    LostChangelogError,
    ReplacedLogError,
    RestoreError,
    UnreadableLogError,
)
from actors.ports import Clock, Following, LogRecord, TopicLogs, TopicPartition
from actors.runtime.cancellation import is_cancelled
from actors.runtime.replicas.log_ends import LogEnds, Look
from actors.runtime.state.restore import stored_writes
from stores._core.record import Position
from stores._core.replay import advance
from stores.errors import StoreError
from stores.ports import PartitionStore

POLL_S = 0.2
RETRY = Backoff(0.1, longest_s=5.0)
KEEP_AGE_MS = 60_000
"""How often the disk is told how old a store is to which nothing is written."""
_OF_ONE_STORE = (
    StoreError,
    OSError,
    BrokerUnavailableError,
    RestoreError,
    LostChangelogError,
    UnreadableLogError,
)


class NotFollowedError(Exception):
    """A store can't be followed on."""


@dataclass(slots=True, kw_only=True)
class FollowedStore:
    """A prefix of a log's effects.

    Attributes:
        position: the store's. Its wall time is when the store last had all that the log held.
        kept: how long the log keeps deletes.
        mark: when a look at the log's end began, and the end that it found; None when there is nothing to reach.
        end: the log's end at the last look, at `looked_s`.
        current_ms: the time of the last look whose end it has reached, None before the first one.
        kept_ms: the wall time that is on disk, at least.
    """

    source: TopicPartition
    store: PartitionStore
    position: Position
    kept: Retention
    mark: tuple[int, int] | None = None
    end: int = 0
    looked_s: float = -math.inf
    current_ms: int | None = None
    kept_ms: int = 0

    @property
    def lag(self) -> int:
        """How many offsets it lacked at the last look."""
        return max(0, self.end - self.position.changelog_offset)

    def look(self, look: Look, now_s: float) -> None:
        """Note the log's end. An older mark is reached first: only then a new one helps."""
        self.end, self.looked_s = look.bounds.end, now_s
        self.mark = self.mark or (look.asked_ms, look.bounds.end)
        self.move(self.position)

    def move(self, position: Position) -> None:
        """Take a position, with the time of the mark if it reaches that."""
        if self.mark is not None and position.changelog_offset >= self.mark[1]:
            (self.current_ms, _), self.mark = self.mark, None
            position = replace(position, wall_time_ms=self.current_ms)
        self.position = position

    def is_too_old(self, now_ms: int) -> bool:
        """Return whether deletes may have escaped the store, so that it must not be followed on."""
        return now_ms - self.position.wall_time_ms >= self.kept.delete_retention_ms - self.kept.margin_ms

    def why_not_followed(self, look: Look, now_ms: int) -> str | None:
        """Return why it can't be followed on, as far as a look shows: what was read since lay behind that."""
        offset = min(self.position.changelog_offset, max(look.offset, look.bounds.end))
        return why_not_followed(replace(self.position, changelog_offset=offset), look.bounds, now_ms, self.kept)


F = TypeVar("F", bound=FollowedStore)


class Policy(Generic[F]):
    """The decisions in which one kind of follower differs from another.

    Attributes:
        look_pause_s: how often the logs' ends are looked at.
        pause: how long a store that failed is left alone.
    """

    look_pause_s: float
    pause: Backoff

    def is_free(self, source: TopicPartition) -> bool:
        """Return whether nobody else touches a store."""
        return True

    async def open_store(self, source: TopicPartition, look: Look, failure: Exception | None) -> F:
        """Return a store that can be followed on; `failure` is why it was dropped. Its lock is held."""
        raise NotImplementedError

    async def write(self, store: F, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write a chunk with the store's position. Mustn't await before it has written."""
        raise NotImplementedError

    async def looked(self, store: F) -> None:
        """Go on after a look at a store's log. The store's lock is held."""

    async def close_store(self, store: F) -> None:
        """Go on when a store isn't wanted any more. Its lock is held."""

    async def look(self) -> None:
        """Look at what isn't one store's: before stores are opened, and as often as at the logs' ends."""

    async def give_way(self, spent_s: float) -> None:
        """Wait while others need the event loop more, after a chunk took so long."""

    def failed(self, error: Exception, source: TopicPartition | None = None, pause_s: float = 0.0) -> None:
        """Log an error, of one store or of all; raise it if nothing can be followed any more."""
        raise NotImplementedError


class Follower(Generic[F]):
    """Follows the wanted logs; `held` are the stores that are open, some of which may not be wanted any more."""

    def __init__(self, policy: Policy[F], *, logs: TopicLogs, clock: Clock) -> None:
        self._policy = policy
        self._logs = logs
        self._clock = clock
        self._ends = LogEnds(logs, clock)
        # Each with an object of its own, to know one that was released, and is wanted again, from the former one.
        self._wanted: dict[TopicPartition, object] = {}
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        # Until when a store that failed is left alone, for how long it was, and why.
        self._failures: dict[TopicPartition, tuple[float, float, Exception]] = {}
        self._changed = asyncio.Event()
        self.held: dict[TopicPartition, F] = {}

    def want(self, sources: Iterable[TopicPartition]) -> None:
        """Set what is followed; what isn't wanted any more is left alone from here on. Does no I/O."""
        wanted = {source: self._wanted.get(source) or object() for source in sources}
        if wanted.keys() != self._wanted.keys():
            for source in self._wanted.keys() - wanted.keys():
                self._ends.forget(source)
                self._failures.pop(source, None)
            self._wanted = wanted
            self.wake()

    async def release(self, sources: Collection[TopicPartition]) -> None:
        """Wait until nothing touches stores any more: from here on they are the caller's."""
        for source in sources:
            self._wanted.pop(source, None)
            self._failures.pop(source, None)
            self.drop(source)
        for source in sources:
            async with self._lock(source):
                pass

    def followed(self, source: TopicPartition) -> F | None:
        """Return a store that is followed."""
        return self.held.get(source) if source in self._wanted else None

    def drop(self, source: TopicPartition) -> None:
        """Follow a store no more until it is opened again."""
        self.held.pop(source, None)
        self._ends.forget(source)

    def drop_all(self) -> None:
        """Open all stores again."""
        for source in list(self.held):
            self.drop(source)
        self.wake()

    def wake(self) -> None:
        """Begin again with the policy's look."""
        self._changed.set()

    def fail(self, source: TopicPartition, error: Exception) -> None:
        """Leave a store alone for a while that gets longer; it is opened again then."""
        pause = self._policy.pause
        _, before_s, _ = self._failures.get(source, (0.0, 0.0, error))
        pause_s = max(pause.longer_s(before_s), pause.first_s)
        # Stores that fail together are opened together: each time all others begin to read again.
        due_s = math.ceil((self._clock.monotonic() + pause_s) / pause.first_s) * pause.first_s
        self._failures[source] = due_s, pause_s, error
        self.drop(source)
        self._policy.failed(error, source, pause_s)

    async def run(self) -> None:
        """Follow until it is cancelled, or the policy raises an error."""
        retry_s = RETRY.first_s
        try:
            while True:
                started_s = self._clock.monotonic()
                try:
                    await self._follow()
                    continue
                except asyncio.CancelledError:
                    if is_cancelled():
                        raise
                except Exception as error:
                    self._policy.failed(error)
                is_new = self._clock.monotonic() - started_s > RETRY.longest_s
                retry_s = RETRY.first_s if is_new else retry_s
                await self._clock.sleep(retry_s)
                retry_s = RETRY.longer_s(retry_s)
        finally:
            await self._ends.stop()

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until something else is wanted, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    @property
    def is_changed(self) -> bool:
        """True while something else is wanted than what is read for now."""
        return self._changed.is_set()

    async def _follow(self) -> None:
        """Follow what is wanted until that changes."""
        self._changed.clear()
        await self._policy.look()
        await self._close_unwanted()
        for source in self._openable():
            await self._open(source)
        await self._look(self.held)
        held = list(self.held.values())
        if not held:
            await self.wait(POLL_S if self._wanted else None)
            return
        following = await self._logs.follow(
            {one.source: one.position.changelog_offset for one in held},
            {one.source.topic: one.position.changelog_id for one in held},
        )
        try:
            await self._read(following)
        finally:
            await following.close()

    async def _read(self, following: Following) -> None:
        looked_s, spent_s = self._clock.monotonic(), 0.0
        while not self.is_changed and not self._openable():
            await self._policy.give_way(spent_s)
            try:
                fetched = await following.poll(POLL_S)
            except (UnreadableLogError, ReplacedLogError) as error:
                self.fail(TopicPartition(*error.source), error)
                return
            began_s = self._clock.monotonic()
            for source, (records, next_offset) in fetched.items():
                store = self.followed(source)
                if store is not None:
                    with self._alone(source):
                        await self._apply(store, records, next_offset)
            now_s = self._clock.monotonic()
            spent_s = now_s - began_s if fetched else 0.0
            is_due = now_s - looked_s >= self._policy.look_pause_s
            await self._look(self.held if is_due else ())
            if is_due:
                looked_s = now_s
                try:
                    await self._policy.look()
                except BrokerUnavailableError as error:
                    self._policy.failed(error)

    async def _apply(self, store: F, records: Sequence[LogRecord], next_offset: int) -> None:
        if store.is_too_old(self._clock.wall_ms()):
            raise NotFollowedError
        writes, newest = stored_writes(records)
        store.move(advance(store.position, newest, next_offset))
        await self._policy.write(store, writes)

    def _missing(self) -> list[TopicPartition]:
        """Return what isn't open and may be opened. Others may write to what isn't free: its log isn't looked at."""
        now_s = self._clock.monotonic()
        return [
            source
            for source in self._wanted
            if source not in self.held
            and self._failures.get(source, (0.0,))[0] <= now_s
            and self._policy.is_free(source)
        ]

    def _openable(self) -> list[TopicPartition]:
        return sorted(source for source in self._missing() if source in self._ends.answers)

    async def _open(self, source: TopicPartition) -> None:
        async with self._lock(source):
            look, wanted = self._ends.answers.pop(source, None), self._wanted.get(source)
            if look is None or wanted is None:
                return
            with self._alone(source):
                *_, failure = self._failures.get(source, (None,))
                store = await self._policy.open_store(source, look, failure)
                store.look(look, self._clock.monotonic())
                if self._wanted.get(source) is wanted:
                    self.held[source] = store

    async def _close_unwanted(self) -> None:
        for source in [source for source in self.held if source not in self._wanted]:
            async with self._lock(source):
                store = self.held.pop(source, None)
                if store is not None and self._policy.is_free(source):
                    with self._alone(source):
                        await self._policy.close_store(store)

    async def _look(self, sources: Iterable[TopicPartition]) -> None:
        """Ask where these logs end, and those to be opened; go on with the answers that came."""
        self._ends.ask((source, self.held[source].position.changelog_offset) for source in sources)
        self._ends.ask((source, 0) for source in self._missing() if source not in self._ends.answers)
        for source in [source for source in self.held if source in self._ends.answers]:
            async with self._lock(source):
                store, look = self.followed(source), self._ends.answers.pop(source, None)
                if store is not None and look is not None:
                    with self._alone(source):
                        await self._looked(store, look)

    async def _looked(self, store: F, look: Look) -> None:
        if store.why_not_followed(look, self._clock.wall_ms()) is not None:
            raise NotFollowedError
        store.look(look, self._clock.monotonic())
        if store.current_ms is not None:
            self._failures.pop(store.source, None)
        await self._policy.looked(store)
        is_unkept = store.mark is None and look.asked_ms - store.kept_ms >= KEEP_AGE_MS
        if is_unkept and self.followed(store.source) is store:
            store.store.apply((), store.position)
            store.kept_ms = look.asked_ms

    @contextlib.contextmanager
    def _alone(self, source: TopicPartition) -> Iterator[None]:
        """Have a store that fails stop nothing but itself."""
        try:
            yield
        except NotFollowedError:
            self.drop(source)
        except _OF_ONE_STORE as error:
            self.fail(source, error)

    def _lock(self, source: TopicPartition) -> asyncio.Lock:
        return self._locks.setdefault(source, asyncio.Lock())
