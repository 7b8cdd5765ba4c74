"""`python -m spark_replay`: the commands, one module each."""

from __future__ import annotations

import click

from spark_replay.cli.archive import archive
from spark_replay.cli.explain import explain
from spark_replay.cli.outcome import Commands
from spark_replay.cli.publish import publish
from spark_replay.cli.rebuild import rebuild
from spark_replay.cli.recompute import recompute
from spark_replay.cli.snapshot import snapshot
from spark_replay.cli.validate import validate
from spark_replay.cli.watch import watch


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Archive changelogs with Spark, rebuild state from them at any point, and validate it key by key.

    `archive` keeps the history that compaction removes. `rebuild` writes the state at a point in the log. `validate`
    compares the workers' state with the changelog, and checks the invariants of the log. `recompute` runs the app's
    handlers over the input and compares the result with the changelog. `explain` shows one key's history. `publish`
    writes a state into a new changelog. `snapshot` writes files from which workers start. `watch` keeps
    a rebuilt state, and compares the workers with it again and again.

    Exit codes: 0 equal, or done; 1 mismatches; 2 the question couldn't be answered, or not for all partitions.
    """


for command in (archive, explain, publish, rebuild, recompute, snapshot, validate, watch):
    main.add_command(command)
