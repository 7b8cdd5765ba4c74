"""`spark_replay snapshot`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from spark_replay.cli.options import Given, Place, broker_options, running
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import say
from stores._core.printable import counted


@click.command()
@broker_options
@click.option("--changelog", required=True, metavar="TOPIC", help="The changelog, APP--STORE-changelog.")
@click.option("--app", required=True, metavar="ID", help="The app of the changelog.")
@click.option(
    "--to",
    required=True,
    type=Place(),
    metavar="DIR",
    help="The snapshot is written to DIR/STORE: a folder that driver, executors and workers reach, or "
    "s3a://bucket/folder.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing snapshot of the store.")
def snapshot(app: str, to: str, overwrite: bool, **options: Any) -> Outcome:
    """Write a snapshot of a store's state, so that a worker with an empty disk reads only the changelog's tail.

    Set `state_snapshot`, or STATE_SNAPSHOT in the environment, to DIR on the workers. A snapshot is valid for as long
    as the changelog keeps deletes (delete.retention.ms, one day by default).

    The last line on standard output is a JSON object: keys, records, without_metadata, size_bytes, seconds.

    \b
    python -m spark_replay snapshot --brokers 127.0.0.1:9092 --app shop --changelog shop--spent-changelog \\
        --to /mnt/snapshots
    STATE_SNAPSHOT=/mnt/snapshots faust -A shop worker
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    shared = Given.of(options)
    with running(shared, to) as run:
        from spark_replay.snapshot.snapshot import write_snapshot
        from spark_replay.sources.kafka import kafka

        source = kafka(run.spark, options["brokers"], shared.changelog, shared.client(run.spark))
        with run.progress(f"snapshot of {source.topic}"):
            done = write_snapshot(source, app=app, to=to, overwrite=overwrite)
    if done.without_metadata:
        records = counted(done.without_metadata, "record")
        say(run.console, f"without write metadata: {records} of {done.changelog}. Run validate")
    return Outcome(totals=asdict(done))
