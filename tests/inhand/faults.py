"""The faults, each one a coroutine on the world that ends when what it stopped runs again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

from tests.inhand.world import Supervised, World
from tests.kafka.helpers import WorkerProcess, eventually

SESSION_S = 6.0
READY_S = 120.0
Fault = Callable[[World], Awaitable[None]]


async def _a_joined_one(world: World) -> WorkerProcess:
    worker = world.chance.choice([member for member in world.members if member.is_running()])
    await world.joined(worker)
    return worker


async def _all_joined(world: World) -> list[WorkerProcess]:
    running = [worker for worker in world.members if worker.is_running()]
    for worker in running:
        await world.joined(worker)
    return running


async def stop(world: World) -> None:
    """SIGTERM of a worker, started again."""
    worker = await _a_joined_one(world)
    world.mark("stop")
    await world.terminate(worker)
    worker.start()


async def stop_all(world: World) -> None:
    """SIGTERM of every worker, started again on what came meanwhile."""
    running = await _all_joined(world)
    world.mark("stop_all")
    await world.terminate(*running)
    await asyncio.sleep(world.chance.choice([0.0, 2.0]))
    for worker in running:
        worker.start()


async def join_or_leave(world: World) -> None:
    """A further worker joins, or leaves by SIGTERM."""
    if world.spare.is_running():
        await world.joined(world.spare)
        world.mark("join_or_leave")
        await world.terminate(world.spare)
        return
    world.spare.start()
    await world.joined(world.spare)
    world.mark("join_or_leave")


async def roll(world: World) -> None:
    """SIGHUP of a worker with several processes: each is stopped and replaced."""
    (worker,) = (worker for worker in world.workers if isinstance(worker, Supervised))
    await world.joined(worker)
    count = worker.ready_count()
    world.mark("roll")
    worker.signal(signal.SIGHUP)
    await eventually(lambda: worker.ready_count() == count + 2, deadline_s=READY_S, what=worker.log)


async def bounce_broker(world: World) -> None:
    """A restart of the broker."""
    assert world.cluster is not None
    (broker,) = world.cluster.broker_ids
    # A worker that starts without a broker ends.
    await _all_joined(world)
    at_ns = world.mark("bounce_broker")
    await asyncio.to_thread(world.cluster.stop, broker)
    await asyncio.to_thread(world.cluster.start, broker)
    # A commit whose reply is lost may take as long as a session.
    world.excuse(at_ns, "bounce_broker", until_ns=time.monotonic_ns() + int(SESSION_S * 1e9))


async def kill(world: World) -> None:
    """`kill -9` of a worker, started again at once or after the group has noticed."""
    worker = await _a_joined_one(world)
    if isinstance(worker, Supervised):
        number, pid = world.chance.choice(list(worker.pids.items()))
        os.kill(pid, signal.SIGKILL)
        _killed(world, "kill", pid)
        await eventually(lambda: worker.pids[number] != pid, deadline_s=READY_S, what=worker.log)
        return
    worker.kill()
    _killed(world, "kill", worker.pid)
    await asyncio.sleep(world.chance.choice([0.0, SESSION_S + 1.0]))
    worker.start()


async def kill_all(world: World) -> None:
    """`kill -9` of every worker."""
    running = await _all_joined(world)
    pids = [pid for worker in running for pid in _pids(worker)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for worker in running:
        worker.kill()
    _killed(world, "kill_all", *pids)
    for worker in running:
        worker.start()


def _pids(worker: WorkerProcess) -> list[int]:
    return list(worker.pids.values()) if isinstance(worker, Supervised) else [worker.pid]


def _killed(world: World, fault: str, *pids: int) -> None:
    at_ns = world.mark(fault)
    world.excuse(at_ns, fault, until_ns=at_ns, pids=pids)


FAULTS: tuple[Fault, ...] = (stop, stop_all, join_or_leave, roll, bounce_broker, kill, kill_all)
QUICK: tuple[Fault, ...] = (stop_all, join_or_leave, stop)
