"""Asks a worker for keys at a fixed rate; the other half of `benchmarks.queries`.

    python -m benchmarks.queries_asker PORT RATE MANY

Each line of its input is for how many seconds; each line of its output is what came of it, as JSON.
Over 64 connections that stay open. Questions are sent at their time; a connection that still waits is passed over, and
what no connection is free for counts as `late`. It writes bytes and looks for the status only, to leave the processors
to the worker and the broker.
"""

from __future__ import annotations

import asyncio
import base64
import json
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

    async def connect(self) -> None:
        """Wait for the worker's web server."""
        while len(self._free) < CONNECTIONS:
            try:
                self._free.append(await asyncio.open_connection("127.0.0.1", self._port))
            except OSError:
                await asyncio.sleep(0.05)

    async def run(self, rate: float, seconds: float) -> None:
        """Ask for so many seconds."""
        number, asking = 0, set()
        began_s = time.monotonic()
        while (left_s := began_s + seconds - time.monotonic()) > 0:
            number += 1
            await asyncio.sleep(min(left_s, began_s + number / rate - time.monotonic()))
            if self._free:
                task = asyncio.create_task(self._ask(self._requests[number % len(self._requests)]))
                asking.add(task)
                task.add_done_callback(asking.discard)
            else:
                self.statuses["late"] += 1
        if asking:
            await asyncio.wait(asking)

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

    def report(self) -> dict[str, float]:
        """Give what came of the questions since the last report."""
        waits_ms = sorted(1000 * wait_s for wait_s in self.waits_s) or [0.0, 0.0]
        found = {
            **self.statuses,
            "median_ms": round(statistics.median(waits_ms), 2),
            "p99_ms": round(waits_ms[int(len(waits_ms) * 0.99)], 2),
        }
        self.statuses.clear()
        self.waits_s.clear()
        return found


def asked_keys() -> list[bytes]:
    """Give the keys that are asked for."""
    return [key for key, _ in zip((key for key, _ in half_repeats(2 * KEYS)), range(KEYS), strict=False)]


def key_request(key: bytes, headers: str = "") -> bytes:
    """Give the request for a key."""
    path = base64.urlsafe_b64encode(key).rstrip(b"=").decode()
    return f"GET /actors/seen/{path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()


def _batches(size: int, *, is_many: bool) -> list[list[bytes] | bytes]:
    keys = asked_keys()
    if not is_many:
        return list(keys)
    return [keys[start : start + size] for start in range(0, len(keys) - size, size)]


def _request(keys: list[bytes] | bytes) -> bytes:
    if isinstance(keys, bytes):
        return key_request(keys)
    body = json.dumps({"keys": [base64.b64encode(key).decode() for key in keys]})
    head = "POST /actors/seen/_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def _main() -> None:
    port, rate, many = map(int, sys.argv[1:])
    asker = Asker(port, many)
    await asker.connect()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        cpu_s = time.process_time()
        await asker.run(rate, float(line))
        print(json.dumps({**asker.report(), "cpu_s": round(time.process_time() - cpu_s, 3)}), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
