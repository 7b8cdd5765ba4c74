"""`python -m tests.equivalence`: windows, joins and tables beside Kafka Streams. The last line is JSON."""

from __future__ import annotations

import json
import logging
import sys

import click

from tests.equivalence import join_cases, joins
from tests.equivalence.foreign_cases import foreign_batches, run_foreign
from tests.equivalence.generate import KINDS, batches, every_batches
from tests.equivalence.judge import Judge
from tests.equivalence.suite import run
from tests.equivalence.table_cases import run_tables, table_batches
from tests.equivalence.view_cases import run_views, view_batches

SHOWN = 10
TABLES_OF = 20
"""One case of so many is a join with tables."""
FOREIGN_OF = 4
"""One of so many of these is a join by a foreign key, and one of so many a handler that reads a view."""
EVERY_OF = 20
"""One case of so many is of windows that are emitted once in an interval."""
ALL = (*KINDS, *join_cases.KINDS)


@click.command()
@click.option("--cases", default=2_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--kind", multiple=True, type=click.Choice(ALL), help="Only these windows and joins, no tables and intervals."
)
def main(cases: int, seed: int, kind: tuple[str, ...]) -> None:
    """Give records to both sides, and compare the results."""
    # A record without a key is an error that is wanted here.
    logging.disable()
    chosen = kind or ALL
    windows, joined = (tuple(one for one in kinds if one in chosen) for kinds in (KINDS, join_cases.KINDS))
    of_tables = 0 if kind else cases // TABLES_OF
    of_every = 0 if kind else cases // EVERY_OF
    of_joins = (cases - of_tables - of_every) * len(joined) // len(chosen)
    with Judge.start() as judge:
        outcome = run(judge, batches(seed, cases - of_tables - of_every - of_joins, kinds=windows))
        outcome.add(run(judge, every_batches(seed, of_every)))
        outcome.add(joins.run(judge, join_cases.batches(seed, of_joins, kinds=joined)))
        few = of_tables // FOREIGN_OF
        outcome = run_tables(judge, table_batches(seed, of_tables - 2 * few), outcome)
        outcome = run_foreign(judge, foreign_batches(seed, few), outcome)
        outcome = run_views(judge, view_batches(seed, few), outcome)
    for found in outcome.unexplained[:SHOWN]:
        click.echo(found)
    for name, number in sorted(outcome.known.items()):
        click.echo(f"known: {name}: {number} cases")
    click.echo(json.dumps(outcome.summary()))
    sys.exit(1 if outcome.unexplained else 0)


main()
