"""How the assignment grows: 1,000 partitions on 200 workers, as a function and through a real group.

    python -m benchmarks.scaling

The table times the pure function for shapes of 1,000 tasks. The last line is from a real group: as many members as
asked for on a local broker, all in this process, and how long it takes until everybody owns something again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from actors._core.group.assign import assign
from actors._core.group.members import Member, TaskId, encode_member_data
from actors._kafka.consume.assignor import ActorAssignor
from benchmarks.peers.broker import start_cluster

SHAPES = ((1, 1000), (10, 100), (100, 10), (333, 3), (1000, 1))
ADDRESS = "http://10.0.0.1:6066"
DEADLINE_S = 180.0
COLUMNS = (
    "actors by partitions",
    "cold",
    "same again",
    "one leaves",
    "all restart",
    "disks at random",
    "member's data",
)


@click.command()
@click.option("--members", default=200, show_default=True)
@click.option("--partitions", default=1000, show_default=True)
@click.option("--group/--no-group", default=True, help="Also time a real group.")
def main(members: int, partitions: int, group: bool) -> None:
    """Time assignments."""
    # Each member says at each rebalance that there is one.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    console = Console()
    console.print(_function_table(members))
    found: dict[str, object] = {"members": members, "partitions": partitions}
    if group:
        with (
            tempfile.TemporaryDirectory(prefix="scaling-") as folder,
            start_cluster(Path(folder), overrides={"group.initial.rebalance.delay.ms": "3000"}) as cluster,
        ):
            found |= asyncio.run(_group(cluster.bootstrap, members, partitions))
    print(json.dumps(found))


def _function_table(members: int) -> Table:
    table = Table(*COLUMNS)
    for actors, partitions in SHAPES:
        tasks = [TaskId(f"actor{actor}", number) for actor in range(actors) for number in range(partitions)]
        choice = random.Random(1)
        positions = {task: choice.randrange(10**9) for task in tasks}
        fresh = [Member(f"m{number:03}", f"m{number:03}", ADDRESS) for number in range(members)]
        cold_ms, owners = _timed(fresh, tasks)
        settled = [_carry(member, owners, positions) for member in fresh]
        restarted = [Member(f"{one.member_id}x", one.instance_id, ADDRESS, on_disk=one.on_disk) for one in settled]
        scattered = [
            Member(
                f"m{number:03}", address=ADDRESS, on_disk={task: positions[task] for task in choice.sample(tasks, 30)}
            )
            for number in range(members)
        ]
        rows = [_timed(one, tasks)[0] for one in (settled, settled[1:], restarted, scattered)]
        size = max(len(encode_member_data(member)) for member in settled)
        table.add_row(f"{actors} by {partitions}", *(f"{ms:.0f} ms" for ms in (cold_ms, *rows)), f"{size} bytes")
    return table


def _timed(members: Sequence[Member], tasks: Sequence[TaskId]) -> tuple[float, Mapping[str, tuple[TaskId, ...]]]:
    began_s = time.perf_counter()
    owners = assign(members, tasks)
    return (time.perf_counter() - began_s) * 1000, owners


def _carry(member: Member, owners: Mapping[str, tuple[TaskId, ...]], positions: Mapping[TaskId, int]) -> Member:
    owned = owners[member.member_id]
    on_disk = {task: positions[task] for task in owned}
    return Member(member.member_id, member.instance_id, ADDRESS, 1, frozenset(owned), on_disk)


async def _group(brokers: str, members: int, partitions: int) -> dict[str, object]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    await admin.create_topics([NewTopic("input", partitions, 1)])
    await admin.close()
    consumers = [_consumer(brokers, number) for number in range(members)]
    began_s = time.perf_counter()
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    await _settled(consumers, partitions)
    joined_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    await consumers[0].stop()
    await _settled(consumers[1:], partitions)
    left_s = time.perf_counter() - began_s
    await asyncio.gather(*(consumer.stop() for consumer in consumers[1:]))
    return {"all_join_s": round(joined_s, 1), "one_leaves_s": round(left_s, 1)}


def _consumer(brokers: str, number: int) -> AIOKafkaConsumer:
    assignor = ActorAssignor(instance_id=f"worker-{number}", address=ADDRESS, actors={"input": "actor"}, on_disk=dict)
    consumer = AIOKafkaConsumer(
        "input",
        bootstrap_servers=brokers,
        group_id="scaling",
        enable_auto_commit=False,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        heartbeat_interval_ms=1_000,
        partition_assignment_strategy=(assignor,),
    )
    assignor.generation = lambda: int(consumer._coordinator.generation)
    return consumer


async def _settled(consumers: Sequence[AIOKafkaConsumer], partitions: int) -> None:
    """Wait until all members are in one generation and own all partitions between them."""
    deadline_s = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < deadline_s:
        generations = {consumer._coordinator.generation for consumer in consumers}
        owned = [len(consumer.assignment()) for consumer in consumers]
        if len(generations) == 1 and sum(owned) == partitions and min(owned) > 0:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"the group didn't settle: {sum(owned)} of {partitions} partitions are owned")


if __name__ == "__main__":
    main()
