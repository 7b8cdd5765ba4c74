"""`python -m tests.names`: the fault run over names in full. The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from dev.kafka import Cluster
from tests.names.faults import FAULTS
from tests.names.harness import run


@click.command()
@click.option("--faults", default=30, show_default=True)
@click.option("--only", multiple=True, help="Only these faults, by name.")
@click.option("--seed", default=None, type=int, help="Replays the order of faults; a run prints its own.")
def main(faults: int, only: tuple[str, ...], seed: int | None) -> None:
    """Have names mean other things, follow the errors, and count."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    seed = random.randrange(1 << 32) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="names-"))
    logging.getLogger("names").info("seed %d; workers' logs are in %s, and stay if something is wrong", seed, folder)
    pool = [fault for fault in FAULTS if not only or fault.__name__ in only]
    with Cluster.up(folder / "kafka") as cluster:
        outcome = asyncio.run(run(cluster, folder, seed=seed, faults=faults, pool=pool))
    if not outcome.wrong:
        shutil.rmtree(folder)
    click.echo(json.dumps({**asdict(outcome), "seed": seed}))
    sys.exit(1 if outcome.wrong else 0)


main()
