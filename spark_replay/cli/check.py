"""`spark_replay check`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.options import (
    Given,
    Run,
    failing,
    json_option,
    running,
    source_options,
    write_json,
)

if TYPE_CHECKING:
    from spark_replay.comparison.invariants import Asked


@click.command()
@source_options
@click.option(
    "--placement",
    type=click.Choice(["key", "task"]),
    default="key",
    show_default=True,
    help="Partitions of the store's keys: those that murmur2 gives them, or any.",
)
@click.option("--put-if-absent", is_flag=True, help="The store is written by put_if_absent only: no key may change.")
@click.option("--outputs", multiple=True, metavar="TOPIC", help="A topic that the actor sends to. May be repeated.")
@click.option("--input", "inputs", multiple=True, metavar="TOPIC", help="A topic that it reads. May be repeated.")
@json_option
def check(json_file: Path | None, **options: Any) -> None:
    """Check the invariants of a changelog, without any worker's state.

    Epochs and input offsets only grow, each key is in its own partition, each record has write metadata, and an owner
    of its partition can have written it. With --put-if-absent no key changes its value. With --outputs each output has
    an input of its key that isn't younger.

    The last line on standard output is a JSON object: violations, and the count of each check.

    \b
    python -m spark_replay check --brokers 127.0.0.1:9092 --changelog shop--seen-changelog --put-if-absent
    python -m spark_replay check --brokers 127.0.0.1:9092 --changelog shop--seen-changelog \\
        --outputs accepted --input orders
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    if bool(options["outputs"]) != bool(options["inputs"]):
        raise click.UsageError("--outputs and --input go together")
    with running(Given.of(options)) as run:
        from spark_replay.comparison.invariants import find_violations, writers
        from spark_replay.comparison.writers import find_foreign

        source = run.source()
        started = time.monotonic()
        with run.progress(f"check {source.topic}"):
            results = (*find_violations(source, source.describe(), _asked(run, options)), writers(find_foreign(source)))
    from spark_replay.comparison.report import SCHEMA
    from spark_replay.report.tables import show_findings

    show_findings(results, run.console)
    totals = {
        "violations": sum(finding.count for finding in results),
        **{finding.check: finding.count for finding in results},
        "seconds": round(time.monotonic() - started, 3),
    }
    if json_file is not None:
        with failing():
            findings = [asdict(finding) for finding in results]
            content = {"schema": SCHEMA, "changelog": source.topic, "findings": findings, "totals": totals}
            write_json(json_file, content)
    click.echo(json.dumps(totals))
    sys.exit(1 if totals["violations"] else 0)


def _asked(run: Run, options: dict[str, Any]) -> Asked:
    from spark_replay.comparison.invariants import Asked

    def sources(names: tuple[str, ...]) -> Any:
        return tuple(replace(run.given, changelog=name).source(run.spark) for name in names)

    return Asked(
        placement=options["placement"],
        put_if_absent=options["put_if_absent"],
        outputs=sources(options["outputs"]),
        inputs=sources(options["inputs"]),
    )
