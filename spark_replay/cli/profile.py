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
    html_option,
    json_option,
    require_writable,
    running,
    say_plan,
    source_options,
    write_json,
)


@click.command()
@source_options
@json_option
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
    require_writable(html_file)
    with running(Given.of(options)) as run:
        from spark_replay.report.plans import plan_reading
        from spark_replay.report.profile import profile_log, show_profile

        source = run.source()
        if dry_run:
            say_plan(plan_reading("profile", source, also="would read it twice"), run.console)
            return
        with run.progress(f"profile {source.topic}"):
            found = profile_log(source)
        show_profile(found, run.console)
        if json_file is not None:
            write_json(json_file, found.as_json)
        if html_file is not None:
            from spark_replay.report.html import Made, render_profile, write_page

            made = Made(command=command_line(click.get_current_context()), source=found.source)
            write_page(html_file, render_profile(found, made=made))
    click.echo(json.dumps(found.totals))
