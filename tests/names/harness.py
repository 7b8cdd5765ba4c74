"""A run: rounds of faults on two programs at once while their producers send, and the account at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dev.kafka import Cluster
from tests.crash.world import World
from tests.kafka.helpers import eventually
from tests.names.checks import Findings
from tests.names.faults import FAULTS, Fault
from tests.names.operator import heal, observe
from tests.names.program import PARTITIONS, Program

logger = logging.getLogger("names")

SETTLE_S = 150.0
AT_MOST = 3
"""Faults of one round, before anything is put right."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found: `wrong` is empty if all is right. `stops` counts the errors that were followed, by damage."""

    faults: dict[str, int]
    inputs: int
    stops: dict[str, int]
    wrong: dict[str, int]
    seconds: float


def rounds(chance: Random, faults: int, pool: Sequence[Fault]) -> list[list[Fault]]:
    """Put faults in random order, each kind as often as the others, and into rounds of one or several."""
    order = [fault for _ in range(-(-faults // len(pool))) for fault in chance.sample(pool, len(pool))][:faults]
    found = []
    while order:
        count = chance.randint(1, AT_MOST)
        found.append(order[:count])
        order = order[count:]
    return found


async def run(cluster: Cluster, folder: Path, *, seed: int, faults: int, pool: Sequence[Fault] = FAULTS) -> Outcome:
    """Run the faults, a half of them on each program; wait until all is handled, and check."""
    began_s = time.monotonic()
    main = Program(World(cluster, folder, Random(seed), PARTITIONS), "main", ("in", "plain"), Random(f"{seed} main"))
    bells = Program(
        World(cluster, folder, Random(seed), PARTITIONS), "bells", ("in",), Random(f"{seed} bells"), has_timers=True
    )
    done, wrong, stops = Counter[str](), Counter[str](), Counter[str]()
    half = -(-faults // 2)
    plan = [(main, half), (bells, faults - half)]
    try:
        for program, _ in plan:
            await program.create(workers=2 if program is main else 1)
        async with asyncio.TaskGroup() as tasks:
            for program, count in plan:
                # Timers can't be carried over to other partitions.
                possible = [fault for fault in pool if program is main or fault.__name__ != "grow"]
                tasks.create_task(_under_faults(program, rounds(program.chance, count, possible), done))
        for program, _ in plan:
            findings = program.violations
            account = await _settled(program)
            findings.counts.update(account.counts)
            for example in findings.examples + account.examples:
                logger.error("%s %s", program.label, example)
            wrong.update(findings.counts)
            stops.update(program.stops)
    finally:
        main.end()
        bells.end()
    seconds = round(time.monotonic() - began_s, 1)
    return Outcome(
        dict(done), main.sent + bells.sent, dict(stops), {kind: n for kind, n in wrong.items() if n}, seconds
    )


async def _under_faults(program: Program, plan: Sequence[Sequence[Fault]], done: Counter[str]) -> None:
    await program.start()
    async with asyncio.TaskGroup() as tasks:
        for kind in program.kinds:
            tasks.create_task(program.feed(kind))
        assert await observe(program) == {}
        for number, faults in enumerate(plan, 1):
            for fault in faults:
                logger.info("%s: round %d of %d: %s", program.app, number, len(plan), fault.__name__)
                await fault(program)
                done[fault.__name__] += 1
                await asyncio.sleep(program.chance.choice([0.0, 2.0]))
            await heal(program)
            logger.info("%s: round %d is over, all partitions go on", program.app, number)
        program.is_over = True


async def _settled(program: Program) -> Findings:
    """Wait until all inputs are committed and all timers came, and compare."""

    async def is_done() -> bool:
        offsets, ends = await program.offsets(), await program.ends()
        return all(offsets.get(part, 0) == end for part, end in ends.items())

    await eventually(is_done, deadline_s=SETTLE_S, what=lambda: "\n".join(w.log()[-3000:] for w in program.workers))
    program.account(await program.ends())
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        findings = await program.findings()
        if not findings.counts["rings lost"] or time.monotonic() > deadline_s:
            return findings
        await asyncio.sleep(1.0)
