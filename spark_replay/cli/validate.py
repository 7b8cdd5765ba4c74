"""`spark_replay validate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from spark_replay.cli.options import Given, failing, make_console, source_options, spark_for, write_json


@click.command()
@source_options
@click.option(
    "--against",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder that the workers exported to.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the report here.")
def validate(against: Path, json_file: Path | None, **options: Any) -> None:
    """Compare exports of the workers' stores with their changelog, key by key.

    The last line on standard output is a JSON object with the counts; the table goes to standard error.
    """
    given, console = Given.of(options), make_console()
    with failing(), spark_for(given, console) as spark:
        from spark_replay.progress import progress
        from spark_replay.validate import validate_exports

        source = given.source(spark)
        with progress(spark.sparkContext, console, f"validate {source.topic}"):
            found = validate_exports(source, against=against)
    from spark_replay.report import show

    show(found, console)
    if json_file is not None:
        with failing():
            write_json(json_file, asdict(found) | {"totals": found.totals})
    click.echo(json.dumps(found.totals))
    sys.exit(1 if found.mismatches else 0)
