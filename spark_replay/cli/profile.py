"""`spark_replay profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from spark_replay.cli.options import (
    Given,
    command_line,
    dry_run_option,
    failing,
    html_option,
    make_console,
    require_writable,
    say_plan,
    source_options,
    spark_for,
    write_json,
)


@click.command()
@source_options
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the profile here.")
@html_option
@dry_run_option
def profile(json_file: Path | None, html_file: Path | None, dry_run: bool, **options: Any) -> None:
    """Show what a changelog looks like.

    Keys, bytes, records and tombstones of each partition, how unevenly they are spread, the largest keys, how old keys
    are, and what was written when and by which owner. The log is read twice.

    The last line on standard output is a JSON object with the sums.

    \b
    python -m spark_replay profile --brokers 127.0.0.1:9092 --changelog shop-spent-changelog --html spent.html
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    given, console = Given.of(options), make_console()
    with failing():
        require_writable(html_file)
        with spark_for(given, console) as spark:
            from spark_replay.report.profile import profile_log, show_profile
            from spark_replay.report.progress import progress

            source = given.source(spark)
            if dry_run:
                from spark_replay.report.plans import plan_reading

                say_plan(plan_reading("profile", source, also="would read it twice"), console)
                return
            with progress(spark.sparkContext, console, f"profile {source.topic}"):
                found = profile_log(source)
        show_profile(found, console)
        if json_file is not None:
            write_json(json_file, found.as_json)
        if html_file is not None:
            from spark_replay.report.html import Made, render_profile, write_page

            made = Made(command=command_line(click.get_current_context()), source=found.source)
            write_page(html_file, render_profile(found, made=made))
    click.echo(json.dumps(found.totals))
