"""`spark_replay publish`."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from spark_replay.cli.options import POINT, Given, Pair, Place, running, source_options
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import say


@click.command()
@partial(source_options, required=False)
@click.option(
    "--app",
    metavar="MODULE[:APP]",
    help="In place of --changelog: all of this app's state, with --partitions. Each row goes with its message's key.",
)
@click.option(
    "--to", required=True, metavar="TOPIC", help="The new changelog, APP--STORE-changelog; with --app the new app's id."
)
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
    multiple=True,
    metavar="[STORE=]MODULE:FUNCTION",
    help="A function that Spark's executors call with each key and value, in bytes. It returns those to write, or None "
    "to leave the key out. With --app name the store; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing: show what would be written, and each reason against it.")
def publish(to: str, app: str | None, rebuild: str | None, transform: tuple[str, ...], **options: Any) -> Outcome:
    """Write a state into a new changelog: on another cluster, with other partitions, or corrected.

    Stop the app's workers first, unless the state is that of a point, an archive or a rebuild. The new changelog is
    read back, and compared with what was written. See the documentation's page 'Snapshots'.

    The last line on standard output is a JSON object: topic, partitions, keys, size_bytes, left_out, refused, notes;
    with --app the sums, and with --json too each changelog's. The exit code of a dry run is 2 if anything is refused.

    \b
    python -m spark_replay publish --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --to shop2--spent-changelog --partitions 16 --dry-run
    python -m spark_replay publish --brokers 127.0.0.1:9092 --app shop --to shop2 --partitions 16
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    shared = Given.of(options)
    brokers = options["to_brokers"] or shared.brokers
    if brokers is None:
        raise click.UsageError("a topic is written to brokers: give --to-brokers, or --brokers")
    if rebuild is not None and (shared.archive is not None or options["as_of"] != "latest"):
        raise click.UsageError("--rebuild goes without --archive and --as-of: it has a point of its own")
    single: dict[str, Any] = {"rebuild": rebuild, "layout": "key" if options["placed_by_key"] else None}
    functions = {store: function for store, _, function in (text.rpartition("=") for text in transform)}
    is_whole = app is not None and options["partitions"] is not None and not any(single.values())
    if is_whole == bool(shared.changelog) or is_whole == (app is None):
        raise click.UsageError("give --changelog, or --app with --partitions and without options of single changelogs")
    if len(functions) < len(transform) or not all(bool(store) == is_whole for store in functions):
        raise click.UsageError("--transform takes MODULE:FUNCTION once; with --app STORE=MODULE:FUNCTION, once a store")
    with running(shared, rebuild) as run:
        from spark_replay.apps import load_function
        from spark_replay.snapshot.publish import publish_app, publish_state
        from spark_replay.sources.kafka import kafka

        client = shared.client(run.spark)
        target = kafka(run.spark, brokers, to, dict(options["to_kafka_option"]) or client)
        transforms = {store: load_function(function) for store, function in functions.items()}
        common: dict[str, Any] = {name: options[name] for name in ("as_of", "partitions", "dry_run")}
        with run.progress(f"publish {app or shared.changelog} to {to}"):
            if app is not None:
                is_live = shared.brokers is not None and options["as_of"] == "latest"
                live = kafka(run.spark, shared.brokers or brokers, to, client) if is_live else None
                common |= {"live": live, "transforms": transforms}
                done = publish_app(lambda log: replace(shared, changelog=log).source(run.spark), target, app, **common)
            else:
                single["transform"] = transforms.get("")
                done = (publish_state(run.source(), target, **single, **common),)
    notes, refused = ([text for part in done for text in getattr(part, name)] for name in ("notes", "refused"))
    for note in notes:
        say(run.console, note)
    sums = {name: sum(getattr(part, name) for part in done) for name in ("keys", "size_bytes", "left_out")}
    totals = {"topic": to, "partitions": done[0].partitions, **sums, "refused": refused, "notes": notes}
    content = {} if app is None else {"changelogs": [asdict(part) for part in done]}
    return Outcome(totals=totals, content=content, error="; ".join(refused) or None)
