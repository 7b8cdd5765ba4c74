"""`spark_replay publish`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from spark_replay.cli.options import POINT, Given, Pair, Place, running, source_options
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import say


@click.command()
@source_options
@click.option("--to", "topic", required=True, metavar="TOPIC", help="The new changelog, APP--STORE-changelog.")
@click.option("--to-brokers", metavar="HOST:PORT,…", help="The cluster of TOPIC. Default: --brokers.")
@click.option(
    "--to-kafka-option",
    multiple=True,
    type=Pair(),
    help="A setting of the Kafka client for --to-brokers. Default: those of --brokers. May be repeated.",
)
@click.option("--partitions", type=click.IntRange(1), help="Those of TOPIC. Default: as many as the changelog.")
@click.option("--placed-by-key", is_flag=True, help='The store has no placement="task": one partition can\'t show it.')
@click.option("--as-of", default="latest", show_default=True, metavar="POINT", help=POINT)
@click.option("--rebuild", type=Place(), metavar="DIR", help="Write the state of this rebuild of the changelog.")
@click.option(
    "--transform",
    metavar="MODULE:FUNCTION",
    help="A function that Spark's executors call with each key and value, in bytes. It returns those to write, or None "
    "to leave the key out.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing: show what would be written, and each reason against it.")
def publish(topic: str, rebuild: str | None, transform: str | None, **options: Any) -> Outcome:
    """Write a state into a new changelog: on another cluster, with other partitions, or corrected.

    Stop the app's workers first, unless the state is that of a point, an archive or a rebuild. The new changelog is
    read back, and compared with what was written. See the documentation's page 'Snapshots'.

    The last line on standard output is a JSON object: topic, partitions, keys, size_bytes, left_out, refused, notes.
    The exit code of a dry run is 2 if anything is refused.

    \b
    python -m spark_replay publish --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --to shop2--spent-changelog --partitions 16 --dry-run
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    shared = Given.of(options)
    brokers = options["to_brokers"] or shared.brokers
    if brokers is None:
        raise click.UsageError("a topic is written to brokers: give --to-brokers, or --brokers")
    if rebuild is not None and (shared.archive is not None or options["as_of"] != "latest"):
        raise click.UsageError("--rebuild goes without --archive and --as-of: it has a point of its own")
    with running(shared, rebuild) as run:
        from spark_replay.apps import load_function
        from spark_replay.snapshot.publish import publish_state
        from spark_replay.sources.kafka import kafka

        client = dict(options["to_kafka_option"]) or shared.client(run.spark)
        with run.progress(f"publish {shared.changelog} to {topic}"):
            done = publish_state(
                run.source(),
                kafka(run.spark, brokers, topic, client),
                rebuild=rebuild,
                transform=None if transform is None else load_function(transform),
                **{name: options[name] for name in ("as_of", "partitions", "placed_by_key", "dry_run")},
            )
    for note in done.notes:
        say(run.console, note)
    return Outcome(totals=asdict(done), error="; ".join(done.refused) or None)
