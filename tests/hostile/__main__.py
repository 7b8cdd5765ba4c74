"""`python -m tests.hostile`: all attacks at once for a minute (`make hostile`). The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from dev.kafka import Cluster
from tests.hostile.harness import run


@click.command()
@click.option("--seconds", default=60.0, show_default=True)
def main(seconds: float) -> None:
    """Attack a worker, and count."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    logging.getLogger("hostile").info("the worker's log is in %s", folder)
    with Cluster.up(folder / "kafka") as cluster:
        outcome = asyncio.run(run(cluster.bootstrap, folder, seconds=seconds))
    click.echo(json.dumps(asdict(outcome)))
    sys.exit(0 if outcome.clean and outcome.fast else 1)


main()
