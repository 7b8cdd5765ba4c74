"""The lock service on a real broker: its ready-made app, both clients, an owner that is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.coordination import Coordination, CoordinationError, LeaseLostError, SyncCoordination
from actors.coordination.client.client import CLOSE_S
from tests.kafka.helpers import WorkerProcess, eventually, producing, read_all, unique

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


async def test_what_cannot_be_handled_goes_to_the_dead_letters_and_harms_nobody(brokers: str, service: str) -> None:
    deep = b'{"v":1,"type":"break","x":' + b"[" * 50_000
    sent = [
        (b"printer", b"rubbish"),
        (b"printer", b'{"v":0,"type":"break"}'),
        (b"printer", b'{"v":1,"type":"acquire","owner":"\xff","ttl_ms":5000}'),
        (b"printer", b'{"v":1,"type":"acquire","owner":"z","ttl_ms":-1}'),
        (b"printer", deep),
        (b"printer", None),
        (b"\xff\xfe", b"rubbish"),
        (None, b"rubbish"),
    ]
    async with Coordination(brokers, app=service) as client, client.lock("printer", ttl=60) as lease:
        before = await client.look("printer")
        async with producing(brokers) as producer:
            for key, value in sent:
                partition = None if key == b"printer" else 0
                await producer.send_and_wait(f"{service}-coordination", value, key, partition=partition)
        assert await client.look("printer") == before
        await lease.renew()
        letters: list[tuple[bytes | None, bytes | None]] = []

        async def all_are_there() -> bool:
            found = await read_all(brokers, f"{service}-dead-letters")
            letters[:] = [(record.key, record.value) for record in found]
            return len(letters) >= len(sent)

        await eventually(all_are_there)
        assert sorted(letters, key=repr) == sorted(sent, key=repr)


@pytest.mark.nightly
async def test_a_client_that_is_closed_ends_what_waits_at_once(brokers: str, service: str) -> None:
    async with Coordination(brokers, app=service) as holder, holder.lock("x", ttl=20):
        one = Coordination(brokers, app=service)
        kept = await one.acquire("kept", ttl=3)
        waiting = asyncio.create_task(one.acquire("x", ttl=20, timeout=600))

        async def waits() -> bool:
            return (await holder.look("x")).waiting == 1

        await eventually(waits)
        begin_s = time.monotonic()
        await one.close()
        with pytest.raises(CoordinationError) as caught:
            await waiting
        assert caught.value.reason == "closed"
        assert time.monotonic() - begin_s < CLOSE_S + 1.0
        await asyncio.wait_for(kept.lost.wait(), 10)


@pytest.mark.nightly
async def test_many_watch_something_large_and_nobody_loses_its_lease(brokers: str, service: str) -> None:
    async with Coordination(brokers, app=service) as client, Coordination(brokers, app=service) as other:
        await client.put("n", "small")
        version, seen = (await client.look("n")).version, 0

        async def watch() -> None:
            nonlocal seen
            async for view in client.watch("n", version):
                assert view.data == "d" * 64_000
                seen += 1
                return

        watching = [asyncio.create_task(watch()) for _ in range(300)]
        held = [await other.acquire(f"elsewhere-{number}", ttl=6) for number in range(8)]
        await client.put("n", "d" * 64_000)
        async with asyncio.timeout(60):
            await asyncio.gather(*watching)
        assert seen == len(watching)
        assert all(lease.is_held for lease in held)
        for lease in held:
            await lease.release()


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
