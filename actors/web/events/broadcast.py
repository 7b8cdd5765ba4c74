"""Follows the changelogs of stores, each once in a worker, for all clients that follow the store or a key of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from actors._core.backoff import Backoff
from actors._core.logs import escaping
from actors._core.values.rows import row_parts
from actors.errors import ActorsError, BrokerUnavailableError, UnknownTopicError, UnresolvedSchemaError
from actors.ports import Clock, LogRecord, TopicFacts, TopicLogs, TopicPartition
from actors.runtime.cancellation import end
from actors.runtime.message.unresolved import resolved
from actors.web.events.followers import EventStream, block_of
from actors.web.events.positions import TAG_CHARACTERS, StreamPosition
from actors.web.problems import Problem
from actors.web.queries.coding import StoreCoding, as_json, encoded
from stores._core.record import METADATA_HEADER, NEVER, expires_at_ms

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.5
IDLE_S = 30.0
"""How long a broadcast goes on without followers."""
MAX_FOLLOWERS = 4_000
"""Of one store, in a worker; no more than a quarter of the files that the process may have open."""
SLICE_RECORDS = 50
"""After so many records followers get their turn."""
SLOW_S = 5.0
"""How long others wait for a follower that gets what it missed."""
MISSED_DELETES = "deletes since this position may be gone from the changelog: read the state again"
OTHER_LOG = "the changelog isn't the one that the position is of: read the state again"


class ChangeEvent(msgspec.Struct, frozen=True):
    """A committed change of a key; `value` is null where it was deleted."""

    key: Any
    value: msgspec.Raw
    deleted: bool
    expires_at_ms: int | None
    partition: int
    offset: int


class Broadcast:
    """Follows one store.

    Args:
        topic: the changelog.
        coding: how its keys and values are written.
        connect: connects to the brokers.
        clock: the app's clock.
        margin_ms: how far clocks may differ.
    """

    def __init__(
        self, topic: str, coding: StoreCoding, connect: Callable[[], Awaitable[TopicLogs]], clock: Clock, margin_ms: int
    ) -> None:
        self._topic = topic
        self._coding = coding
        self._connect = connect
        self._clock = clock
        self._margin_ms = margin_ms
        self._by_key: dict[bytes, set[EventStream]] = {}
        self._of_all: set[EventStream] = set()
        self._behind: list[EventStream] = []
        self._positions: dict[int, int] = {}
        self._logs: TopicLogs | None = None
        self._facts: TopicFacts | None = None
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def followers(self) -> int:
        """How many clients follow."""
        return len(self._of_all) + sum(map(len, self._by_key.values()))

    async def follow(
        self,
        key: bytes | None,
        home: Callable[[int], int | None],
        position: StreamPosition | None,
        take: Callable[[int], None] = lambda _: None,
    ) -> EventStream:
        """Begin to follow.

        Args:
            key: the raw key, None for all of the store.
            home: returns the partition of the key among so many, None if it may be in any.
            position: the point to begin at, None for now.
            take: counts the bytes that wait for the client; may raise `Problem`.

        Raises:
            Problem: there are too many followers, or the position can't be one of this store.
            ActorsError: the changelog can't be read.
        """
        most = min(MAX_FOLLOWERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        if self.followers >= most:
            detail = f"{most} clients follow {self._coding.store.name}: connect to another worker"
            raise Problem(503, "busy", "Too many followers", detail, retry_after_ms=1000)
        logs, facts = await self._opened()
        own = home(facts.partitions)
        numbers = range(facts.partitions) if own is None else (own,)
        offsets, reset = {number: self._positions[number] for number in numbers}, ""
        if position is not None:
            if not position.offsets.keys() <= set(numbers):
                wanted = ", ".join(map(str, numbers))
                detail = f"the position names partitions other than {wanted}, which has what is followed"
                raise Problem(400, "bad-position", "The request can't be understood", detail)
            reset = await self._why_lost(logs, facts, position)
        now_s = lambda: self._clock.wall_ms() / 1000  # noqa: E731
        # Nothing is awaited from here on: no record comes in between.
        tag = facts.topic_id[-TAG_CHARACTERS:]
        offsets = {number: self._positions[number] for number in numbers}
        follower = EventStream(key, offsets, tag=tag, clock_s=now_s, take=take, reset=reset)
        if position is not None and not reset:
            follower.ends = {n: offsets[n] for n, offset in position.offsets.items() if offset < offsets[n]}
            offsets |= position.offsets
        (self._of_all if key is None else self._by_key.setdefault(key, set())).add(follower)
        if follower.ends:
            self._behind.append(follower)
            if self._catching_up is None or self._catching_up.done():
                self._catching_up = asyncio.create_task(self._catch_up(logs, facts), name=f"catch-up of {self._topic}")
        return follower

    def leave(self, follower: EventStream) -> None:
        """Stop following. May be called twice."""
        follower.end("closed", "")
        self._of_all.discard(follower)
        if follower.key is not None and (those := self._by_key.get(follower.key)) is not None:
            those.discard(follower)
            if not those:
                del self._by_key[follower.key]

    async def close(self, kind: str = "closed", reason: str = "the worker stops: connect to another one") -> None:
        """End all streams. May be called twice; the next follower opens it again."""
        for follower in self._all():
            follower.end(kind, reason)
        reading, self._reading = self._reading, None
        catching_up, self._catching_up = self._catching_up, None
        await end(*(task for task in (reading, catching_up) if task is not asyncio.current_task()))
        logs, self._logs = self._logs, None
        if logs is not None:
            await logs.close()

    async def _opened(self) -> tuple[TopicLogs, TopicFacts]:
        async with self._opening:
            if self._reading is not None and self._reading.done():
                await self.close()
            if self._logs is None or self._facts is None or self._reading is None:
                logs = await self._connect()
                try:
                    facts = _there(await logs.facts(self._topic), self._topic)
                    sources = [TopicPartition(self._topic, number) for number in range(facts.partitions)]
                    self._positions = {source.partition: await _stable_end(logs, source) for source in sources}
                except BaseException:
                    await logs.close()
                    raise
                self._logs, self._facts = logs, facts
                self._reading = asyncio.create_task(self._read(logs, facts), name=f"broadcast of {self._topic}")
            return self._logs, self._facts

    async def _why_lost(self, logs: TopicLogs, facts: TopicFacts, position: StreamPosition) -> str:
        """Return why changes after a position may be gone, "" if they are there."""
        if position.tag and position.tag != facts.topic_id[-TAG_CHARACTERS:]:
            return OTHER_LOG
        age_ms = self._clock.wall_ms() - position.at_s * 1000
        if position.at_s and age_ms > facts.delete_retention_ms - self._margin_ms:
            return MISSED_DELETES
        for number, offset in position.offsets.items():
            if offset != self._positions[number]:
                bounds = await logs.bounds(TopicPartition(self._topic, number))
                if not bounds.start <= offset <= bounds.end:
                    return OTHER_LOG
        return ""

    async def _read(self, logs: TopicLogs, facts: TopicFacts) -> None:
        """Deliver what is committed until nobody follows any more, or the log is another one."""
        pause, failures, idle_s = Backoff(), 0, self._clock.monotonic()
        try:
            while True:
                try:
                    await self._follow_on(logs, facts, idle_s)
                    break
                except BrokerUnavailableError as error:
                    failures += 1
                    logger.warning("the broadcast of %s: %s; it is tried again", self._topic, error)
                    await self._clock.sleep(pause.delay_s(min(failures, 10)))
        except ActorsError as error:
            # The log was made again, or lost records: a new broadcast begins with the next follower.
            logger.warning("the broadcast of %s ends: %s", self._topic, error)
        finally:
            # After any error: nobody is to wait for events that don't come.
            for follower in self._all():
                follower.end("cut", "the changelog can't be read any further: connect again")

    async def _follow_on(self, logs: TopicLogs, facts: TopicFacts, idle_s: float) -> None:
        topic_ids = {self._topic: facts.topic_id}
        positions = {TopicPartition(self._topic, number): offset for number, offset in self._positions.items()}
        following = await logs.follow(positions, topic_ids)
        try:
            while True:
                for source, (records, reached) in (await following.poll(POLL_S)).items():
                    await self._deliver(source.partition, records, reached)
                if self.followers:
                    idle_s = self._clock.monotonic()
                elif self._clock.monotonic() - idle_s > IDLE_S:
                    return
        finally:
            await following.close()

    async def _deliver(self, partition: int, records: Sequence[LogRecord], reached: int) -> None:
        for number, record in enumerate(records, 1):
            if record.offset < self._positions[partition]:
                continue
            followers = self._followers_of(record)
            if followers:
                event, next_offset = await self._event(partition, record), record.offset + 1
                for follower in followers:
                    follower.put(partition, next_offset, event)
            self._positions[partition] = record.offset + 1
            if number % SLICE_RECORDS == 0:
                await asyncio.sleep(0)
        self._positions[partition] = reached
        for follower in self._all():
            if partition in follower.offsets:
                follower.moved(partition, reached)

    async def _catch_up(self, logs: TopicLogs, facts: TopicFacts) -> None:
        """Read what followers missed, of each partition once for all that wait."""
        while self._behind:
            group, self._behind = self._behind, []
            try:
                for number in sorted({number for follower in group for number in follower.ends}):
                    those = [follower for follower in group if number in follower.ends]
                    await self._replay(logs, facts, number, those)
            except ActorsError as error:
                logger.warning("the broadcast of %s: what followers missed can't be read: %s", self._topic, error)
                for follower in group:
                    follower.end("cut", "what was missed can't be read now: connect again")
            for follower in group:
                follower.caught_up()

    async def _replay(self, logs: TopicLogs, facts: TopicFacts, number: int, followers: Sequence[EventStream]) -> None:
        start = min(follower.offsets[number] for follower in followers)
        stop = max(follower.ends[number] for follower in followers)
        by_key: dict[bytes | None, list[EventStream]] = {}
        for follower in followers:
            by_key.setdefault(follower.key, []).append(follower)
        of_all = by_key.get(None, [])
        source = TopicPartition(self._topic, number)
        async for records, _ in logs.read(source, start, stop, facts.topic_id):
            for record in records:
                key = self._key_of(record)
                those = [] if key is None else [*by_key.get(key, ()), *of_all]
                those = [follower for follower in those if record.offset < follower.ends[number]]
                if those:
                    event = await self._event(number, record)
                    for follower in those:
                        follower.put_missed(number, record.offset + 1, event)
            for follower in followers:
                await follower.has_room(SLOW_S)

    def _followers_of(self, record: LogRecord) -> list[EventStream]:
        key = self._key_of(record)
        return [] if key is None else [*self._by_key.get(key, ()), *self._of_all]

    def _key_of(self, record: LogRecord) -> bytes | None:
        """Return the key whose followers get a record, of a row the one that it is below; None if nobody gets it."""
        raw, store = record.key, self._coding.store
        if raw is None or store.below is None:
            return raw
        # A key's span says how many rows there are, and is no row.
        return store.home_key(raw) if row_parts(raw)[1] is not None else None

    def _all(self) -> list[EventStream]:
        return [*self._of_all, *itertools.chain.from_iterable(self._by_key.values())]

    async def _event(self, partition: int, record: LogRecord) -> bytes:
        """Return the event of a record, the same for all followers."""
        try:
            return self._event_now(partition, record)
        except UnresolvedSchemaError:
            event: bytes = await resolved(lambda: self._event_now(partition, record))
            return event

    def _event_now(self, partition: int, record: LogRecord) -> bytes:
        raw, value = record.value, msgspec.Raw(b"null")
        if raw is not None:
            try:
                value = as_json(self._coding.plain_value(raw, is_raw=False))
            except Problem:
                value = as_json({"base64": encoded(raw)})
        expiry = _expiry(record.headers) if raw is not None else None
        key = self._coding.plain_key(record.key or b"")
        change = ChangeEvent(key, value, raw is None, expiry, partition, record.offset)
        return block_of("change", bytes(as_json(change)))


def _there(facts: TopicFacts | None, topic: str) -> TopicFacts:
    if facts is None:
        raise UnknownTopicError(f"topic {topic} is missing: a worker makes it at its start")
    return facts


async def _stable_end(logs: TopicLogs, source: TopicPartition) -> int:
    """Return the offset before which nothing can become visible any more."""
    stop = (await logs.bounds(source)).end
    open_records = await logs.open_records(source)
    return min([stop, *(record.offset for record in open_records or ())])


def _expiry(headers: Iterable[tuple[str, bytes]]) -> int | None:
    for name, metadata in headers:
        if name == METADATA_HEADER:
            with suppress(ValueError, IndexError):
                return None if expires_at_ms(metadata) == NEVER else expires_at_ms(metadata)
    return None
