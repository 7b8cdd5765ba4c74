"""A worker under attack, and the main job that runs beside: what is fed, asked and counted."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from benchmarks.peers.broker import load, read_committed
from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, unique

PARTITIONS = 4
READER, ADMIN = "reader-0123456789abcdef", "admin-0123456789abcdef"
CHUNK = 100_000
LARGE = 600_000
"""Bytes of the values that answers would be full of."""
LARGE_KEYS = 12
PARKED = 300
"""Letters of one key that are parked, 30 kB each."""


@dataclass(slots=True)
class World:
    """One run.

    Attributes:
        brokers: the bootstrap list.
        name: the app's id.
        worker: the one that is attacked.
        url: of its web server.
        session: asks it.
        producer: writes to its topics.
        chunk: so many commands are sent at a time, and twice as many wait at most.
        sent: how many commands were fed; the second half of each chunk repeats the first.
        answers: how often each attack got which status, or which error ended it.
        health_s: how long the administrator waited, each time.
    """

    brokers: str
    name: str
    worker: WorkerProcess
    url: str
    session: aiohttp.ClientSession
    producer: AIOKafkaProducer
    chunk: int = CHUNK
    sent: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    health_s: list[float] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def create(cls, brokers: str, folder: Path, *, chunk: int) -> AsyncIterator[World]:
        """Make the topics, start the worker, and wait until it owns everything."""
        name, port = unique("hostile"), free_port()
        await make_topics(brokers, f"{name}-in", f"{name}-out", f"{name}-letters", partitions=PARTITIONS)
        worker = WorkerProcess(
            "tests.hostile.app",
            brokers,
            folder / "worker",
            APP_NAME=name,
            WEB_PORT=str(port),
            READER=READER,
            ADMIN=ADMIN,
        )
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            producing(brokers, max_request_size=1_040_000) as producer,
        ):
            world = cls(brokers, name, worker, f"http://127.0.0.1:{port}", session, producer, chunk)
            worker.start(web=True)
            try:
                await eventually(lambda: worker.log().count(" owns ") >= 2 * PARTITIONS, what=world.log_end)
                await world._write_letters()
                yield world
                assert worker.terminate() == 0, world.log_end()
            finally:
                worker.kill()

    def log_end(self) -> str:
        """The end of the worker's log."""
        return self.worker.log()[-3000:]

    def moves(self) -> int:
        """How often a partition was taken over, and how often the group was told to join again."""
        return len(re.findall(r" owns |Revoking previously|it stands still", self.worker.log()))

    def max_memory_mb(self) -> float:
        """The worker's largest resident memory so far."""
        status = Path(f"/proc/{self.worker.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024

    async def get(self, path: str, token: str = ADMIN, **options: object) -> tuple[int, bytes]:
        """Ask the worker."""
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        async with self.session.get(self.url + path, headers=headers, **options) as reply:
            return reply.status, await reply.read()

    async def post(self, path: str, token: str = ADMIN, **options: object) -> tuple[int, bytes]:
        """Ask the worker by POST."""
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        async with self.session.post(self.url + path, headers=headers, **options) as reply:
            return reply.status, await reply.read()

    async def send(self, topic: str, key: bytes | None, value: bytes | None, **options: object) -> None:
        """Write one record to a topic of the app."""
        await self.producer.send_and_wait(f"{self.name}-{topic}", value, key, **options)

    async def _write_letters(self) -> None:
        text = json.dumps({"text": "x" * LARGE}).encode()
        poison = json.dumps({"poison": True, "text": "y" * 30_000}).encode()
        for number in range(LARGE_KEYS):
            await self.send("letters", b"large-%d" % number, text)
        for _ in range(PARKED):
            await self.send("letters", b"parked", poison)

        async def are_kept() -> bool:
            status, content = await self.get("/actors/texts/_count?exact=true")
            return status == 200 and json.loads(content)["count"] == LARGE_KEYS

        await eventually(are_kept, what=self.log_end)

    # --- the main job ----------------------------------------------------------------------------------------------

    async def feed(self, enough: asyncio.Event) -> None:
        """Keep commands waiting until it is enough: each chunk's second half repeats its first."""
        # No cancellation: aiokafka's `stop` may swallow it, and it would leave a chunk's count wrong.
        while not enough.is_set():
            if self.sent - await self.handled() < 2 * self.chunk:
                await self._send_chunk()
            else:
                await asyncio.sleep(0.1)

    async def _send_chunk(self) -> None:
        first, half = self.sent, self.chunk // 2
        self.sent += self.chunk
        numbers = [*range(first, first + half)] * 2
        records = ((b"command-%09d" % number, b"%0100d" % number) for number in numbers)
        await load(self.brokers, f"{self.name}-in", PARTITIONS, records)

    async def handled(self) -> int:
        """How many records of the main job's input are committed."""
        return sum((await self._committed()).values())

    async def _committed(self) -> dict[int, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers, group_id=f"{self.name}-actors")
        await consumer.start()
        try:
            parts = [TopicPartition(f"{self.name}-in", number) for number in range(PARTITIONS)]
            return {part.partition: await consumer.committed(part) or 0 for part in parts}
        finally:
            await consumer.stop()

    async def rate(self, seconds: float) -> float:
        """Records of the main job per second, over some seconds from now."""
        before, began_s = await self.handled(), time.monotonic()
        await asyncio.sleep(seconds)
        return (await self.handled() - before) / (time.monotonic() - began_s)

    async def wrong_runs(self) -> tuple[int, int]:
        """How many commands never ran, and how many ran twice, once all are handled."""
        found = await read_committed(self.brokers, f"{self.name}-out", patience_s=300)
        assert found is not None, self.log_end()
        runs = Counter(output.key for output in found if output.key.startswith(b"command-"))
        return self.sent // 2 - len(runs), sum(count - 1 for count in runs.values())


def as_base64(raw: bytes) -> str:
    """For keys of any bytes in JSON."""
    return base64.b64encode(raw).decode()
