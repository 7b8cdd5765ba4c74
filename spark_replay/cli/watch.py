"""`spark_replay watch`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.archive import Interval, stopping
from spark_replay.cli.options import (
    Given,
    Place,
    failing,
    live_options,
    open_workers,
    placement_option,
    running,
    source_options,
)
from spark_replay.cli.outcome import Outcome
from spark_replay.cli.validate import unanswered
from spark_replay.errors import ReplayError
from spark_replay.printing import say
from stores._core.printable import counted

if TYPE_CHECKING:
    from rich.console import Console

    from spark_replay.comparison.report import Report
    from spark_replay.comparison.watching import Watch

PREFIX = "faust_actors_watch_"
METRICS = {
    "mismatches": "Keys that differ between the workers and the changelog, and records that no owner can have written.",
    "compared_keys": "Keys that the last comparison could judge.",
    "unanswered_partitions": "Partitions whose owner gave no answer.",
    "seconds": "How long the last comparison took.",
    "compared_timestamp_seconds": "When the last comparison ended, in Unix time; only of one of all partitions.",
}
"""The gauges that `--metrics` writes."""


@click.command()
@source_options
@click.option("--live", required=True, metavar="URL,…", help="Running workers, asked through their query API.")
@live_options
@click.option("--store", required=True, metavar="NAME", help="The store.")
@placement_option()
@click.option(
    "--state",
    "folder",
    required=True,
    type=Place(),
    metavar="DIR",
    help="Where the rebuilt state is kept, a folder or s3a://bucket/folder: a later run goes on from there.",
)
@click.option("--once", is_flag=True, help="Compare once.")
@click.option(
    "--every", "every_ms", type=Interval(), metavar="TIME", help="Compare every 30s, 5m or 1h, until stopped."
)
@click.option(
    "--metrics",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write metrics here after each comparison, as the node exporter's textfile collector reads them (.prom).",
)
def watch(
    live: str,
    store: str,
    placement: str,
    folder: str,
    once: bool,
    every_ms: int | None,
    metrics: Path | None,
    **options: Any,
) -> Outcome:
    """Compare running workers with their changelog, again and again, at the price of what was written since.

    Each owner makes digests of its rows by bucket, at a position of its own. The state in DIR is extended to these
    positions, and gets the same digests. Only of a bucket that differs the rows are read; the keys that differ are
    named with both values, the offset in the changelog, and the cause. Records behind a position are checked, as
    `validate` does.

    With --every the command runs until SIGTERM or Ctrl-C, and ends after the comparison in progress, with the exit code
    of the last one. A comparison without an answer is made again at the next time.

    Exit codes: 0 equal, 1 mismatches, or records that no owner can have written, 2 no answer, or not for all
    partitions and the others are equal.

    \b
    python -m spark_replay watch --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --live http://127.0.0.1:6066 --store spent --state /var/lib/watch/spent --every 30s
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    if once == (every_ms is not None):
        raise click.UsageError("say for how long: --once, or --every 30s")
    given = Given.of(options)
    with failing(), open_workers(live, options) as workers, running(given, folder) as run, stopping() as stop:
        from spark_replay.comparison.watching import Watch

        watch = Watch(source=run.source(), workers=workers, store=store, folder=folder, placement=placement)
        while True:
            began_s = time.monotonic()
            outcome = _compared(watch, metrics, run.console)
            left_s = 0 if every_ms is None else began_s + every_ms / 1000 - time.monotonic()
            if once or stop.wait(max(0, left_s)):
                return outcome


def _compared(watch: Watch, metrics: Path | None, console: Console) -> Outcome:
    from spark_replay.report.tables import show

    try:
        report = watch.compare()
    except ReplayError as problem:
        say(console, f"no answer: {problem}")
        return Outcome(error=str(problem))
    if metrics is not None:
        write_metrics(metrics, report, watch.store)
    error = unanswered(report, 0) if report.is_clean else None
    if report.is_clean and error is None:
        for line in (
            *report.notes,
            f"equal: {counted(report.compared, 'key')} of {report.changelog}, in {report.seconds:.1f} s",
        ):
            say(console, line)
    else:
        show(report, console)
    return Outcome(totals=report.totals, content=asdict(report), differs=not report.is_clean, error=error)


def write_metrics(file: Path, report: Report, store: str) -> None:
    """Replace the file with the metrics of a comparison."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    values: dict[str, float] = {
        "mismatches": report.mismatches + report.violations,
        "compared_keys": report.compared,
        "unanswered_partitions": len(report.unanswered),
        "seconds": report.seconds,
    }
    if not report.unanswered:
        values["compared_timestamp_seconds"] = time.time()
    registry = CollectorRegistry()
    for name, value in values.items():
        gauge = Gauge(PREFIX + name, METRICS[name], ("app", "store"), registry=registry)
        gauge.labels(report.changelog.partition("--")[0], store).set(value)
    write_to_textfile(str(file), registry)
