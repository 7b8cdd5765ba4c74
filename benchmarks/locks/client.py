"""A process with some of the clients of one system: jobs come as lines of JSON, and what they took goes back so.

All clients of a process share its connection. Leases last 30 s in every system, and are kept up in the background:
ours one per lock, etcd's one per client, ZooKeeper's session one per process.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from actors.coordination import Coordination
from benchmarks.locks.plan import Job, Took

TTL_S = 30
DEADLINE_S = 60.0

Acquire = Callable[[int, str], Awaitable[Any]]
Release = Callable[[Any], Awaitable[Any]]


def main() -> None:
    """Serve one system at one address."""
    system, address = sys.argv[1:]
    if system == "zookeeper":
        serve_zookeeper(address)
        return
    asyncio.run(_serve(ours(address) if system == "ours" else etcd(address)))


async def _serve(opening: contextlib.AbstractAsyncContextManager[tuple[Acquire, Release]]) -> None:
    async with opening as (acquire, release):
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            job = Job(**json.loads(line))
            took = Took([], [])
            await asyncio.gather(*(_use(job, client, took, acquire, release) for client in job.clients))
            print(json.dumps(took), flush=True)


async def _use(job: Job, client: int, took: Took, acquire: Acquire, release: Release) -> None:
    await asyncio.sleep(max(0.0, job.begin_s - time.monotonic()))
    for name in job.turns(client):
        begin_s = time.monotonic()
        lease = await acquire(client, name)
        acquired_s = time.monotonic()
        await release(lease)
        took.note(job, begin_s, acquired_s, time.monotonic())


@contextlib.asynccontextmanager
async def ours(address: str) -> AsyncIterator[tuple[Acquire, Release]]:
    """Connect to the lock service at `brokers/app`."""
    brokers, app = address.split("/")
    async with Coordination(brokers, app=app) as coordination:
        until_s = time.monotonic() + DEADLINE_S
        # A partition whose owner isn't there yet would be measured.
        for number in range(64):
            await asyncio.wait_for(_answered(coordination, f"up-{number}"), until_s - time.monotonic())
        yield (lambda _, name: coordination.acquire(name, TTL_S)), (lambda lease: lease.release())


async def _answered(coordination: Coordination, name: str) -> None:
    while True:
        with contextlib.suppress(Exception):
            await coordination.look(name)
            return
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def etcd(address: str) -> AsyncIterator[tuple[Acquire, Release]]:
    """Connect to etcd's own lock service, through its JSON gateway."""
    leases: dict[int, str] = {}
    async with aiohttp.ClientSession(f"http://{address}") as session:

        async def call(path: str, **body: Any) -> dict[str, Any]:
            async with session.post(path, json=body) as response:
                answer: dict[str, Any] = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"etcd, {path}: {answer}")
                return answer

        async def acquire(client: int, name: str) -> str:
            if client not in leases:
                leases[client] = (await call("/v3/lease/grant", TTL=TTL_S))["ID"]
            raw = base64.b64encode(name.encode()).decode()
            return str((await call("/v3/lock/lock", name=raw, lease=leases[client]))["key"])

        async def release(key: str) -> None:
            await call("/v3/lock/unlock", key=key)

        async def keep() -> None:
            while True:
                await asyncio.sleep(TTL_S / 3)
                for lease in list(leases.values()):
                    await call("/v3/lease/keepalive", ID=lease)

        keeping = asyncio.create_task(keep())
        yield acquire, release
        keeping.cancel()


def serve_zookeeper(address: str) -> None:
    """Use kazoo's lock recipe, in threads, which are what kazoo has."""
    from kazoo.client import KazooClient

    zookeeper = KazooClient(address, timeout=TTL_S)
    zookeeper.start(timeout=DEADLINE_S)
    known: set[str] = set()

    def use(job: Job, client: int, took: Took) -> None:
        time.sleep(max(0.0, job.begin_s - time.monotonic()))
        for name in job.turns(client):
            path = f"/locks/{name}"
            if path not in known:
                zookeeper.ensure_path(path)
                known.add(path)
            begin_s = time.monotonic()
            lock = zookeeper.Lock(path)
            # It is there: the recipe would ask with each new lock.
            lock.assured_path = True
            lock.acquire()
            acquired_s = time.monotonic()
            lock.release()
            took.note(job, begin_s, acquired_s, time.monotonic())

    print("ready", flush=True)
    for line in sys.stdin:
        job, took = Job(**json.loads(line)), Took([], [])
        threads = [threading.Thread(target=use, args=(job, client, took)) for client in job.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps(took), flush=True)
    zookeeper.stop()


if __name__ == "__main__":
    main()
