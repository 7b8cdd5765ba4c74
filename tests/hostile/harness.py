"""A run: the main job alone, then beside all attacks at once, and then every check."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.hostile.attacks import ATTACKS, Attack, lying_members
from tests.hostile.world import CHUNK, World
from tests.kafka.helpers import eventually

logger = logging.getLogger("hostile")

MAX_MEMORY_MB = 1024
MIN_RATIO = 0.8
MAX_HEALTH_S = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found. `alone_per_s` and `attacked_per_s` are records of the main job per second."""

    sent: int
    lost: int
    doubled: int
    moved: int
    wrong_answers: dict[str, int]
    alone_per_s: int
    attacked_per_s: int
    ratio: float
    slowest_health_s: float
    max_memory_mb: int
    answers: dict[str, int]

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, moved, or answered wrongly."""
        wrong = self.lost + self.doubled + self.moved + sum(self.wrong_answers.values())
        return wrong == 0 and self.max_memory_mb < MAX_MEMORY_MB

    @property
    def fast(self) -> bool:
        """Whether the main job kept its throughput, and health its time."""
        return self.ratio >= MIN_RATIO and self.slowest_health_s <= MAX_HEALTH_S


async def run(brokers: str, folder: Path, *, seconds: float, chunk: int = CHUNK) -> Outcome:
    """Attack a worker for some seconds. The main job's commands are sent `chunk` at a time.

    The members that lie join first: each join has the whole group join again, whoever it is.
    """
    async with World.create(brokers, folder, chunk=chunk) as world, lying_members(world):
        enough = asyncio.Event()
        feeding = asyncio.create_task(world.feed(enough))
        await eventually(lambda: _is_warm(world), what=world.log_end)
        moves = world.moves()
        before = await world.rate(seconds / 4)
        attacks = [asyncio.create_task(_again_and_again(world, attack)) for attack in ATTACKS]
        health = asyncio.create_task(_watch_health(world))
        attacked = await world.rate(seconds)
        for task in [*attacks, health]:
            task.cancel()
        results = await asyncio.gather(*attacks, health, return_exceptions=True)
        failed = [result for result in results if isinstance(result, Exception)]
        assert not failed, (failed, world.log_end())
        after = await world.rate(seconds / 4)
        logger.info("%d records/s, attacked %d, then %d", before, attacked, after)
        moved, memory = world.moves() - moves, world.max_memory_mb()
        enough.set()
        await feeding
        await eventually(lambda: _is_done(world), deadline_s=120, what=world.log_end)
        lost, doubled = await world.wrong_runs()
        alone = (before + after) / 2
        return Outcome(
            sent=world.sent,
            lost=lost,
            doubled=doubled,
            moved=moved,
            wrong_answers=_wrong(world),
            alone_per_s=round(alone),
            attacked_per_s=round(attacked),
            ratio=round(attacked / alone, 3),
            slowest_health_s=round(max(world.health_s), 3),
            max_memory_mb=round(memory),
            answers={f"{name} {said}": count for (name, said), count in sorted(world.answers.items())},
        )


async def _is_warm(world: World) -> bool:
    return await world.handled() > 2 * world.chunk


async def _is_done(world: World) -> bool:
    return await world.handled() >= world.sent


async def _again_and_again(world: World, attack: Attack) -> None:
    name = attack.once.__name__
    while True:
        try:
            statuses = list(await attack.once(world))
        except (aiohttp.ClientError, TimeoutError) as error:
            world.answers[name, type(error).__name__] += 1
            statuses = []
        world.answers[name, "times"] += 1
        for status in statuses:
            world.answers[name, str(status)] += 1
        await asyncio.sleep(attack.every_s)


async def _watch_health(world: World) -> None:
    while True:
        began_s = time.monotonic()
        status, _ = await world.get("/health")
        overview, _ = await world.get("/actors")
        world.health_s.append(time.monotonic() - began_s)
        world.answers["administrator", f"{status} {overview}"] += 1
        await asyncio.sleep(0.25)


def _wrong(world: World) -> dict[str, int]:
    allowed = {attack.once.__name__: attack.allowed for attack in ATTACKS}
    found: dict[str, int] = {}
    for (name, said), count in world.answers.items():
        if name == "administrator":
            is_right = said == "200 200"
        else:
            is_right = said == "times" or (said.isdigit() and int(said) in allowed[name])
        if not is_right:
            found[f"{name} {said}"] = count
    return found
