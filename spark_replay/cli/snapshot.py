"""`spark_replay snapshot`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.options import (
    Given,
    LocalFolder,
    Pair,
    log_options,
    running,
)
from spark_replay.cli.outcome import Outcome
from spark_replay.errors import ReadError
from spark_replay.printing import say

if TYPE_CHECKING:
    from spark_replay.sources.kafka import KafkaSource


@click.command()
@log_options
@click.option("--app", required=True, metavar="ID", help="The app of the changelog; with --publish, of the new one.")
@click.option(
    "--to",
    required=True,
    type=LocalFolder(),
    metavar="DIR",
    help="The snapshot is written to DIR/STORE. Driver, executors and workers have to reach DIR.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing snapshot of the store.")
@click.option(
    "--publish", metavar="TOPIC", help="Write the state to this new changelog first, and make the snapshot of it."
)
@click.option("--publish-brokers", metavar="HOST:PORT,…", help="The cluster of TOPIC. Default: --brokers.")
@click.option(
    "--publish-partitions",
    type=click.IntRange(1),
    help="The number of partitions of TOPIC. Default: as many as the changelog.",
)
@click.option(
    "--publish-kafka-option",
    multiple=True,
    type=Pair(),
    help="A setting of the Kafka client for --publish-brokers. Default: those of --brokers. May be repeated.",
)
@click.option(
    "--placed-by-key",
    is_flag=True,
    help="Confirm that the store doesn't have placement=\"task\": a changelog of one partition doesn't show it.",
)
def snapshot(app: str, to: Path, overwrite: bool, publish: str | None, **options: Any) -> Outcome:
    """Write a snapshot of a store's state, so that a worker with an empty disk reads only the changelog's tail.

    Set `state_snapshot`, or STATE_SNAPSHOT in the environment, to DIR on the workers. A snapshot is valid for as long
    as the changelog keeps deletes (delete.retention.ms, one day by default).

    --publish copies the state to another cluster, or to another number of partitions: stop the app's workers, create
    the new input topic, publish, and start workers on it. See the documentation's page 'Snapshots'.

    The last line on standard output is a JSON object: keys, records, without_metadata, size_bytes, seconds.

    \b
    python -m spark_replay snapshot --brokers 127.0.0.1:9092 --app shop --changelog shop--spent-changelog \\
        --to /mnt/snapshots
    STATE_SNAPSHOT=/mnt/snapshots faust -A shop worker
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    if options["brokers"] is None:
        raise click.UsageError("a snapshot is made from the brokers' log: give --brokers")
    shared = Given.of(options)
    with running(shared) as run:
        from spark_replay.snapshot.snapshot import require_store, write_snapshot
        from spark_replay.sources.kafka import kafka
        from spark_replay.sources.staging import require_replaceable
        from stores._core.snapshot import SNAPSHOT_MANIFEST

        source = kafka(run.spark, options["brokers"], shared.changelog, shared.client(run.spark))
        store = require_store(publish or source.topic, app)
        require_replaceable(to / store, SNAPSHOT_MANIFEST, "snapshot", overwrite=overwrite)
        keys = None
        if publish is not None:
            with run.progress(f"publish {source.topic} to {publish}"):
                source, keys = _published(source, publish, options)
        with run.progress(f"snapshot of {source.topic}"):
            done = write_snapshot(source, app=app, to=to, overwrite=overwrite)
        if keys is not None and keys != done.keys:
            raise ReadError(f"{keys} keys were written to {done.changelog}, and {done.keys} are in it: delete it")
    if done.without_metadata:
        say(run.console, f"{done.without_metadata} records of {done.changelog} have no write metadata: run validate")
    return Outcome(totals=asdict(done))


def _published(source: KafkaSource, topic: str, options: dict[str, Any]) -> tuple[KafkaSource, int]:
    from spark_replay.snapshot.publish import publish_state
    from spark_replay.sources.kafka import kafka

    target = kafka(
        source.spark,
        options["publish_brokers"] or source.brokers,
        topic,
        dict(options["publish_kafka_option"]) or source.options,
    )
    keys = publish_state(
        source,
        target,
        partitions=options["publish_partitions"],
        placed_by_key=options["placed_by_key"],
    )
    return target, keys
