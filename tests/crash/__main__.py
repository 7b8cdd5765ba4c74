"""`python -m tests.crash`: the crash run in full (`make crash`). The last line is JSON."""

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
from tests.crash.faults import FAULTS, STREAMS
from tests.crash.harness import run
from tests.crash.validate import validate_stores
from tests.crash.world import PARTITIONS


@click.command()
@click.option("--inputs", default=300_000, show_default=True)
@click.option("--faults", default=20, show_default=True)
@click.option("--rate", default=1000.0, show_default=True, help="Inputs per second.")
@click.option(
    "--partitions", default=PARTITIONS, show_default=True, help="Of each topic but those of windows, joins and tables."
)
@click.option("--brokers", type=click.IntRange(min=3), default=3, show_default=True)
@click.option("--streams", is_flag=True, help="Kafka Streams does the first actor's work, for comparison.")
@click.option("--only", multiple=True, help="Only these faults, by name.")
@click.option("--seed", default=None, type=int, help="Replays the order of faults; a run prints its own.")
def main(
    inputs: int,
    faults: int,
    rate: float,
    partitions: int,
    brokers: int,
    streams: bool,
    only: tuple[str, ...],
    seed: int | None,
) -> None:
    """Kill, pause, corrupt, and count."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    seed = random.randrange(1 << 32) if seed is None else seed
    logging.getLogger("crash").info("seed %d", seed)
    # As an interrupt does: a fault undoes what it did to the machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chance = random.Random(seed)
    pool = [fault for fault in (STREAMS if streams else FAULTS) if not only or fault.__name__ in only]
    order = [fault for _ in range(-(-faults // len(pool))) for fault in chance.sample(pool, len(pool))]
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    logging.getLogger("crash").info("logs and data are in %s, and stay there if something is wrong", folder)
    cluster, is_clean = Cluster.up(folder / "kafka", brokers=brokers), False
    try:
        outcome = asyncio.run(
            run(
                cluster,
                folder,
                order[:faults],
                inputs=inputs,
                rate=rate,
                seed=seed,
                partitions=partitions,
                is_streams=streams,
            )
        )
        spark_mismatches = 0 if streams else validate_stores(cluster.bootstrap, folder)
        is_clean = outcome.clean and spark_mismatches == 0
    finally:
        # What the brokers hold is the evidence.
        cluster.down(delete=is_clean)
    if is_clean:
        shutil.rmtree(folder)
    click.echo(json.dumps({**outcome.as_dict(), "spark_mismatches": spark_mismatches, "seed": seed}))
    sys.exit(0 if is_clean else 1)


main()
