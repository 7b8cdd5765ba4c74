"""`faust init NAME`: a new project with an app, its tests, and the files that build, deploy and run it."""

from __future__ import annotations

from pathlib import Path

import click

from actors.cli.init.scaffold import TEMPLATES, make_project
from actors.cli.session import one_line_errors


@click.command("init")
@click.argument("name", metavar="NAME")
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    default=TEMPLATES[0],
    show_default=True,
    help="What the app does at first.",
)
def init(name: str, template: str) -> None:
    """Make a project in the new folder NAME: an app, its tests, and files for packaging, Docker and CI.

    \b
    run-once  runs the first of many equal commands and ignores the repeats
    join      joins two streams within a time, and reports what has no match
    window    sums up values per key and minute
    locks     does one job at a time on each resource
    jobs      runs jobs with retries, limits, status and cancel
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    with one_line_errors():
        make_project(Path.cwd(), name, template)
    click.echo(
        f"Made {name} from the template {template}. Its tests need no broker:\n\n"
        f"    cd {name}\n"
        "    python -m unittest\n\n"
        f"{name}/README.md says how to run it."
    )
