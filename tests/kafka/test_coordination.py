"""The lock service on a real broker: its ready-made app, both clients, an owner that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.coordination import Coordination, CoordinationError, LeaseLostError, SyncCoordination
from actors.coordination.service import PARTITIONS
from tests.kafka.helpers import WorkerProcess, send, unique

MODULE = "actors.coordination.app"


@pytest.fixture
async def service(brokers: str, workers: list, tmp_path: Path) -> AsyncIterator[str]:
    name = unique("locks")
    workers.append(WorkerProcess(MODULE, brokers, tmp_path / "one", COORDINATION_APP=name).start())
    async with Coordination(brokers, app=name, call_timeout=60) as client:
        await wait_until_up(client)
        yield name


async def wait_until_up(client: Coordination) -> None:
    for _ in range(60):
        try:
            await client.look("anything")
        except Exception:
            await asyncio.sleep(1)
        else:
            return
    raise AssertionError("the service doesn't answer")


async def test_locks_over_a_kill_of_the_owner(brokers: str, service: str, workers: list, tmp_path: Path) -> None:
    async with Coordination(brokers, app=service) as one, Coordination(brokers, app=service) as two:
        async with one.lock("printer", ttl=40) as lease:
            assert await two.try_lock("printer") is None
            waiting = asyncio.create_task(two.acquire("printer", ttl=5))
            await asyncio.sleep(1)
            workers[0].kill()
            workers.append(WorkerProcess(MODULE, brokers, tmp_path / "two", COORDINATION_APP=service).start())
            # The renewal is answered by the next owner, from the changelog.
            await lease.renew()
            assert lease.is_held
            assert not waiting.done()
        second = await asyncio.wait_for(waiting, 60)
        assert second.token > lease.token
        await second.release()

        seen = []
        for _ in range(20):
            async with one.lock("speed", ttl=5) as lease:
                seen.append(lease.token)
        assert seen == sorted(set(seen))
        # What nobody understands harms nobody.
        await send(brokers, f"{service}-coordination", [(b"printer", b"rubbish")], partitions=PARTITIONS)
        assert (await one.look("printer")).holders == ()


async def test_the_synchronous_client(brokers: str, service: str) -> None:
    def lose(client: SyncCoordination, other: SyncCoordination) -> None:
        with client.lock("sync", ttl=3) as lease:
            other.run(other.client.break_lock("sync"))
            assert lease.wait_lost(10)

    def work() -> None:
        with SyncCoordination(brokers, app=service) as client, SyncCoordination(brokers, app=service) as other:
            with client.lock("sync", ttl=10) as lease:
                assert lease.is_held
                assert other.try_lock("sync") is None
                assert client.put("node", "a", version=0) == 1
            assert client.get("node") == ("a", 1)
            with pytest.raises(LeaseLostError):
                lose(client, other)
            with pytest.raises(CoordinationError):
                client.lock("sync", ttl=0.1).__enter__()
            client.close()

    await asyncio.to_thread(work)
