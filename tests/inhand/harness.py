"""A run: bursts of inputs with a fault while they are in hand, and then the account of everything."""

from __future__ import annotations

import asyncio
import bisect
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.kafka import Cluster
from tests.inhand import oracle
from tests.inhand.faults import Fault
from tests.inhand.oracle import FLAWS, KINDS, NOWHERE, OUTPUTS, REPEATS, Flaw, Ledger
from tests.inhand.world import World

logger = logging.getLogger("inhand")

SETTLE_S = 120.0
QUIET_S = 15.0
"""If nothing more happens for so long, what is missing is lost."""
AGAIN_S = 2.0
"""So long after all that had to happen did, something that happens twice may still do so."""
DELAY_S = 0.7
"""At most so long after windows began to close there is a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run found.

    Attributes:
        faults: how often there was each, in the order of the bursts.
        due: how much had to happen, by kind.
        flaws: what was lost, doubled or wrong, by kind and by the fault of the burst with which it came due.
        repeats: the calls of effects that were made again, by fault, and as one of `oracle.REPEATS`.
        late: the records of joins that were late; `parked` those that were parked.
    """

    inputs: int
    faults: Sequence[str]
    due: Mapping[str, int]
    flaws: Mapping[tuple[str, str, str], int]
    repeats: Mapping[tuple[str, str], int]
    late: int
    parked: int
    seconds: float

    def total(self, flaw: str) -> int:
        """Return how often there was a flaw."""
        return sum(count for (_, _, name), count in self.flaws.items() if name == flaw)

    @property
    def repeated(self) -> int:
        """How many calls were made again that may not."""
        return sum(count for (_, how), count in self.repeats.items() if how == "ended")

    @property
    def untried(self) -> list[str]:
        """What never had to happen: a run says nothing of it."""
        return [kind for kind in KINDS if not self.due.get(kind)] + ([] if self.parked else ["parked"])

    @property
    def is_clean(self) -> bool:
        """Whether everything happened once and rightly, and was tried."""
        return not (sum(self.flaws.values()) or self.repeated or self.untried)

    def as_dict(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "inputs": self.inputs,
            "faults": dict(Counter(self.faults)),
            "due": dict(self.due),
            **{flaw: self.total(flaw) for flaw in FLAWS},
            "repeated": self.repeated,
            "untried": self.untried,
            "flaws": {"/".join(place): count for place, count in sorted(self.flaws.items())},
            "repeats": {"/".join(place): count for place, count in sorted(self.repeats.items())},
            "late": self.late,
            "parked": self.parked,
            "seconds": self.seconds,
        }

    def table(self) -> Iterator[str]:
        """Yield lines: a row for each kind, a column for each fault, lost/doubled/wrong in each cell."""
        others = {fault for _, fault, _ in self.flaws} | {fault for fault, _ in self.repeats}
        names = [*dict.fromkeys(self.faults), *sorted(others - set(self.faults))]
        widths = [max(len(name), 12) for name in names]
        yield "  ".join(
            [
                f"{'lost/doubled/wrong':<18}",
                f"{'due':>7}",
                *(name.rjust(w) for name, w in zip(names, widths, strict=True)),
            ]
        )
        for kind in KINDS:
            cells = ["/".join(str(self.flaws.get((kind, name, flaw), 0)) for flaw in FLAWS) for name in names]
            cells = ["." if cell == "0/0/0" else cell for cell in cells]
            shown = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            yield "  ".join([f"{kind:<18}", f"{self.due.get(kind, 0):>7}", *shown])
        calls = ["/".join(str(self.repeats.get((name, how), 0)) for how in REPEATS) for name in names]
        shown = (cell.rjust(width) for cell, width in zip(calls, widths, strict=True))
        yield "  ".join([f"{'calls repeated':<18}", f"{'':>7}", *shown])
        yield "calls repeated: ended / cut off / excused by a fault that isn't clean"


async def run(
    brokers: str,
    folder: Path,
    faults: Sequence[Fault],
    *,
    inputs: int,
    seed: int,
    workers: int = 2,
    supervised: bool = False,
    cluster: Cluster | None = None,
) -> Outcome:
    """Run a burst for each fault on a new world; wait until nothing more happens, and check."""
    began_s = time.monotonic()
    world = await World.create(brokers, folder, seed=seed, inputs=inputs, workers=workers, supervised=supervised)
    world.cluster = cluster
    share, names = -(-inputs // len(faults)), [fault.__name__ for fault in faults]
    try:
        for number, fault in enumerate(faults):
            before = await world.finals_ends()
            # What was parked of the former burst is handled while the next one is parked.
            retry = asyncio.create_task(world.retry_parked(refuse_from=world.sent))
            async with world.feeding(min(share, inputs - world.sent)):
                if not number:
                    # The first burst is there before any worker.
                    for worker in world.workers:
                        worker.start()
                await world.in_hand(before)
                await asyncio.sleep(world.chance.random() * DELAY_S)
                logger.info("fault %d of %d: %s (%d inputs sent)", number + 1, len(faults), fault.__name__, world.sent)
                await fault(world)
            await retry
        await world.flush()
        ledger, late = await _settled(world)
        repeats = oracle.repeats(oracle.read_calls(world.calls_file.read_bytes()), world.marks)
        parked = len(await world.read("dead-letters"))
    finally:
        world.end()
    flaws: Counter[tuple[str, str, str]] = Counter()
    for flaw, count in ledger.flaws().items():
        flaws[flaw.kind, _fault_of(world, names, flaw), flaw.name] += count
    for example in ledger.examples:
        logger.error("%s", example)
    outcome = Outcome(
        inputs=world.sent,
        faults=names,
        due={kind: len(places) for kind, places in ledger.due.items()},
        flaws=flaws,
        repeats=repeats,
        late=late,
        parked=parked,
        seconds=round(time.monotonic() - began_s, 1),
    )
    if not outcome.is_clean:
        for line in _warnings(world):
            logger.error("%s", line)
    return outcome


def _warnings(world: World) -> Iterator[str]:
    """Yield what the workers warned of, and where they joined the group: why a call was made again stands there."""
    for mark in world.marks:
        yield f"{mark.at_ns / 1e9:.3f} {mark.fault}"
    for worker in world.members:
        for line in worker.log().splitlines():
            if "[WARNING]" in line or "[ERROR]" in line or "oined" in line or "joining" in line:
                yield f"{worker.folder.parent.name}: {line[:300]}"


def _fault_of(world: World, names: Sequence[str], flaw: Flaw) -> str:
    """Return the fault in the burst with which something came due."""
    if flaw.number == NOWHERE:
        return "unasked"
    return names[max(0, bisect.bisect_right(world.starts, flaw.number) - 1)]


async def _settled(world: World) -> tuple[Ledger, int]:
    """Wait until all that has to happen did, or nothing more happens; return the account and the late records."""
    deadline_s = time.monotonic() + SETTLE_S
    size, quiet_s = -1, time.monotonic()
    while True:
        await world.retry_parked(refuse_from=world.sent)
        await world.tick()
        ledger, late, new_size = await _account(world)
        now_s = time.monotonic()
        if new_size > size:
            size, quiet_s = new_size, now_s
        if not any(flaw.name == "lost" for flaw in ledger.flaws()):
            await asyncio.sleep(AGAIN_S)
            break
        if now_s > deadline_s or now_s - quiet_s > QUIET_S:
            break
        await asyncio.sleep(0.5)
    ledger, late, _ = await _account(world)
    return ledger, late


async def _account(world: World) -> tuple[Ledger, int, int]:
    """Return the account as it is now, the number of late records, and that of all that was sent."""
    # Outputs first: an input that is sent meanwhile isn't due.
    records = {topic: await world.read(topic) for topic in (*OUTPUTS, *oracle.TIMED)}
    ledger, late = oracle.account(records, world.begin_ms, range(world.inputs))
    return ledger, late, sum(len(records[topic]) for topic in OUTPUTS)
