"""A run: faults one after the other while inputs flow, and then every check."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dev.kafka import Cluster
from stores._core.record import METADATA_BYTES
from stores.errors import StoreError
from stores.rocks import RocksReader
from tests.crash.checks import Findings, Run, check_readers, check_run, fold_account, fold_stats
from tests.crash.chore_checks import ChoreFindings, Evidence, check_chores, read_lines
from tests.crash.faults import Fault
from tests.crash.foreign_checks import ForeignEvidence, check_deliveries
from tests.crash.join_checks import JoinEvidence, check_joins
from tests.crash.machine import SkippedError
from tests.crash.window_checks import WindowEvidence, check_windows
from tests.crash.world import (
    CALLED,
    CLICKS,
    DELIVERIES,
    EFFECTS_FILE,
    INPUTS,
    LATE_HALVES,
    MATCHED,
    NAME,
    OUTPUTS,
    PAIRED,
    PARTITIONS,
    RECOVER_S,
    TABLES,
    World,
)

logger = logging.getLogger("crash")

SETTLE_S = 120.0
LATE_S = 2.0
"""So long after all that had to happen did, something that happens twice may still do so."""
OPEN_S = 5.0
"""So long a commit may take; the broker aborts what is left open after 10 s (Kafka Streams) or 30 s (workers)."""
FLAWS = (
    "lost",
    "doubled",
    "wrong_running_values",
    "wrong_timestamps",
    "wrong_state",
    "misread",
    "wrong_views",
    "open_transactions",
)
CHORE_KINDS = ("handled", "rang", "cancelled", "expired", "left", "asked", "calls", "done")
WINDOW_KINDS = ("spans", "sittings", "late", "merged")
JOIN_KINDS = ("pairs", "lone_offers", "lone_bids", "late_halves")
FOREIGN_KINDS = ("deliveries", "changes", "moves", "nowhere", "ends")
EVENT_KINDS = WINDOW_KINDS + JOIN_KINDS + FOREIGN_KINDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found. All counts but inputs, faults, the seconds and `happened` have to be 0.

    `chores` is what was wrong with the second actor, `windows` with those of windows and joins, empty without them;
    `happened` is how often they did what.
    """

    inputs: int
    faults: int
    lost: int
    doubled: int
    wrong_running_values: int
    wrong_timestamps: int
    wrong_state: int
    misread: int
    wrong_views: int
    open_transactions: int
    start_s: float
    slowest_recovery_s: float
    seconds: float
    chores: Mapping[str, int] = field(default_factory=dict)
    happened: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)
    recovery_limit_s: float = RECOVER_S

    @property
    def flaws(self) -> dict[str, int]:
        """What was wrong or not tried, by name."""
        counts = {name: getattr(self, name) for name in FLAWS} | dict(self.chores) | dict(self.windows)
        found = {name: count for name, count in counts.items() if count}
        # A run that didn't try something says nothing of it.
        kinds = (
            *(CHORE_KINDS if self.chores else ()),
            *(WINDOW_KINDS + JOIN_KINDS + FOREIGN_KINDS if self.windows else ()),
        )
        return found | {f"never {kind}": 0 for kind in kinds if not self.happened.get(kind)}

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong, in time."""
        return not self.flaws and self.slowest_recovery_s <= self.recovery_limit_s

    def as_dict(self) -> dict[str, object]:
        """For the last line of the run."""
        found = asdict(self)
        chores, windows, happened = (found.pop(name) for name in ("chores", "windows", "happened"))
        return {**found, **chores, **windows, "happened": happened}


class StuckError(AssertionError):
    """A partition made no progress in time."""


async def run(
    cluster: Cluster,
    folder: Path,
    faults: Sequence[Fault],
    *,
    inputs: int,
    rate: float,
    seed: int,
    pause_s: float = 0.02,
    partitions: int = PARTITIONS,
    is_streams: bool = False,
) -> Outcome:
    """Run all faults on a new world, wait for the end of the inputs, and check."""
    began_s = time.monotonic()
    world = await World.create(cluster, folder, seed, partitions, is_streams=is_streams)
    try:
        for worker in world.workers:
            worker.start()
        feeding = asyncio.create_task(world.feed(inputs, rate, pause_s))
        start_s, slowest_s = await _wait_for_progress(world, feeding, "the start"), 0.0
        for number, fault in enumerate(faults, 1):
            logger.info("fault %d of %d: %s (%d inputs sent)", number, len(faults), fault.__name__, world.sent)
            try:
                await fault(world)
            except SkippedError as reason:
                logger.warning("   %s is skipped: %s", fault.__name__, reason)
            recovered_s = await _wait_for_progress(world, feeding, fault.__name__)
            _all_alive(world, fault.__name__)
            logger.info("   every partition made progress %.1f s after it", recovered_s)
            slowest_s = max(slowest_s, recovered_s)
        await feeding
        await _settle(world)
        _all_alive(world, "the last fault")
        # What is checked of the first actor stays as it is while the others settle.
        findings, (chores, windows) = await asyncio.gather(_check(world), _settle_others(world))
        views = 0 if is_streams else await wrong_views(world)
        open_transactions = await _open_transactions(world)
    finally:
        world.end()
    for example in findings.examples + chores.examples + windows.examples:
        logger.error("%s", example)
    return Outcome(
        inputs=world.sent,
        faults=len(faults),
        lost=findings.lost,
        doubled=findings.doubled + findings.out_of_order,
        wrong_running_values=findings.wrong_running_values,
        wrong_timestamps=findings.wrong_timestamps,
        wrong_state=findings.wrong_state,
        misread=findings.misread,
        wrong_views=views,
        open_transactions=open_transactions,
        start_s=round(start_s, 1),
        slowest_recovery_s=round(slowest_s, 1),
        seconds=round(time.monotonic() - began_s, 1),
        chores=chores.counts,
        happened=dict(chores.seen + windows.seen),
        windows=windows.counts,
        recovery_limit_s=world.recovery_limit_s,
    )


async def _wait_for_progress(world: World, feeding: asyncio.Task[None], after: str) -> float:
    """Give the seconds until every partition committed more than it had, or has nothing left to do."""
    began_s = time.monotonic()
    before, fed = await world.progress(), world.fed()
    while time.monotonic() - began_s < world.recovery_limit_s * 2:
        now = await world.progress()
        ends = await world.ends(*world.inputs)
        if all(now[part] > before[part] or (feeding.done() and now[part] >= ends[part]) for part in fed):
            return time.monotonic() - began_s
        await asyncio.sleep(0.2)
    logs = "\n".join(f"--- {worker.folder.parent.name}\n{worker.log()[-3000:]}" for worker in world.workers)
    raise StuckError(f"after {after}: offsets {before} → {now}, input ends {ends}\n{logs}")


def _all_alive(world: World, after: str) -> None:
    for worker in world.workers:
        if not worker.is_running():
            raise StuckError(f"after {after} {worker.folder.parent.name} ended by itself:\n{worker.log()[-5000:]}")


async def _settle(world: World) -> None:
    """Wait until all inputs are committed."""
    deadline_s = time.monotonic() + SETTLE_S
    while await world.progress() != await world.ends(*world.inputs):
        if time.monotonic() > deadline_s:
            logs = "\n".join(worker.log()[-3000:] for worker in world.workers)
            raise StuckError(f"not all inputs were processed: {await world.progress()}\n{logs}")
        await asyncio.sleep(0.3)


async def _check(world: World) -> Findings:
    """Check the first actor, and the one of two inputs."""
    findings = Findings()
    actors = [(INPUTS[:1], f"{NAME}-echo", fold_stats), (PAIRED, f"{NAME}-joined", fold_account)]
    # Where Kafka Streams runs there is one changelog.
    checked = list(zip(actors, world.changelogs, strict=False))
    # Kafka's own consumer ends some seconds behind the last record: at once for all.
    reads = await asyncio.gather(*(world.read_by_kafka(echo) for (_, echo, _), _ in checked))
    for ((topics, echo, fold), changelog), by_kafka in zip(checked, reads, strict=True):
        inputs = {topic: await world.read(topic) for topic in topics}
        run = Run(inputs=inputs, echoes=await world.read(echo), changelog=await world.read(changelog), fold=fold)
        check_run(run, findings)
        check_readers(echo, run.echoes, by_kafka, findings)
    return findings


async def _settle_others(world: World) -> tuple[ChoreFindings, ChoreFindings]:
    """Wait until the other actors have nothing left to do, and check the second one, and those of windows and joins."""
    if world.is_streams:
        return ChoreFindings({}), ChoreFindings({})
    await _settle_windows(world)
    chores = await _settle_chores(world)
    return chores, await _check_windows(world)


async def _settle_chores(world: World) -> ChoreFindings:
    """Wait until the second actor has nothing left to do, and check."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        await world.tick()
        await _settle(world)
        if not check_chores(await _evidence(world)).is_waiting or time.monotonic() > deadline_s:
            break
    await asyncio.sleep(LATE_S)
    return check_chores(await _evidence(world))


async def _settle_windows(world: World) -> None:
    """Wait until all windows that are over have closed."""
    deadline_s = time.monotonic() + SETTLE_S
    while (await _check_windows(world)).is_waiting:
        if time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.3)


async def _check_windows(world: World) -> ChoreFindings:
    """Check the actor of windows, and the joins."""
    clicks = WindowEvidence(
        clicks=await world.read(CLICKS),
        finals=await world.read(f"{NAME}-finals"),
        late=await world.read(f"{NAME}-late"),
    )
    halves = JoinEvidence(
        offers=await world.read(MATCHED[0]),
        bids=await world.read(MATCHED[1]),
        called=await world.read(CALLED),
        late=await world.read(LATE_HALVES),
    )
    rows = ForeignEvidence(
        parcels=await world.read(TABLES[0]),
        depots=await world.read(TABLES[1]),
        deliveries=await world.read(DELIVERIES),
    )
    found = ChoreFindings({})
    for findings in (check_windows(clicks), check_joins(halves), check_deliveries(rows)):
        found.counts |= findings.counts
        found.examples += findings.examples
        found.seen += findings.seen
    return found


async def _evidence(world: World) -> Evidence:
    file = world.folder / EFFECTS_FILE
    return Evidence(
        inputs=await world.read(f"{NAME}-chores"),
        said=await world.read(f"{NAME}-said"),
        state=await world.read(f"{NAME}--Chores-changelog"),
        kept=await world.read(f"{NAME}--kept-changelog"),
        timers=await world.read(f"{NAME}--Chores-timers-changelog"),
        effects=await world.read(f"{NAME}--Chores-effects-changelog"),
        lines=read_lines(await asyncio.to_thread(file.read_bytes)),
    )


async def _open_transactions(world: World) -> int:
    """Count partitions whose last stable offset stays behind what was their high watermark.

    The workers still run: what one of them commits at this moment isn't left open.
    """
    topics = [*OUTPUTS, "__consumer_offsets", *world.changelogs]
    topics += [] if world.is_streams else [f"{NAME}-actors-owners"]
    ends = await world.ends(*topics)
    deadline_s = time.monotonic() + OPEN_S
    while True:
        stable = await world.ends(*topics, isolation="read_committed")
        behind = sum(stable[part] < end for part, end in ends.items())
        if not behind or time.monotonic() > deadline_s:
            return behind
        await asyncio.sleep(0.1)


async def wrong_views(world: World) -> int:
    """Count the partitions of the workers' views that don't become the fold of the topic, which is at its end."""
    fold: dict[int, dict[bytes | None, bytes | None]] = {number: {} for number in range(world.partitions)}
    for record in sorted(await world.read(f"{NAME}--stats-changelog"), key=lambda record: record.offset):
        fold[record.partition][record.key] = record.value
    wanted = {n: {key: value for key, value in held.items() if value is not None} for n, held in fold.items()}
    wrong = [(worker.folder, number) for worker in world.workers for number in wanted]
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        wrong = [(folder, number) for folder, number in wrong if _viewed(folder, number) != [wanted[number]]]
        if not wrong or time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.3)
    for folder, number in wrong:
        logger.error("%s: partition %d of the view isn't what its topic holds", folder, number)
    return len(wrong)


def _viewed(folder: Path, partition: int) -> list[dict[bytes, bytes]]:
    """Return the content of each database of a partition of the worker's view: one, unless it is being built again."""
    found = []
    for path in folder.glob(f"v*/views/*/stores/*/{partition}"):
        try:
            with contextlib.closing(RocksReader.open(path)) as reader:
                found.append({key: raw[METADATA_BYTES:] for key, raw in reader.scan()})
        except StoreError as error:
            logger.info("%s can't be read now: %s", path, error)
    return found
