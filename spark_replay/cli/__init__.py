"""`python -m spark_replay`: the commands, one module each."""

from __future__ import annotations

import click

from spark_replay.cli.rebuild import rebuild
from spark_replay.cli.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rebuild state from a compacted changelog with Spark, and validate it key by key.

    Exit codes: 0 all is well, 1 mismatches were found, 2 the question could not be answered.
    """


for command in (rebuild, validate):
    main.add_command(command)
