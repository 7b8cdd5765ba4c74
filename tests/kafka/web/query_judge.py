"""Judges answers about counters while they are counted up.

`committed` follows what the actor sends, read committed: a number that is there was committed. A question may be
answered with any number from what was committed, or answered, before it was asked, up to what was sent before the
answer came.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import aiohttp
from aiokafka import AIOKafkaConsumer

from actors._core.partitioner import partition_for
from tests.kafka.helpers import DEADLINE_S, producing


@dataclass
class Judge:
    """What is known of each key, and what was answered."""

    sent: dict[str, int] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    right: int = 0
    refused: int = 0
    unreached: int = 0
    wrong: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def committed(self, key: str, number: int) -> None:
        """Note that somebody saw this number."""
        self.least[key] = max(self.least.get(key, 0), number)

    async def ask(self, session: aiohttp.ClientSession, url: str, key: str) -> bool:
        """Ask once; tell whether there was an answer, right or wrong."""
        least = self.least.get(key, 0)
        try:
            async with session.get(f"{url}/actors/counts/{key}") as reply:
                content = await reply.json(content_type=None)
        except (aiohttp.ClientConnectionError, TimeoutError):
            self.unreached += 1
            return False
        if reply.status == 503 and int(reply.headers["Retry-After"]) >= 1 and content["detail"]:
            self.refused += 1
            self.reasons.add(content["detail"])
            return False
        number = content["value"] if reply.status == 200 else 0
        is_known = reply.status == 200 or content["type"].endswith(":no-such-key")
        if is_known and least <= number <= self.sent.get(key, 0):
            self.right += 1
            self.committed(key, number)
        else:
            self.wrong.append(
                f"{key} from {url}: {reply.status} {content}, at least {least}, sent {self.sent.get(key)}"
            )
        return True

    async def ask_until_answered(self, session: aiohttp.ClientSession, urls: list[str], key: str) -> None:
        """Ask one worker after the other until one has an answer."""
        deadline_s = time.monotonic() + DEADLINE_S
        turn = hash(key)
        while not await self.ask(session, urls[turn % len(urls)], key):
            assert time.monotonic() < deadline_s, f"no answer for {key}: {self.reasons}"
            turn += 1
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def counting_up(
    brokers: str, name: str, judge: Judge, keys: Iterable[str], *, partitions: int, pause_s: float = 0.02
) -> AsyncIterator[None]:
    """Send messages to all keys in turn, again and again, for the time of the block, and follow what is committed."""

    async def write() -> None:
        async with producing(brokers) as producer:
            while True:
                for key in keys:
                    judge.sent[key] = judge.sent.get(key, 0) + 1
                    raw = key.encode()
                    await producer.send(f"{name}-in", b"count", raw, partition=partition_for(raw, partitions))
                    await asyncio.sleep(pause_s)

    async with following(brokers, name, judge):
        writing = asyncio.create_task(write())
        try:
            yield
            assert not writing.done(), writing
        finally:
            writing.cancel()
            await asyncio.wait([writing])


@contextlib.asynccontextmanager
async def following(brokers: str, name: str, judge: Judge) -> AsyncIterator[None]:
    """Tell the judge of each number that the actor sends, as soon as it can be seen."""
    consumer = AIOKafkaConsumer(
        f"{name}-out",
        bootstrap_servers=brokers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=5,
    )
    await consumer.start()

    async def follow() -> None:
        async for record in consumer:
            judge.committed(record.key.decode(), int(record.value))

    seeing = asyncio.create_task(follow())
    try:
        yield
        assert not seeing.done(), seeing
    finally:
        seeing.cancel()
        await asyncio.wait([seeing])
        await consumer.stop()
