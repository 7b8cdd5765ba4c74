"""`python -m tests.locks`: the fight for locks in full (`make locks`). The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

import click

from dev.kafka import Cluster
from tests.locks.faults import FAULTS, kill_owner
from tests.locks.harness import run
from tests.locks.world import MODULE


@click.command()
@click.option("--faults", default=12, show_default=True)
@click.option("--only", multiple=True, help="Only these faults, by name.")
@click.option("--module", default=MODULE, show_default=True, help="The owners' app.")
@click.option("--seed", default=None, type=int, help="Replays the choices, not the timing; a run prints its own.")
def main(faults: int, only: tuple[str, ...], module: str, seed: int | None) -> None:
    """Kill owners, stop clients, and see who believed what."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    seed = random.randrange(1 << 32) if seed is None else seed
    chance = random.Random(seed)
    pool = [fault for fault in FAULTS if not only or fault.__name__ in only]
    order = [fault for _ in range(-(-faults // len(pool))) for fault in chance.sample(pool, len(pool))]
    if kill_owner in pool and faults:
        # The locks need the longest to come back from it: the group waits for the dead until their session is over.
        order[faults - 1] = kill_owner
    folder = Path(tempfile.mkdtemp(prefix="locks-"))
    logging.getLogger("locks").info("seed %d; logs and histories are in %s while something is wrong", seed, folder)
    with Cluster.up(folder / "kafka") as cluster:
        outcome = asyncio.run(run(cluster.bootstrap, folder, order[:faults], seed=seed, module=module, calm_s=4.0))
    if not outcome.complaints:
        shutil.rmtree(folder)
    click.echo(json.dumps({**outcome.as_dict(), "seed": seed}))
    sys.exit(1 if outcome.complaints else 0)


main()
