"""For how long partitions give nothing while a worker joins, leaves or is killed: those that stay, and those that move.

    python -m benchmarks.pauses

Two workers share eight partitions, and each partition gets a record every 20 ms. Then a worker joins, leaves (SIGTERM),
another one joins, and that is killed (`kill -9`). A pause is the longest time without an output at a reader, so a
commit interval is in it: `calm_s` has the longest one while nothing changes. `over_calm_s` is by how much the longest
pause of a partition that stayed is longer than that, 0 if it isn't.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from benchmarks.peers.broker import make_topics, start_cluster
from benchmarks.standby import DEADLINE_S, PARTITIONS, QUIET_S, Fleet, Watch

CALM_S = 10.0


@click.command()
def main() -> None:
    """Measure the pauses of rebalances."""
    folder = Path(tempfile.mkdtemp(prefix="pauses-"))
    fleet = Fleet(folder, standbys=0)
    try:
        with start_cluster(folder) as cluster:
            fleet.brokers = cluster.bootstrap
            try:
                report = asyncio.run(_measure(fleet))
            finally:
                fleet.kill_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(json.dumps({"partitions": PARTITIONS, **report}))


async def _measure(fleet: Fleet) -> Mapping[str, object]:
    await make_topics(fleet.brokers, "standby-input", "standby-output", partitions=PARTITIONS)
    alive = {fleet.start(), fleet.start()}
    watch = Watch()
    async with watch.running(fleet.brokers):
        await _settled(fleet, alive)
        began_s = time.time()
        await asyncio.sleep(CALM_S)
        calm_s = max(watch.longest_s(began_s, time.time()).values())
        report: dict[str, object] = {"calm_s": round(calm_s, 3)}

        def join() -> None:
            alive.add(fleet.start())

        def end(how: Callable[[int], None]) -> None:
            last = max(alive)
            alive.remove(last)
            how(last)

        changes: Iterable[tuple[str, Callable[[], None]]] = (
            ("join", join),
            ("leave", lambda: end(fleet.terminate)),
            ("join_again", join),
            ("kill", lambda: end(fleet.kill)),
        )
        for name, change in changes:
            began_s = time.time()
            await asyncio.to_thread(change)
            await _settled(fleet, alive)
            moved = {partition for at_s, _, partition in fleet.events() if at_s >= began_s}
            report[name] = compared(watch.longest_s(began_s, time.time()), moved, calm_s)
    return report


def compared(longest_s: Mapping[int, float], moved: Iterable[int], calm_s: float) -> dict[str, object]:
    """Return the longest pauses of partitions that stayed and of those that moved; 0 where there is none."""
    moved = set(moved)
    stayed_s = [pause for partition, pause in longest_s.items() if partition not in moved]
    moved_s = [pause for partition, pause in longest_s.items() if partition in moved]
    longest = max(stayed_s, default=0.0)
    return {
        "stayed": len(stayed_s),
        "stayed_s": round(longest, 3),
        "over_calm_s": round(max(0.0, longest - calm_s), 3),
        "moved": len(moved_s),
        "moved_s": round(max(moved_s, default=0.0), 3),
    }


async def _settled(fleet: Fleet, alive: set[int]) -> None:
    """Wait until these workers have all partitions, evenly, and nothing has moved for a while."""
    before, since_s = -1, time.monotonic()
    deadline_s = since_s + DEADLINE_S
    while time.monotonic() < deadline_s:
        owners, takeovers = fleet.owners(), len(list(fleet.events()))
        owned = Counter(owners.values())
        is_even = len(owners) == PARTITIONS and all(owned[number] >= PARTITIONS // len(alive) for number in alive)
        if not (is_even and owned.keys() == alive) or takeovers != before:
            before, since_s = takeovers, time.monotonic()
        elif time.monotonic() - since_s > QUIET_S:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the group didn't settle: {owned}")


if __name__ == "__main__":
    main()
