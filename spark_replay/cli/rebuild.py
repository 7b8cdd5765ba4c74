"""`spark_replay rebuild`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.options import Given, Place, failing, running, source_options
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import say
from spark_replay.session import require_pyspark
from spark_replay.sources.staging import table_format
from stores._core.printable import counted

if TYPE_CHECKING:
    from rich.console import Console

    from spark_replay.fold.rebuilt import Rebuilt


@click.command()
@source_options
@click.option(
    "--to",
    required=True,
    type=Place(),
    metavar="DIR",
    help="The folder to write to, or s3a://bucket/folder; or a table, delta:PATH or iceberg:CATALOG.TABLE, which goes "
    "on from what it has.",
)
@click.option(
    "--as-of",
    default="latest",
    show_default=True,
    metavar="POINT",
    help="latest; offset:0=500,1=480 (the first offsets that don't count; partitions left out are read to their end); "
    'offset:@FILE with JSON such as {"0": 500}; timestamp:2026-01-31T12:00:00Z, or Unix milliseconds '
    "(before each partition's first record of this time or later).",
)
@click.option(
    "--app",
    metavar="MODULE[:NAME]",
    help="The app whose changelog this is: its codecs add the columns key_json, row_json and value_json.",
)
@click.option(
    "--from",
    "base",
    type=Place(),
    metavar="DIR",
    help="An earlier rebuild, which may be that in --to: only what the log has behind it is read.",
)
@click.option(
    "--schemas",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The schemas of an Avro store, of `faust schemas export`: adds the column value_columns, read by Spark alone.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing rebuild; of a table, read all of the log.")
def rebuild(
    to: str, as_of: str, app: str | None, base: str | None, schemas: Path | None, overwrite: bool, **options: Any
) -> Outcome:
    """Write the state that a changelog stands for at a point.

    Each row is a key: partition, key, value, source_offset, epoch, expires_at_ms, offset. Deleted keys, and keys that
    had expired at the point, are left out. DIR gets a folder for each partition, and _rebuild.json with counts.

    If a key was written again after the point, compaction may have removed its value at the point. Such keys are left
    out, counted as `unknown` and named. With an archive (see `archive --help`) their value is known.

    The last line on standard output is a JSON object: keys, records, without_metadata, unknown, seconds.

    \b
    python -m spark_replay rebuild --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --to rebuilt
    python -m spark_replay rebuild --archive archive --changelog shop--spent-changelog \\
        --as-of timestamp:2026-01-31T12:00:00Z --app shop --to before-the-incident
    python -m spark_replay rebuild --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --from rebuilt \\
        --to rebuilt --overwrite
    python -m spark_replay rebuild --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --to delta:tables/spent
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    shared = Given.of(options)
    with failing():
        require_pyspark()
        from spark_replay.fold.points import AsOf

        point = AsOf.parse(as_of)
        if schemas is not None:
            if base is not None or table_format(to):
                raise click.UsageError("--schemas goes without --from, and without a table")
            shared = shared.with_avro()
    with running(shared, to, base) as run:
        from spark_replay.fold.rebuild import write_rebuild

        source = run.source()
        with run.progress(f"rebuild {source.topic}"):
            options = {"overwrite": overwrite, "as_of": point, "app": app, "base": base, "schemas": schemas}
            done = write_rebuild(source, to=to, **options)
    _tell(done, run.console)
    return Outcome(totals=done.totals, content=asdict(done))


def _tell(done: Rebuilt, console: Console) -> None:
    lines = list(done.notes)
    if done.without_metadata:
        records = counted(done.without_metadata, "record")
        lines.append(f"without key or write metadata: {records} of {done.changelog}. Run validate")
    if done.undecodable:
        lines.append(f"keys and values that don't decode: {done.undecodable}. Their key_json or value_json is null")
    if done.unknown:
        lines.append(
            f"left out: {counted(done.unknown, 'key')} written again after the point, since compaction may have "
            "removed the value at the point. An archive that was made before the point has them (--archive)"
        )
        lines += [
            f"    unknown: partition {key.partition} key {key.key}, written again at offset {key.later_offset}"
            for key in done.unknown_keys
        ]
    for line in lines:
        say(console, line)
