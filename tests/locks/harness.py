"""A run: faults one after the other while clients fight for locks, and then every check."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.locks.checker import WRONG, Evidence, Findings, check
from tests.locks.faults import Fault
from tests.locks.history import Operation, pair, read_events
from tests.locks.nodes import OPS, check_nodes
from tests.locks.plan import KINDS, NODE_NAMES, Kind
from tests.locks.resource import Resource
from tests.locks.world import CLIENTS_EACH, MODULE, PROCESSES, World

logger = logging.getLogger("locks")

WAIT_S = 0.5
HAPPENED = (
    "grants",
    "waits",
    "given_up",
    "lost_leases",
    "accepted",
    "refused_stale",
    "node_changes",
    "node_conflicts",
    "owner_kills",
    "owner_pauses",
    "client_pauses",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        clients: how many there were.
        locks: what they fought for.
        faults: how many there were.
        wrong: counts that have to be 0.
        happened: how often what was tried; a run that didn't try something says nothing of it.
        slowest_lock_s: from the last fault to the grant of the lock that came last.
        slowest_between_s: the same for the faults before, and the locks that were tried after them.
        fewest_ops_per_node: of the node that was used least.
        seconds: of the whole run.
    """

    clients: int
    locks: int
    faults: int
    wrong: Mapping[str, int]
    happened: Mapping[str, int]
    slowest_lock_s: float
    slowest_between_s: float
    fewest_ops_per_node: int
    seconds: float

    @property
    def complaints(self) -> list[str]:
        """What was wrong, and what wasn't tried."""
        wrong = [f"{kind}: {count}" for kind, count in self.wrong.items() if count]
        return wrong + [f"{kind}: it didn't happen" for kind in HAPPENED if not self.happened.get(kind)]

    def as_dict(self) -> dict[str, object]:
        """For the last line of the run."""
        found = asdict(self)
        wrong, happened = found.pop("wrong"), found.pop("happened")
        return {**found, **wrong, "happened": happened}


async def run(
    brokers: str, folder: Path, faults: Sequence[Fault], *, seed: int, module: str = MODULE, calm_s: float = 0.0
) -> Outcome:
    """Run all faults on a new world, take every lock once more, and check.

    Args:
        brokers: of the cluster.
        folder: for data, histories and logs.
        faults: in their order.
        seed: of the choices of clients and faults.
        module: the app of the owners.
        calm_s: how long the clients are left alone before each fault, and at least once.
    """
    began_s = time.monotonic()
    asked: list[tuple[float, Sequence[Kind]]] = []
    world = await World.create(brokers, folder, module=module, seed=seed)
    try:
        await asyncio.sleep(calm_s)
        for number, fault in enumerate(faults, 1):
            if number > 1:
                await asyncio.sleep(calm_s)
            logger.info("fault %d of %d: %s", number, len(faults), fault.__name__)
            await fault(world)
            # After the last one every lock is tried.
            kinds = KINDS if number == len(faults) else world.chance.sample(KINDS, 8)
            asked.append((time.monotonic(), kinds))
            await world.probe(kinds)
            world.check_processes(fault.__name__)
            logger.info("   %d locks were had %.1f s after it", len(kinds), time.monotonic() - asked[-1][0])
        await world.stop_clients()
        requests = await world.requests()
    finally:
        await world.end()
    operations = await asyncio.to_thread(lambda: pair(read_events(*folder.glob("*.jsonl"))))
    resource = Resource(folder / "resource.db")
    accepted = resource.accepted()
    resource.close()
    evidence = Evidence(
        operations=operations,
        accepted=accepted,
        requests=requests,
        last_fault_s=asked[-1][0] if asked else None,
        asked=asked[:-1],
    )
    findings = await asyncio.to_thread(check, evidence)
    await _add_nodes(operations, findings)
    for example in findings.examples:
        logger.error("%s", example)
    outcome = Outcome(
        clients=PROCESSES * CLIENTS_EACH,
        locks=len(KINDS),
        faults=len(faults),
        wrong={kind: findings.counts[kind] for kind in (*WRONG, "nodes_illegal", "nodes_undecided")},
        happened={**_happened(operations), "accepted": len(accepted), **world.done},
        slowest_lock_s=round(findings.slowest_lock_s, 1),
        slowest_between_s=round(findings.slowest_between_s, 1),
        fewest_ops_per_node=_fewest(operations),
        seconds=round(time.monotonic() - began_s, 1),
    )
    logger.info("%s", outcome)
    return outcome


async def _add_nodes(operations: Sequence[Operation], findings: Findings) -> None:
    verdict = await asyncio.to_thread(check_nodes, operations)
    for name in verdict.illegal:
        findings.add("nodes_illegal", f"{name}: no order of its operations explains what clients saw")
    for name in verdict.undecided:
        findings.add("nodes_undecided", f"{name}: no order was found in time, and none was ruled out")


def _fewest(operations: Sequence[Operation]) -> int:
    counts = Counter(one.call.name for one in operations if one.call.op in OPS and one.outcome != "unknown")
    return min(counts[name] for name in NODE_NAMES)


def _happened(operations: Sequence[Operation]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in operations:
        if one.call.op == "acquire":
            counts["grants"] += one.outcome == "ok"
            counts["waits"] += one.outcome == "ok" and one.from_s - one.call.at_s > WAIT_S
            counts["given_up"] += one.outcome in {"timeout", "refused"}
            counts["acquires_unknown"] += one.outcome == "unknown"
            counts["lost_leases"] += one.outcome == "lost" or (one.ended is not None and one.ended.lost)
        elif one.call.op == "use":
            counts["refused_stale"] += one.outcome == "refused"
        else:
            counts["node_reads"] += one.call.op == "get"
            counts["node_changes"] += one.call.op != "get" and one.outcome == "ok"
            counts["node_conflicts"] += one.outcome == "refused"
            counts["node_unknown"] += one.outcome == "unknown"
    return dict(counts)
