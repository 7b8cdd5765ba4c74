"""An operator, who knows nothing but what the workers' errors say, and does that until all partitions go on."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections import defaultdict
from pathlib import Path

from dev.kafka import CONSUMER_GROUP_COMMAND, run_tool
from tests.kafka.helpers import WorkerProcess, eventually
from tests.names.checks import Jump
from tests.names.faults import ERRORS_OF, exchange
from tests.names.program import Program
from tests.names.remedies import ERRORS, Remedy, read_remedy

logger = logging.getLogger("names")

ATTEMPTS = 12
WAIT_S, QUIET_S = 90.0, 3.0
NOT_YET_MADE = "isn't on the broker. Make them"
"""What ends a worker that starts while its input is being created again: by now the topic is there."""
Troubles = dict[tuple[WorkerProcess, str], str]


class StuckError(AssertionError):
    """Partitions make no progress, and no error says what to do."""


async def heal(program: Program) -> None:
    """Follow what errors say until everything goes on, also without the settings that helped."""
    chosen: dict[str, str] = {}
    lacking: defaultdict[str, set[WorkerProcess]] = defaultdict(set)
    for _ in range(ATTEMPTS):
        troubles = await observe(program)
        if not troubles:
            break
        await _follow(program, troubles, chosen, lacking)
    else:
        raise StuckError(f"{program.app}: {ATTEMPTS} times the errors' remedies were followed: {_logs(program)}")
    program.set_clock(0)
    # Swapped databases may belong to partitions that another worker has now, and be found at any later start.
    program.damages &= {("swap", "")}
    program.told.clear()
    if chosen:
        await program.stop()
        await program.start()
        for text in (await observe(program)).values():
            program.violations.note("promise not kept", f"a start without {chosen} says: {text}")
    await _own_ids(program)


async def _own_ids(program: Program) -> None:
    """Give other programs ids of their own, as their errors say: they run, and disturb nobody."""
    while program.strangers:
        stranger = program.strangers.pop()
        # A data folder belongs to one app.
        stranger.folder = stranger.folder.with_name("own")
        stranger.start(APP_ID=f"{program.label}-own-{stranger.folder.parent.name}")
        try:
            await eventually(lambda one=stranger: "actor impostor owns" in one.log(), what=stranger.log)
        finally:
            stranger.kill()


async def observe(program: Program) -> Troubles:
    """Wait until all partitions make progress, or until there are errors about partitions, or of ended workers."""
    before, deadline_s = await program.offsets(), time.monotonic() + WAIT_S
    last: Troubles = {}
    since_s = time.monotonic()
    while True:
        now, ends = await program.offsets(), await program.ends()
        troubles, owned = _said(program)
        idle = [
            part for part, end in ends.items() if now.get(part, -1) <= before.get(part, -1) and now.get(part, -1) < end
        ]
        silent = {name for name, kind in program.damages if kind in ("", *program.kinds)} & ERRORS_OF - program.told
        is_late = time.monotonic() > deadline_s
        if not (idle or troubles) and owned >= {f"{part.topic}[{part.partition}]" for part in ends}:
            if not silent:
                return {}
            if is_late:
                program.violations.note("silent", f"{program.app}: no error told of {silent}")
                return {}
        if troubles != last:
            last, since_s = troubles, time.monotonic()
        if last and time.monotonic() - since_s > QUIET_S:
            return last
        if is_late:
            raise StuckError(f"{program.app}: {idle} make no progress: {_logs(program)}")
        await asyncio.sleep(0.5)


def _said(program: Program) -> tuple[Troubles, set[str]]:
    """Give the errors that are the last word on a partition, or on a worker; and the partitions that have an owner."""
    last = {event.source: event for event in program.events()}
    troubles = {
        (event.worker, event.source): event.error
        for event in last.values()
        if event.offset is None and (any(re.search(text, event.error) for text in ERRORS.values()))
    }
    for worker in program.workers:
        if worker in program.started and not worker.is_running():
            troubles = {key: text for key, text in troubles.items() if key[0] is not worker}
            troubles[worker, ""] = worker.log()[-3000:]
    return troubles, {source for source, event in last.items() if event.offset is not None}


async def _follow(
    program: Program, troubles: Troubles, chosen: dict[str, str], lacking: defaultdict[str, set[WorkerProcess]]
) -> None:
    """Stop the workers, do what the errors say, and start those that they say, with the settings that they name.

    `lacking` has the workers that have no copy, or an older one, of a partition whose changelog was lost.
    """
    await program.stop()
    workers, holders, moved = list(program.workers), dict[WorkerProcess, None](), set[Path]()
    told = {key: text for key, text in troubles.items() if NOT_YET_MADE not in text}
    remedies = [(worker, source, read_remedy(text)) for (worker, source), text in told.items()]
    for worker, source, remedy in remedies:
        logger.info("%s %s %s: %s", program.app, worker.folder.parent.name, source, remedy)
        program.stops[remedy.damage] += 1
        program.told.add(remedy.damage)
        if remedy.damage not in {name for name, _ in program.damages}:
            program.violations.note("wrong error", f"{remedy}, the damages are {program.damages}")
        if remedy.has_no_copy:
            lacking[source].add(worker)
            workers = [one for one in workers if one is not worker]
    grown = [(source, remedy) for _, source, remedy in remedies if remedy.damage == "grow"]
    if any(remedy.anew for _, remedy in grown):
        await program.recreate("in", 0.0)
        program.damages = program.damages - {("grow", "in"), ("reset", "in")} | {("input", "in")}
    elif grown and not grown[0][0]:
        # Only a start sees whether the changelog is whole.
        await program.carry_over(max(remedy.partitions for _, remedy in grown))
        chosen.clear()
    if grown:
        workers.clear()
    for worker, source, remedy in remedies if not grown else ():
        is_older = "restore_older" in remedy.settings.get("LOST_CHANGELOG", ())
        if is_older and len(lacking[source]) == len(program.workers):
            holders[worker] = None
            chosen["LOST_CHANGELOG"] = "restore_older"
            if remedy.forgets is not None:
                program.lives["in"].forgotten.append(Jump(int(source.rpartition("[")[2][:-1]), *remedy.forgets))
        await asyncio.to_thread(_do, program, remedy, chosen, moved)
    await program.start(list(holders) or workers or None, **chosen)


def _do(program: Program, remedy: Remedy, chosen: dict[str, str], moved: set[Path]) -> None:
    path = Path(remedy.path)
    # The other partition's error names the other half of an exchange, which would be taken back.
    if remedy.path and path not in moved and path.exists():
        moved |= _move_back(program, path)
    settings = dict(remedy.settings)
    # An error about an input offers to give up the state, which nobody wants here.
    if "restore" in settings.pop("LOST_CHANGELOG", ()):
        chosen.setdefault("LOST_CHANGELOG", "restore")
    if remedy.tool and not settings.keys() & chosen.keys() and (not settings or program.chance.random() < 0.4):
        args = [program.brokers if arg == "BROKER" else arg for arg in remedy.tool]
        run_tool(CONSUMER_GROUP_COMMAND, *args)
        settings = {"MOVED_OFFSET": ("accept",)}
    for name, values in settings.items():
        chosen.setdefault(name, program.chance.choice(values))


def _move_back(program: Program, path: Path) -> set[Path]:
    """Delete a database that was moved, or exchange it with the other one that was; return which lie right now."""
    text = "\n".join(worker.log() for worker in program.workers)
    found = re.findall(rf"the database at {re.escape(str(path))} is of store \S+, partition (\d+) ", text)
    # Where the changelog is lost, a database may be the only copy.
    is_copied = ("changelog", "") not in program.damages
    if (is_copied and program.chance.random() < 0.5) or not found:
        shutil.rmtree(path)
        return set()
    other = path.with_name(found[-1])
    exchange(path, other)
    return {path, other}


def _logs(program: Program) -> str:
    return "\n".join(f"--- {worker.folder.parent.name}\n{worker.log()[-3000:]}" for worker in program.workers)
