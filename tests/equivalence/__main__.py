"""`python -m tests.equivalence`: windows beside Kafka Streams, case by case. The last line is JSON."""

from __future__ import annotations

import json
import sys

import click

from tests.equivalence.generate import KINDS, batches
from tests.equivalence.judge import Judge
from tests.equivalence.suite import run

SHOWN = 10


@click.command()
@click.option("--cases", default=2_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--kind", multiple=True, type=click.Choice(KINDS), help="Only these.")
def main(cases: int, seed: int, kind: tuple[str, ...]) -> None:
    """Give records to both sides, and compare the results."""
    with Judge.start() as judge:
        outcome = run(judge, batches(seed, cases, kinds=kind or KINDS))
    for found in outcome.unexplained[:SHOWN]:
        click.echo(found)
    for name, number in sorted(outcome.known.items()):
        click.echo(f"known: {name}: {number} cases")
    click.echo(json.dumps(outcome.summary()))
    sys.exit(1 if outcome.unexplained else 0)


main()
