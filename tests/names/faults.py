"""The faults: after each of them something has its name and is another thing, or a process is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError
from aiokafka.structs import TopicPartition

from dev.kafka import CONSUMER_GROUP_COMMAND, run_tool
from tests.kafka.helpers import add_partitions, delete, eventually, make_topics, topic_id
from tests.names.program import Program
from tests.names.remedies import read_remedy

Fault = Callable[[Program], Awaitable[None]]
HOUR_MS = 3_600_000


async def recreate_input(program: Program) -> None:
    """An input is deleted, and created again at once or later."""
    kind = program.chance.choice(program.kinds)
    await program.recreate(kind, program.chance.choice([0.0, 0.0, 4.0]))
    if ("reset", kind) in program.damages:
        # Partitions that stand still because of that don't look again before somebody accepts offsets.
        program.told.add("input")
    program.damages -= {("grow", kind)}
    program.damages.add(("input", kind))
    _excuse_resets(program)


def _excuse_resets(program: Program) -> None:
    """Let resets stay unsaid if the inputs are other ones too: partitions may say that in their place."""
    resets, inputs = (
        {kind for name, kind in program.damages if name == damage and kind in program.kinds}
        for damage in ("reset", "input")
    )
    if resets and resets <= inputs:
        program.told.add("reset")


async def grow(program: Program) -> None:
    """An input is given partitions, and its producers place by them."""
    kind = program.chance.choice(program.kinds)
    life = program.lives[kind]
    if ("grow", kind) in program.damages:
        return
    await add_partitions(program.brokers, life.topic, total=life.partitions + 2)
    life.partitions += 2
    if kind == "in":
        program.damages.add(("grow", kind))
    elif any(former.topic == life.topic and former.partitions == life.partitions for former in program.ended):
        # The new partitions had owners when the topic was another one.
        program.damages.add(("input", kind))
        program.told.add("input")


async def swap(program: Program) -> None:
    """Two partitions' databases change places while the workers are stopped."""
    await program.stop()
    worker = program.chance.choice(program.workers)
    stores = sorted({path.parent for path in worker.folder.glob("**/stores/*/[0-9]")})
    for store in [store for store in stores if len(_partitions(store)) > 1][:1]:
        one, other = program.chance.sample(_partitions(store), 2)
        exchange(one, other)
        program.damages.add(("swap", ""))
    await program.start()


def _partitions(store: Path) -> list[Path]:
    return sorted(path for path in store.iterdir() if path.name.isdigit())


def exchange(one: Path, other: Path) -> None:
    """Give two folders each other's names."""
    aside = one.with_name("aside")
    one.rename(aside)
    if other.exists():
        other.rename(one)
    aside.rename(other)


async def step(program: Program) -> None:
    """The wall clock of all workers is set, and stays so until somebody sets it right."""
    step_ms = program.chance.choice([-HOUR_MS, -HOUR_MS // 6, HOUR_MS // 6, HOUR_MS, 20_000])
    program.set_clock(step_ms)
    program.damages.add(("step", ""))
    # For as long as timers wait, and more.
    await asyncio.sleep(5.0)


async def impostor(program: Program) -> None:
    """Another program is started under the app's id."""
    number = len(program.strangers)
    other = program.worker(f"{program.app}-impostor-{number}", IMPOSTOR="1")
    program.strangers.append(other)
    other.start()
    code = await asyncio.to_thread(other.wait, 90)
    remedy = read_remedy(other.log()[-4000:])
    if code == 0 or remedy.damage != "impostor" or not remedy.is_own_id:
        program.violations.note("wrong error", f"{code}, {remedy}: {other.log()[-4000:]}")
    program.stops["impostor"] += 1
    program.damages.add(("impostor", ""))


async def reset(program: Program) -> None:
    """An operator sets offsets back or forward, or deletes the group, while the workers are stopped."""
    await program.stop()
    how = program.chance.choice(["back", "forward", "deleted"])
    group, offsets, ends = f"{program.app}-actors", await program.offsets(), await program.ends()
    if how == "deleted":

        def is_deleted() -> bool:
            args = ("--bootstrap-server", program.brokers, "--delete", "--group", group)
            return run_tool(CONSUMER_GROUP_COMMAND, *args, check=False).returncode == 0

        await eventually(lambda: asyncio.to_thread(is_deleted))
    moved: dict[TopicPartition, int] = {}
    for kind, life in program.lives.items():
        if kind not in program.kinds:
            # It has no records, but offsets.
            program.damages |= {("reset", kind)} if how == "deleted" else set()
            continue
        for number in range(life.partitions):
            part = TopicPartition(life.topic, number)
            at = offsets.get(part, 0)
            # Every other one.
            to = max(0, at - 25) if how == "back" else min(ends[part], at + 25)
            if how != "deleted" and (to == at or program.chance.random() < 0.5):
                continue
            if how == "deleted" and (part not in offsets or not life.reached.get(number)):
                continue
            moved[part] = to
            life.tampered.add(number)
            program.damages.add(("reset", kind))
    if moved and how != "deleted":
        await _move(program, group, moved)
    _excuse_resets(program)
    await program.start()


async def _move(program: Program, group: str, moved: dict[TopicPartition, int]) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=program.brokers, group_id=group, enable_auto_commit=False) as tool:
        tool.assign(list(moved))

        async def is_moved() -> bool:
            # Refused while the group still has a worker that was killed.
            with contextlib.suppress(CommitFailedError):
                await tool.commit(moved)
                return True
            return False

        await eventually(is_moved)


async def recreate_changelog(program: Program) -> None:
    """A changelog is deleted, and created again or not."""
    stores = ["tally", "tally-timers"] if program.has_timers else ["tally"]
    topic = f"{program.app}--{program.chance.choice(stores)}-changelog"
    if await topic_id(program.brokers, topic) is not None:
        await delete(program.brokers, topic)
    if program.chance.random() < 0.6:
        config = {"cleanup.policy": "compact"}
        await make_topics(program.brokers, topic, partitions=program.own_partitions, config=config)
    program.damages.add(("changelog", ""))


async def kill(program: Program) -> None:
    """`kill -9` of a worker, started again."""
    running = [worker for worker in program.workers if worker.is_running()]
    for worker in running[: 1 if program.chance.random() < 0.7 else None]:
        worker.kill()
        worker.start()


FAULTS: tuple[Fault, ...] = (recreate_input, grow, swap, step, impostor, reset, recreate_changelog, kill)
ERRORS_OF = {"input", "grow", "changelog", "reset"}
"""Damages that can't be put right, or pass, before an error told of them."""
