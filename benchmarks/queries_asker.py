"""Asks a worker for keys at a fixed rate until it is told to stop; the other half of `benchmarks.queries`.

    python -m benchmarks.queries_asker PORT RATE MANY

Over 64 connections that stay open. Questions are sent at their time; a connection that still waits is passed over, and
what no connection is free for counts as `late`. It writes bytes and looks for the status only, to leave the processors
to the worker and the broker.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import statistics
import sys
import time
from collections import Counter

from benchmarks.peers.scenarios import half_repeats

CONNECTIONS = 64
KEYS = 5_000


class Asker:
    """The connections and what came of the questions."""

    def __init__(self, port: int, many: int) -> None:
        self._port = port
        self._requests = [_request(keys) for keys in _batches(max(many, 1), is_many=many > 0)]
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.statuses: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.stop = asyncio.Event()

    async def connect(self) -> None:
        """Wait for the worker's web server."""
        while len(self._free) < CONNECTIONS and not self.stop.is_set():
            try:
                self._free.append(await asyncio.open_connection("127.0.0.1", self._port))
            except OSError:
                await asyncio.sleep(0.05)

    async def run(self, rate: float) -> None:
        """Ask until `stop`."""
        loop, number, asking = asyncio.get_running_loop(), 0, set()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        await self.connect()
        began_s = time.monotonic()
        while not self.stop.is_set():
            number += 1
            await asyncio.sleep(began_s + number / rate - time.monotonic())
            if self._free:
                task = asyncio.create_task(self._ask(self._requests[number % len(self._requests)]))
                asking.add(task)
                task.add_done_callback(asking.discard)
            else:
                self.statuses["late"] += 1
        for task in asking:
            task.cancel()

    async def _ask(self, request: bytes) -> None:
        reader, writer = connection = self._free.pop()
        began_s = time.monotonic()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        self.waits_s.append(time.monotonic() - began_s)
        self.statuses[head[9:12].decode()] += 1
        self._free.append(connection)


def _batches(size: int, *, is_many: bool) -> list[list[bytes] | bytes]:
    keys = [key for key, _ in zip((key for key, _ in half_repeats(2 * KEYS)), range(KEYS), strict=False)]
    if not is_many:
        return list(keys)
    return [keys[start : start + size] for start in range(0, len(keys) - size, size)]


def _request(keys: list[bytes] | bytes) -> bytes:
    if isinstance(keys, bytes):
        path = base64.urlsafe_b64encode(keys).rstrip(b"=").decode()
        return f"GET /actors/seen/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    body = json.dumps({"keys": [base64.b64encode(key).decode() for key in keys]})
    head = "POST /actors/seen/_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def _main() -> None:
    port, rate, many = map(int, sys.argv[1:])
    asker = Asker(port, many)
    await asker.run(rate)
    waits_ms = sorted(1000 * wait_s for wait_s in asker.waits_s) or [0.0, 0.0]
    report = {
        **asker.statuses,
        "median_ms": round(statistics.median(waits_ms), 2),
        "p99_ms": round(waits_ms[int(len(waits_ms) * 0.99)], 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(_main())
