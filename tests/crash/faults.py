"""The faults, each one a coroutine on the world that ends when what it broke is whole again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from actors.declare.names import worker_transactional_id
from stores.folder import DataFolder
from tests.crash.machine import read_only_disk, run_out_of_memory
from tests.crash.world import NAME, World
from tests.kafka.helpers import WorkerProcess, eventually

logger = logging.getLogger("crash")

SESSION_S = 6.0
STOP_S = 180.0
"""How long a broker may take to hand over what it leads, which is hundreds of partitions in the larger run."""
Fault = Callable[[World], Awaitable[None]]


async def kill_worker(world: World) -> None:
    """`kill -9` of a worker, started again at once or after the group has noticed."""
    worker = world.a_running_one()
    worker.kill()
    await asyncio.sleep(world.chance.choice([0.0, SESSION_S + 1.0]))
    worker.start()


async def kill_all_workers(world: World) -> None:
    """`kill -9` of every worker."""
    victims = world.running
    for worker in victims:
        worker.kill()
    for worker in victims:
        worker.start()


async def zombie(world: World) -> None:
    """A worker is stopped for longer than its session, and wakes up."""
    worker = world.a_running_one()
    worker.signal(signal.SIGSTOP)
    await asyncio.sleep(SESSION_S + 2.0)
    worker.signal(signal.SIGCONT)


async def bounce(world: World) -> None:
    """A clean restart."""
    worker = await _a_started_one(world)
    code = await asyncio.to_thread(worker.terminate)
    assert code == 0, f"SIGTERM ended a worker with {code}: {worker.log()[-2000:]}"
    worker.start()


async def _a_started_one(world: World) -> WorkerProcess:
    """Return a worker that joins or has joined the group: before that, it ignores signals and ends on a full disk."""
    worker = world.a_running_one()
    await eventually(lambda: f"[{worker.pid}] [INFO] (Re-)joining" in worker.log(), what="a worker's start")
    return worker


async def grow_and_shrink(world: World) -> None:
    """1 → 3 → 2 → 3 workers."""
    first, *others = world.workers
    for worker in others:
        await asyncio.to_thread(worker.terminate)
    await asyncio.sleep(2.0)
    for worker in others:
        worker.start()
    await asyncio.sleep(3.0)
    others[0].kill()
    await asyncio.sleep(1.0)
    others[0].start()
    assert first.is_running()


async def kill_broker(world: World) -> None:
    """`kill -9` of a broker, started again."""
    await _kill_broker(world, world.chance.choice(world.cluster.broker_ids))


async def kill_transaction_coordinator(world: World) -> None:
    """`kill -9` of the broker that coordinates a worker's transactions."""
    worker = await _a_started_one(world)
    (data,) = worker.folder.glob("v*/actors")
    transactional_id = worker_transactional_id(NAME, DataFolder.inspect(data).id)
    client = AIOKafkaClient(bootstrap_servers=world.cluster.bootstrap)
    await client.bootstrap()
    node = await client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
    await client.close()
    await _kill_broker(world, node)


async def _kill_broker(world: World, broker: int) -> None:
    await asyncio.to_thread(world.cluster.kill, broker)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(world.cluster.start, broker)


async def kill_brokers_in_turn(world: World) -> None:
    """`kill -9` of one broker after the other, each as soon as the last one answers; two of three must be in sync."""
    brokers = world.cluster.broker_ids
    for broker in world.chance.sample(brokers, len(brokers)):
        await asyncio.to_thread(world.cluster.kill, broker)
        await asyncio.to_thread(world.cluster.start, broker)


async def kill_controller(world: World) -> None:
    """`kill -9` of the active controller, started again when there is another one."""
    former = await eventually(lambda: _controller(world), what="a controller")
    assert isinstance(former, int)
    await asyncio.to_thread(world.cluster.kill, former)
    await eventually(lambda: _controller(world) not in (None, former), what=f"a controller after {former}")
    await asyncio.to_thread(world.cluster.start, former)


def _controller(world: World) -> int | None:
    """Return the broker that is the active controller, None during an election."""
    files = [world.cluster.data_dir(b) / "__cluster_metadata-0" / "quorum-state" for b in world.cluster.broker_ids]
    newest = max((json.loads(file.read_text()) for file in files), key=lambda state: state["leaderEpoch"])
    return newest["leaderId"] if newest["leaderId"] in world.cluster.broker_ids else None


async def roll_brokers(world: World) -> None:
    """A rolling restart of all brokers."""
    for broker in world.cluster.broker_ids:
        await asyncio.to_thread(world.cluster.stop, broker, timeout_s=STOP_S)
        await asyncio.to_thread(world.cluster.start, broker)


async def full_disk(world: World) -> None:
    """A worker's writes to its disk fail for a while: files can't grow."""
    worker = await _a_started_one(world)
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, hard))
    await asyncio.sleep(4.0)
    if worker.is_running():
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def corrupt_sst(world: World) -> None:
    """A worker's RocksDB finds bytes in its files that it didn't write."""
    worker = world.a_running_one()
    worker.kill()
    files = sorted(worker.folder.rglob("*.sst"))
    for path in files:
        _flip(path)
    logger.info("%d sst files of %s were damaged", len(files), worker.folder.parent.name)
    worker.start()


def _flip(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(0, size, max(1, size // 8)):
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0xFF]))
        os.fsync(file.fileno())


async def delete_data(world: World) -> None:
    """A worker comes back without its disk."""
    worker = world.a_running_one()
    worker.kill()
    shutil.rmtree(worker.folder)
    worker.start()


async def reset_offsets(world: World) -> None:
    """An operator sets an offset back; the workers refuse; the operator takes it back."""
    stopped = list(world.workers)
    for worker in stopped:
        await asyncio.to_thread(worker.terminate)
    before = (await world.progress())[TopicPartition(f"{NAME}-in", 0)]
    seen = {worker: len(worker.log()) for worker in stopped}
    if before > 100:
        await _set_offset(world, before - 100)
        for worker in stopped:
            worker.start()
        refusal = "was set by hand or by another program"
        await eventually(lambda: any(refusal in worker.log()[seen[worker] :] for worker in stopped), what=refusal)
        for worker in stopped:
            await asyncio.to_thread(worker.terminate)
        await _set_offset(world, before)
    for worker in stopped:
        # For one start: what an operator sets later has to be refused again.
        worker.start(MOVED_OFFSET="accept")


async def _set_offset(world: World, offset: int) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=world.cluster.bootstrap, group_id=f"{NAME}-actors", enable_auto_commit=False
    )
    await consumer.start()
    part = TopicPartition(f"{NAME}-in", 0)
    consumer.assign([part])

    async def is_taken() -> bool:
        # The group refuses it while a worker that was killed before is a member: until its session is over.
        with contextlib.suppress(CommitFailedError):
            await consumer.commit({part: OffsetAndMetadata(offset, "an operator's")})
            return True
        return False

    await eventually(is_taken, deadline_s=60, what="the group takes an operator's offset")
    await consumer.stop()


FAULTS: tuple[Fault, ...] = (
    kill_worker,
    zombie,
    kill_transaction_coordinator,
    full_disk,
    corrupt_sst,
    delete_data,
    bounce,
    kill_all_workers,
    kill_broker,
    grow_and_shrink,
    reset_offsets,
    roll_brokers,
    kill_brokers_in_turn,
    kill_controller,
    run_out_of_memory,
    read_only_disk,
)
STREAMS: tuple[Fault, ...] = (
    kill_worker,
    zombie,
    delete_data,
    kill_all_workers,
    kill_broker,
    grow_and_shrink,
    roll_brokers,
    kill_brokers_in_turn,
    kill_controller,
)
"""The faults that ask nothing of a worker's log, its files or its exit code."""
QUICK: tuple[Fault, ...] = (kill_worker, full_disk, kill_transaction_coordinator, corrupt_sst)
