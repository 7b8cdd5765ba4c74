"""What one question for a key costs a worker's processor, measured without a broker.

The worker's real web server, routes, lease, tasks and RocksDB stores in this process; the tasks were put where they
are between two commits. A second process asks over raw sockets that stay open, several questions at a time. What
counts is this process's CPU time, in user and kernel. `waiting`: a commit is under way, and each question waits for
its end. `plain`: a route beside ours that gives as many bytes, by aiohttp's router and in a task of its own.

    python -m benchmarks.queries_cost
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from aiohttp import web

from actors import App, Context
from actors._core.group.members import TaskId
from actors._core.partitioner import partition_for
from actors._core.task.lifecycle import State
from actors.ports import Identity
from actors.runtime.clock import SystemClock
from actors.runtime.committer import Membership
from actors.runtime.meters import WorkerMeters
from actors.runtime.queries.queries import StateReader
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.spec import ActorSpec, InputSpec
from actors.runtime.state.restore import Restored
from actors.runtime.task.task import Task
from actors.web.access.tls import Hops
from actors.web.queries.routing import Directory, Router
from actors.web.workers import WorkerClient
from benchmarks.queries_asker import asked_keys, key_request
from dev.kafka import free_port
from stores._core.record import Position, encode_metadata
from stores.rocks import RocksStore

PARTITIONS = 4
ME = Identity("worker", 1)
HEADERS = "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.11 aiohttp/3.14.5\r\n"
"""What a client's library writes beside the Host."""
WARM_UP = 500
WAITING, COMMIT_S = 64, 0.01
"""So many questions at a time wait for commits that take so long."""


class Service:
    """Stands where `ActorService` is, with what queries need of a running worker."""

    def __init__(self, app: App, folder: Path) -> None:
        (definition,) = app.actors.values()
        self.spec = ActorSpec(
            name=definition.name,
            inputs=(InputSpec("bench-input", definition.handler, bytes, bytes),),
            partition_count=PARTITIONS,
            stores=definition.stores,
            changelogs={},
        )
        self.actors = {self.spec.name: self.spec}
        self.stores = {store.name: self.spec for store in self.spec.stores}
        self.worker, self.address = "w", ""
        self.meters = WorkerMeters()
        self._tasks = {TaskId(self.spec.name, number): self._task(number, folder) for number in range(PARTITIONS)}
        lease = ReadLease(_confirms, lasts_s=10.0, renew_s=1.0)
        self.router = Router(
            StateReader(self._tasks.get, lease, SystemClock()), Directory(_owners, self.worker), WorkerClient(Hops())
        )

    def _task(self, number: int, folder: Path) -> Task:
        settings: Any = type("Settings", (), {"queue_records": 1})
        nothing: Any = None
        task = Task(self.spec, number, member=Membership(ME), log=nothing, services=nothing, settings=settings)
        store = RocksStore.open(folder / str(number))
        position = Position(100_000, 200_000, 1_700_000_000_000, 7, "0123456789abcdef")
        metadata = encode_metadata(7, 99_999)
        mine = [key for key in asked_keys() if partition_for(key, PARTITIONS) == number]
        store.apply([(key, metadata + b"%0100d" % len(key)) for key in mine], position)
        processor: Any = type("TaskProcessor", (), {"now_ms": 1_700_000_000_000})
        task.context.state, task._processor = State.RUNNING, processor
        task._stores = [Restored(store, position, is_empty=False)]
        return task

    async def commit(self) -> None:
        """Have all questions wait for a commit's end: one commit follows on the other."""
        owned = [task.context for task in self._tasks.values()]
        for context in owned:
            context.state = State.COMMITTING
        try:
            while True:
                await asyncio.sleep(COMMIT_S)
                for context in owned:
                    context._wake()
        finally:
            for context in owned:
                context.state = State.RUNNING
                context._wake()


async def _confirms(_: Identity) -> bool:
    return True


async def _owners() -> list[Any]:
    return []


def _app(port: int) -> App:
    app = App("cost", broker="kafka://127.0.0.1:1", web_port=port)
    seen = app.store("seen", key_type=bytes, value_type=bytes)

    @app.actor(app.topic("bench-input", key_type=bytes, value_type=bytes), stores=[seen])
    async def run_once(ctx: Context, command: bytes) -> None: ...

    return app


async def _plain(_: web.Request) -> web.Response:
    return web.Response(body=b"x" * 450, content_type="application/json")


async def _measure(rounds: int, requests: int, at_once: list[int]) -> dict[str, list[float]]:
    folder, port = Path(tempfile.mkdtemp(prefix="bench-")), free_port()
    app = _app(port)
    service: Any = Service(app, folder)
    app._actor_service = app.extensions["web"].queries = service
    server = app.web
    server.init_server()
    server.web_app.router.add_get("/plain", _plain)
    await server.start_server()
    found: dict[str, list[float]] = {}
    try:
        kinds = [("key", width) for width in at_once] + [("waiting", WAITING)] + [("plain", width) for width in at_once]
        # As a worker does when it has started.
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        for _ in range(rounds):
            for what, width in kinds:
                commits = asyncio.create_task(service.commit()) if what == "waiting" else None
                cost_us = await _ask(port, what, requests, width)
                found.setdefault(f"{what}, {width} at a time", []).append(round(cost_us, 1))
                if commits is not None:
                    commits.cancel()
                    await asyncio.wait([commits])
    finally:
        await server.stop_server()
        shutil.rmtree(folder, ignore_errors=True)
    return found


async def _ask(port: int, what: str, requests: int, width: int) -> float:
    """Return the CPU time of a request in µs."""
    asker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.queries_cost", "--ask", str(port)),
        *("--what", what, "--requests", str(requests), "--at-once", str(width)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert asker.stdin is not None
    assert asker.stdout is not None
    await asker.stdout.readline()
    began_s = time.process_time()
    asker.stdin.write(b"\n")
    await asker.stdout.readline()
    took_s = time.process_time() - began_s
    asker.stdin.close()
    if await asker.wait():
        raise RuntimeError("the asker failed")
    return took_s / requests * 1e6


def _asker(port: int, what: str, requests: int, width: int) -> None:
    """Ask over `width` connections, all at once and then for all answers, again and again."""
    if what == "plain":
        asked = [f"GET /plain HTTP/1.1\r\nHost: localhost\r\n{HEADERS}\r\n".encode()]
    else:
        asked = [key_request(key, HEADERS) for key in asked_keys()]
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(width)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for stage in (WARM_UP, requests):
        for number in range(0, stage, width):
            for place, connection in enumerate(connections):
                connection.sendall(asked[(number + place) % len(asked)])
            for connection in connections:
                reply = connection.recv(65536)
                if not reply.startswith(b"HTTP/1.1 200 ") or not reply.endswith((b"}", b"x")):
                    raise RuntimeError(f"not an answer: {reply!r}")
        print(flush=True)
        sys.stdin.readline()


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--requests", default=4_000, show_default=True, help="Per round.")
@click.option("--at-once", default=(1, 8), show_default=True, multiple=True, help="Questions at a time.")
@click.option("--ask", "port", type=int, hidden=True)
@click.option("--what", hidden=True)
def main(rounds: int, requests: int, at_once: tuple[int, ...], port: int | None, what: str) -> None:
    """Measure the CPU time of a question in µs."""
    if port is not None:
        _asker(port, what, requests, at_once[0])
        return
    found = asyncio.run(_measure(rounds, requests, list(at_once)))
    for name, costs_us in found.items():
        click.echo(f"{name}: {json.dumps(costs_us)}, median {statistics.median(costs_us)} µs", err=True)
    click.echo(json.dumps({name: statistics.median(costs_us) for name, costs_us in found.items()}))


if __name__ == "__main__":
    main()
