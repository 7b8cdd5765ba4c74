"""`python -m spark_replay`: the commands, one module each."""

from __future__ import annotations

import click

from spark_replay.cli.archive import archive
from spark_replay.cli.check import check
from spark_replay.cli.profile import profile
from spark_replay.cli.rebuild import rebuild
from spark_replay.cli.recompute import recompute
from spark_replay.cli.snapshot import snapshot
from spark_replay.cli.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Archive changelogs with Spark, rebuild state from them at any point, and validate it key by key.

    `archive` keeps the history that compaction takes. `rebuild` writes the state at a point in it. `validate` compares
    what the workers hold with their changelog. `check` looks at the log alone. `recompute` compares the changelog with
    what the app's handlers make of the input. `profile` shows how large, skewed and old a changelog is. `snapshot`
    makes files from which workers start. Each has --dry-run.

    Exit codes: 0 all is well, 1 mismatches were found, 2 the question could not be answered.
    """


for command in (archive, check, profile, rebuild, recompute, snapshot, validate):
    main.add_command(command)
