"""`spark_replay rebuild`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from spark_replay.cli.options import Given, failing, make_console, source_options, spark_for


@click.command()
@source_options
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write Parquet to.",
)
@click.option("--overwrite", is_flag=True, help="Replace a rebuild that is there.")
def rebuild(to: Path, overwrite: bool, **options: Any) -> None:
    """Write the state that a changelog stands for as Parquet.

    The last line on standard output is a JSON object: keys, records, unstamped, seconds.
    """
    given, console = Given.of(options), make_console()
    with failing(), spark_for(given, console) as spark:
        from spark_replay.progress import progress
        from spark_replay.rebuild import require_free, write_rebuild

        require_free(to, overwrite=overwrite)
        source = given.source(spark)
        with progress(spark.sparkContext, console, f"rebuild {source.topic}"):
            done = write_rebuild(source, to=to, overwrite=overwrite)
    if done.unstamped:
        console.print(f"{done.unstamped} records of {done.changelog} have no key or no stamp: run validate")
    totals = {name: getattr(done, name) for name in ("keys", "records", "unstamped", "seconds")}
    click.echo(json.dumps(totals))
