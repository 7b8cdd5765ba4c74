"""`spark_replay validate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.options import (
    Given,
    dry_run_option,
    failing,
    make_console,
    say_plan,
    source_options,
    spark_for,
    write_json,
)

if TYPE_CHECKING:
    from spark_replay.plans import Plan
    from spark_replay.sources import Source


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
@dry_run_option
def validate(against: Path, json_file: Path | None, dry_run: bool, **options: Any) -> None:
    """Compare exports of the workers' stores with their changelog, key by key.

    The last line on standard output is a JSON object with the counts; the table goes to standard error.

    \b
    faust -A shop -D /var/lib/shop state export spent --to exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop-spent-changelog --against exports
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    given, console = Given.of(options), make_console()
    with failing(), spark_for(given, console) as spark:
        from spark_replay.progress import progress
        from spark_replay.validate import validate_exports

        source = given.source(spark)
        if dry_run:
            say_plan(_plan(source, against), console)
            return
        with progress(spark.sparkContext, console, f"validate {source.topic}"):
            found = validate_exports(source, against=against)
    from spark_replay.report import show

    show(found, console)
    if json_file is not None:
        with failing():
            write_json(json_file, asdict(found) | {"totals": found.totals})
    click.echo(json.dumps(found.totals))
    sys.exit(1 if found.mismatches else 0)


def _plan(source: Source, against: Path) -> Plan:
    from spark_replay.exports import find_exports
    from spark_replay.plans import plan_reading

    exports = find_exports(against, source.topic)
    files = [copy.file for copy in exports.chosen]
    size = sum(file.stat().st_size for file in files)
    also = f"would read {len(files)} exported files of {size:,} bytes in {against}"
    return plan_reading("validate", source, also=also)
