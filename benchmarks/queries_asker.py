"""Asks a worker for keys at a fixed rate; the other half of `benchmarks.queries`.

    python -m benchmarks.queries_asker PORT RATE MANY

Each line of its input is for how many seconds; each line of its output is what came of it, as JSON.
Over 64 connections that stay open. Questions are sent at their time; a connection that still waits is passed over, and
what no connection is free for counts as `late`. It writes bytes to sockets and looks for the status only, to leave the
processors to the worker and the broker.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import statistics
import sys
import time
from collections import Counter

from benchmarks.peers.scenarios import half_repeats

CONNECTIONS = 64
KEYS = 5_000
DEADLINE_S = 60.0


class Connection:
    """A connection that stays open, with one question at a time.

    Attributes:
        socket: where it is written to and read from.
    """

    def __init__(self, port: int) -> None:
        self.socket = _connected(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._came = b""
        self._began_s = 0.0

    def ask(self, request: bytes) -> None:
        """Send a question."""
        self._began_s = time.monotonic()
        self.socket.sendall(request)

    def read(self) -> tuple[str, float] | None:
        """Take what came; give the status and the seconds since the question if that is all."""
        came = self._came + self.socket.recv(1 << 20)
        if not came:
            raise RuntimeError("the worker hung up")
        head, end, body = came.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._came = came
            return None
        self._came = b""
        return head[9:12].decode(), time.monotonic() - self._began_s


def _connected(port: int) -> socket.socket:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


class Asker:
    """The connections and what came of the questions."""

    def __init__(self, port: int, many: int) -> None:
        self._requests = [_request(keys) for keys in _batches(max(many, 1), is_many=many > 0)]
        self._poll = select.epoll()
        self._connections = {one.socket.fileno(): one for one in (Connection(port) for _ in range(CONNECTIONS))}
        for number in self._connections:
            self._poll.register(number, select.EPOLLIN)
        self._free = list(self._connections.values())
        self.statuses: Counter[str] = Counter()
        self.waits_s: list[float] = []

    def run(self, rate: float, seconds: float) -> None:
        """Ask for so many seconds, and wait for the last answers."""
        number = 1
        began_s = time.monotonic()
        while number <= rate * seconds or len(self._free) < CONNECTIONS:
            is_over = number > rate * seconds
            left_s = DEADLINE_S if is_over else began_s + number / rate - time.monotonic()
            if left_s > 0:
                self._take(left_s)
                continue
            number += 1
            if self._free:
                self._free.pop().ask(self._requests[number % len(self._requests)])
            else:
                self.statuses["late"] += 1

    def _take(self, timeout_s: float) -> None:
        for number, _ in self._poll.poll(timeout_s):
            connection = self._connections[number]
            answer = connection.read()
            if answer is not None:
                self.statuses[answer[0]] += 1
                self.waits_s.append(answer[1])
                self._free.append(connection)

    def report(self) -> dict[str, float]:
        """Return what came of the questions since the last report."""
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
    """Return the keys that are asked for."""
    return [key for key, _ in zip((key for key, _ in half_repeats(2 * KEYS)), range(KEYS), strict=False)]


def key_request(key: bytes, headers: str = "") -> bytes:
    """Return the request for a key."""
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


def _main() -> None:
    port, rate, many = map(int, sys.argv[1:])
    asker = Asker(port, many)
    for line in sys.stdin:
        cpu_s = time.process_time()
        asker.run(rate, float(line))
        print(json.dumps({**asker.report(), "cpu_s": round(time.process_time() - cpu_s, 3)}), flush=True)


if __name__ == "__main__":
    _main()
