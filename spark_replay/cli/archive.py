"""`spark_replay archive`."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import click

from spark_replay.cli.options import Given, Place, broker_options, running
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import say

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class Interval(click.ParamType):
    """`60s`, `5m`, `1h` or `500ms`, as milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read number and unit."""
        match = re.fullmatch(r"(\d+)(ms|s|m|h)", str(value))
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} isn't a time such as 60s, 5m, 1h or 500ms", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


class Pattern(click.ParamType):
    """A regular expression."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        """Compile it."""
        try:
            return re.compile(str(value))
        except re.error as error:
            self.fail(f"{value!r} isn't a regular expression: {error}", param, ctx)


@click.command()
@broker_options
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="A topic to archive. May be repeated.")
@click.option(
    "--topic-pattern",
    type=Pattern(),
    metavar="REGEX",
    help="Archive all topics whose whole name matches, also those that are created later.",
)
@click.option("--to", required=True, type=Place(), metavar="DIR", help="The archive: a folder, or s3a://bucket/folder.")
@click.option("--once", is_flag=True, help="Exit when everything is archived that was committed at the start.")
@click.option(
    "--every", "every_ms", type=Interval(), metavar="TIME", help="Keep running, with a batch every 60s, 5m or 1h."
)
@click.option(
    "--max-offsets-per-trigger",
    type=click.IntRange(min=1),
    metavar="N",
    help="A batch takes about N offsets at most, of all topics together: bounds the memory and time of the first one.",
)
@click.option(
    "--compact",
    is_flag=True,
    help="Also rewrite small files as larger ones: at the end; with --every, when there are many.",
)
def archive(
    topics: tuple[str, ...],
    topic_pattern: re.Pattern[str] | None,
    to: str,
    once: bool,
    every_ms: int | None,
    max_offsets_per_trigger: int | None,
    compact: bool,
    **options: Any,
) -> Outcome:
    """Copy topics to Parquet, so that their history outlives compaction and retention.

    Works for changelogs and any other topic. Each committed record is written once, however often the command is
    stopped, killed and started again with the same DIR: a later run goes on where the archive ends. Files are in
    DIR/data; DIR/_manifest names those that count. `rebuild` and `validate` read an archive with --archive.

    With --every the command runs until SIGTERM or Ctrl-C, and then ends within seconds with exit code 0. Each batch
    writes a file for each partition that has new records: --every 1s can write 86,400 files a day for each, which
    slows down readers; use 60s or more, and --compact. The documentation's page 'Replay' says how to set the topics'
    min.compaction.lag.ms.

    The last line on standard output is a JSON object: topics (by name the end of each partition), batches, records,
    seconds, complete.

    \b
    python -m spark_replay archive --brokers 127.0.0.1:9092 --topic shop--spent-changelog --topic orders \\
        --to archive --once
    python -m spark_replay archive --brokers 127.0.0.1:9092 --topic-pattern 'shop-.*-changelog' \\
        --to /mnt/archive --every 60s
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    if bool(topics) == (topic_pattern is not None):
        raise click.UsageError("say what to archive: --topic, or --topic-pattern")
    if once == (every_ms is not None):
        raise click.UsageError("say for how long: --once, or --every 60s")
    with running(Given.of(options), to) as run:
        from spark_replay.archiving import Wanted, archive_topics

        wanted = Wanted(
            brokers=str(run.given.brokers),
            topics=topics,
            pattern=topic_pattern,
            options=run.given.client(run.spark),
            max_offsets_per_trigger=max_offsets_per_trigger,
        )
        # a run that goes on has a line for each batch
        shown = run.progress(f"archive to {to}") if once else nullcontext()
        with stopping() as stop, shown:
            done = archive_topics(
                run.spark,
                wanted,
                to=to,
                every_ms=every_ms,
                compact=compact,
                stop=stop,
                tell=lambda line: say(run.console, line),
            )
    is_cut = once and not done.complete
    return Outcome(
        totals=asdict(done), error="stopped before everything was archived: run it again" if is_cut else None
    )


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set while the block runs."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
