"""`python -m tests.inhand`: the run with everything in hand (`make inhand`). The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from dev.kafka import Cluster
from tests.inhand.faults import FAULTS
from tests.inhand.harness import run


@click.command()
@click.option("--inputs", default=3_000, show_default=True, help="Of each topic.")
@click.option("--faults", default=14, show_default=True)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="The last one has two processes if there are several.",
)
@click.option("--only", multiple=True, help="Only these faults, by name.")
@click.option("--seed", default=None, type=int, help="Replays the order of faults; a run prints its own.")
def main(inputs: int, faults: int, workers: int, only: tuple[str, ...], seed: int | None) -> None:
    """Stop, move and kill workers that have everything in hand, and count."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    seed = random.randrange(1 << 32) if seed is None else seed
    # As an interrupt does: the broker and the workers end with the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="inhand-"))
    logging.getLogger("inhand").info("seed %d; logs and data are in %s, and stay if something is wrong", seed, folder)
    chance = random.Random(seed)
    supervised = workers > 1
    pool = [fault for fault in FAULTS if not only or fault.__name__ in only]
    pool = [fault for fault in pool if supervised or fault.__name__ != "roll"]
    order = [fault for _ in range(-(-faults // len(pool))) for fault in chance.sample(pool, len(pool))][:faults]
    with Cluster.up(folder / "kafka") as cluster:
        outcome = asyncio.run(
            run(
                cluster.bootstrap,
                folder,
                order,
                inputs=inputs,
                seed=seed,
                workers=workers,
                supervised=supervised,
                cluster=cluster,
            )
        )
    if outcome.is_clean:
        shutil.rmtree(folder)
    for line in outcome.table():
        click.echo(line)
    click.echo(json.dumps({**outcome.as_dict(), "seed": seed}))
    sys.exit(0 if outcome.is_clean else 1)


main()
