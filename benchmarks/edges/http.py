"""Messages by HTTP: how many one worker takes in a second, and whether each counts once while workers are killed.

Clients keep their connections, and send the next message when the last one is answered. A message that got no answer is
sent again with its Idempotency-Key. Broker, workers and clients share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from actors.client import StateClient
from benchmarks.peers.broker import load, make_topics, start_cluster
from benchmarks.peers.worker import cpu_s
from benchmarks.run_commands import ROOT
from dev.kafka import free_port

TOKEN = "writer-0123456789-abcd"
PARTITIONS = 4
CONNECTIONS = 64
SECONDS, WARM_UP_S = 10.0, 5.0
KILLS = 3
FOLLOWERS, VISITS, ROUNDS = 1_000, 200_000, 3
STREAM_LIMIT = 1 << 20


@dataclass
class Workers:
    """The workers of the app."""

    brokers: str
    folder: Path
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> int:
        """Start a worker; give its port."""
        port = free_port()
        environment = {**os.environ, "KAFKA_URL": f"kafka://{self.brokers}", "WEB_PORT": str(port)}
        command = [sys.executable, "-m", "faust", "-A", "benchmarks.edges.http_app", "-D", str(self.folder / str(port))]
        with (self.folder / f"{port}.log").open("wb") as log:
            self.running[port] = subprocess.Popen(
                [*command, "worker", "--with-web"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        return port

    def kill(self, port: int) -> None:
        """`kill -9`."""
        worker = self.running.pop(port)
        worker.kill()
        worker.wait()

    def end(self) -> None:
        """End all."""
        for worker in self.running.values():
            worker.terminate()
        for worker in self.running.values():
            worker.wait(30)
        self.running = {}


class Client:
    """Sends messages over connections of its own.

    Attributes:
        answers: how many were answered.
        sent: the numbers of all of them.
    """

    def __init__(self, ports: list[int], numbers: Iterator[int], *, wait_s: int) -> None:
        self._ports = ports
        self._numbers = numbers
        self._wait = f"Prefer: wait={wait_s}\r\n" if wait_s else ""
        self.answers = 0
        self.sent: list[int] = []

    async def run(self, until_s: float) -> None:
        """Send messages over all connections until then; each that was begun is answered."""
        await asyncio.gather(*(self._connection(number, until_s) for number in range(CONNECTIONS)))

    async def _connection(self, place: int, until_s: float) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while time.monotonic() < until_s:
            number = next(self._numbers)
            self.sent.append(number)
            body = b'{"number":%d}' % number
            head = (
                f"POST /actors/Number/n{number}/add HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
                f"Idempotency-Key: k{number}\r\n{self._wait}Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            request, tries = head.encode() + body, 0
            while True:
                try:
                    if streams is None:
                        port = self._ports[(place + tries) % len(self._ports)]
                        streams = await asyncio.open_connection("127.0.0.1", port)
                    async with asyncio.timeout(40):
                        status = await _answer(streams, request)
                except (OSError, asyncio.IncompleteReadError, TimeoutError):
                    status, streams = 0, None
                if status in (200, 202):
                    self.answers += 1
                    break
                if status not in (0, 503):
                    raise click.ClickException(f"number {number} got {status}")
                tries += 1
                await asyncio.sleep(0.1)


async def _answer(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> int:
    reader, writer = streams
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length or b"0"))
    return int(head[9:12])


def measure() -> dict[str, Any]:
    """Return the figures."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with start_cluster(folder) as cluster:
            workers = Workers(cluster.bootstrap, folder)
            try:
                return asyncio.run(_measure(workers))
            finally:
                workers.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _measure(workers: Workers) -> dict[str, Any]:
    await make_topics(workers.brokers, "edge-in", "edge-visits", partitions=PARTITIONS)
    ports, numbers = [workers.start()], itertools.count()
    await _is_up(ports[0])
    warm = Client(ports, numbers, wait_s=0)
    await warm.run(time.monotonic() + WARM_UP_S)
    clients, rates = [warm], {}
    for name, wait_s in (("tells_per_s", 0), ("asks_per_s", 30)):
        client, began_s = Client(ports, numbers, wait_s=wait_s), time.monotonic()
        await client.run(began_s + SECONDS)
        rates[name] = round(client.answers / (time.monotonic() - began_s))
        clients.append(client)
        click.echo(f"{name}: {rates[name]}", err=True)
    followers = await _cost_of_followers(workers, ports[0])
    clients += await _kill_workers(workers, ports, numbers)
    sent = {number for client in clients for number in client.sent}
    lost, doubled = await _judge(ports, sent)
    return {**rates, "messages": len(sent), "kills": KILLS, "lost": lost, "doubled": doubled, **followers}


async def _is_up(port: int) -> None:
    """Wait until the worker answers."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)


async def _kill_workers(workers: Workers, ports: list[int], numbers: Iterator[int]) -> list[Client]:
    """Send messages to two workers of which one is killed again and again."""
    ports.append(workers.start())
    await _is_up(ports[-1])
    clients = [Client(ports, numbers, wait_s=wait_s) for wait_s in (0, 30)]
    until_s = time.monotonic() + 8.0 * KILLS

    async def kill() -> None:
        for _ in range(KILLS):
            await asyncio.sleep(4.0)
            workers.kill(ports[0])
            ports.append(workers.start())
            del ports[0]
            await asyncio.sleep(4.0)

    await asyncio.gather(kill(), *(client.run(until_s) for client in clients))
    return clients


async def _judge(ports: list[int], sent: set[int]) -> tuple[int, int]:
    """Return how many messages weren't counted, and how often one was counted again."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    async with StateClient(urls, token=TOKEN) as state:
        deadline_s = time.monotonic() + 60
        while True:
            counts = {key: value["count"] async for key, value in state.range("Number")}
            lost = len({f"n{number}" for number in sent} - counts.keys())
            if not lost or time.monotonic() > deadline_s:
                return lost, sum(count - 1 for count in counts.values())
            await asyncio.sleep(1.0)


async def _cost_of_followers(workers: Workers, port: int) -> dict[str, Any]:
    """Return the main job's records/s and CPU seconds with followers, relative to those without."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    total, events = 0, 0
    for number in range(2 * ROUNDS):
        is_followed = number % 2 == 1
        streams = [await _follow(port, f"v{key}") for key in range(FOLLOWERS)] if is_followed else []
        reading = [asyncio.create_task(_count(reader)) for reader, _ in streams]
        worker, began_s, began_cpu_s = workers.running[port], time.monotonic(), 0.0
        began_cpu_s = cpu_s(worker.pid)
        records = ((b"v%d" % (n % 50_000), b"1") for n in range(VISITS))
        total += await load(workers.brokers, "edge-visits", PARTITIONS, records)
        await _visited(port, total)
        rates[is_followed].append(VISITS / (time.monotonic() - began_s))
        costs[is_followed].append(cpu_s(worker.pid) - began_cpu_s)
        await asyncio.sleep(1.0)
        for _, writer in streams:
            writer.close()
        events += sum(await asyncio.gather(*reading))
    rate, cost = (statistics.median(kind[True]) / statistics.median(kind[False]) for kind in (rates, costs))
    click.echo(f"with {FOLLOWERS} followers: {rate:.3f} of the records/s, {cost:.3f} of the CPU", err=True)
    figures = {"followers": FOLLOWERS, "events": events, "rate_with_followers": round(rate, 3)}
    return {**figures, "cpu_with_followers": round(cost, 3)}


async def _follow(port: int, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=STREAM_LIMIT)
    head = f"GET /stores/visits/{key}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise click.ClickException(f"a follower got {answer[:100]!r}")
    return reader, writer


async def _count(reader: asyncio.StreamReader) -> int:
    count = 0
    with contextlib.suppress(OSError):
        while chunk := await reader.read(STREAM_LIMIT):
            count += chunk.count(b"event: change")
    return count


async def _visited(port: int, total: int) -> None:
    """Wait until so many visits are committed."""
    deadline_s = time.monotonic() + 120
    async with StateClient(f"http://127.0.0.1:{port}", token=TOKEN) as state:
        while True:
            handled = [await _offset(state, partition) for partition in range(PARTITIONS)]
            if sum(handled) >= total:
                return
            if time.monotonic() > deadline_s:
                raise click.ClickException(f"{sum(handled)} of {total} visits were handled")
            await asyncio.sleep(0.1)


async def _offset(state: StateClient, partition: int) -> int:
    """Return the next offset that the main job handles in a partition."""
    _, content = await state._ask("GET", f"/actors/visits?limit=1&partition={partition}", store="visits")
    positions: dict[str, Any] = json.loads(json.dumps(content["positions"]))
    return int(positions[str(partition)]["source_offset"])
