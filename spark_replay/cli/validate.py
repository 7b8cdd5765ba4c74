"""`spark_replay validate`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.live import Live, live_options
from spark_replay.cli.options import (
    Failure,
    Given,
    LocalFolder,
    command_line,
    html_option,
    json_option,
    require_writable,
    running,
    source_options,
    write_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from spark_replay.comparison.report import Report
    from spark_replay.sources.base import Source

_POINT = "latest, offset:0=500,1=480, or timestamp:2026-01-31T12:00:00Z, as `rebuild` takes it."


@click.command()
@source_options
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="What `state export` wrote, or a worker's data folder (-D; one may lie beside the other), or a rebuild.",
)
@click.option("--live", metavar="URL,…", help="Running workers, asked through their query API.")
@live_options
@click.option("--store", metavar="NAME", help="The store that --live asks for.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ask --live for so many keys. Default: for all of the log.",
)
@click.option("--against-brokers", metavar="HOST:PORT,…", help="Another cluster, such as a mirror.")
@click.option("--against-changelog", metavar="TOPIC", help="The changelog there. Default: of the same name.")
@click.option("--as-of", default="latest", show_default=True, metavar="POINT", help=_POINT)
@click.option("--against-as-of", metavar="POINT", help="Compare with the state at this point.")
@click.option("--metadata", is_flag=True, help="Between two logs, also compare source offset and epoch.")
@click.option(
    "--placement",
    type=click.Choice(["key", "task"]),
    default="key",
    show_default=True,
    help="Partitions of keys: those that murmur2 gives them, or any. Exports state their own.",
)
@click.option(
    "--incremental",
    type=LocalFolder(),
    metavar="DIR",
    help="A rebuild from before --against: of the log only what lies behind it is read.",
)
@click.option("--invariants", is_flag=True, help="Check the log itself too, as `check` does.")
@click.option(
    "--min-keys",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Fail where fewer keys could be compared; 0: an empty state is right.",
)
@json_option
@html_option
def validate(json_file: Path | None, html_file: Path | None, min_keys: int, **options: Any) -> None:
    """Compare the workers' state with its changelog, key by key, and name the cause of each mismatch.

    Data folders are read on this machine, each partition as of one moment, also while a worker uses them.

    The last line on standard output is a JSON object with the counts; tables and examples go to standard error. Exit
    codes: 0 equal, 1 mismatches, or records that no owner can have written, 2 the command failed, fewer keys than
    --min-keys were compared, or a partition can't be read by --live.

    \b
    faust -A shop -D /var/lib/shop state export spent --to exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --against exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --against /var/lib/shop
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --against-brokers mirror:9092
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --live http://127.0.0.1:6066 --store spent --sample 10000
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    _require_one_side(options)
    require_writable(html_file)
    with running(Given.of(options)) as run:
        source = run.source()
        with run.progress(f"validate {source.topic}"):
            report = _compare(source, run.given, options)
        _show(report, run.console, json_file)
        if html_file is not None:
            _write_page(html_file, report, source)
    click.echo(json.dumps(report.totals))
    if report.is_clean and report.unanswered:
        numbers = ", ".join(map(str, sorted(report.unanswered)))
        raise Failure(
            f"the state of {len(report.unanswered)} of {len(report.ends)} partitions of {report.changelog} couldn't be "
            f"read and isn't compared: {numbers}. The others are equal"
        )
    if report.is_clean and report.compared < min_keys:
        raise Failure(
            f"{report.compared} keys of {report.changelog} were compared with {report.against}, fewer than --min-keys "
            f"{min_keys}: is it the right store, point and folder? With --min-keys {report.compared} this is no failure"
        )
    sys.exit(0 if report.is_clean else 1)


def _require_one_side(options: dict[str, Any]) -> None:
    urls, has_store = options["live"], options["store"] is not None
    is_log = any(options[name] is not None for name in ("against_brokers", "against_changelog", "against_as_of"))
    if [options["against"] is not None, bool(urls), is_log].count(True) != 1:
        raise click.UsageError(
            "say what to compare with: --against DIR; or --live URL; or another log with --against-brokers, "
            "--against-changelog, --against-as-of"
        )
    if not is_log and (options["as_of"] != "latest" or options["metadata"]):
        raise click.UsageError(
            "--as-of and --metadata go with another log: a folder or a worker has a point of its own"
        )
    if options["against"] is None and options["incremental"] is not None:
        raise click.UsageError("--incremental goes with --against DIR")
    if options["against"] is None and options["invariants"]:
        raise click.UsageError("--invariants goes with --against DIR; `check` checks a log alone")
    if Live.of(options).is_given and not urls:
        raise click.UsageError("--live-token-file, --live-ca and --live-certificate go with --live")
    if bool(urls) != has_store or (options["sample"] is not None and not urls):
        raise click.UsageError("--live needs --store, and --store and --sample need --live")


def _compare(source: Source, given: Given, options: dict[str, Any]) -> Report:
    if options["against"] is not None:
        from spark_replay.comparison.invariants import Asked
        from spark_replay.comparison.validate import validate_exports

        placement = options["placement"]
        asked = Asked(placement=placement) if options["invariants"] else None
        return validate_exports(
            source,
            against=options["against"],
            placement=placement,
            invariants=asked,
            base=options["incremental"],
        )
    if options["live"]:
        return _compare_live(source, options)
    from spark_replay.comparison.diff import validate_states

    other = _other(source, given, options)
    points = {"as_of": options["as_of"], "against_as_of": options["against_as_of"]}
    return validate_states(source, other, **points, metadata=options["metadata"])


def _compare_live(source: Source, options: dict[str, Any]) -> Report:
    from spark_replay.comparison.live import Workers
    from spark_replay.comparison.validate import validate_live

    live = Live.of(options)
    workers = Workers(_urls(options), token=live.token(), ssl=live.context())
    try:
        return validate_live(
            source, workers, store=options["store"], sample=options["sample"], placement=options["placement"]
        )
    finally:
        workers.close()


def _urls(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(filter(None, options["live"].split(",")))


def _other(source: Source, given: Given, options: dict[str, Any]) -> Source:
    brokers, changelog = options["against_brokers"], options["against_changelog"]
    if brokers is None and changelog is None:
        return source
    there = replace(given, changelog=changelog or given.changelog)
    if brokers is not None:
        from spark_replay.sources.brokers.topic import require_reachable

        require_reachable(brokers)
        there = replace(there, brokers=brokers, archive=None)
    return there.source(source.spark)


def _show(found: Report, console: Console, json_file: Path | None) -> None:
    from spark_replay.report.tables import show

    show(found, console)
    if json_file is not None:
        write_json(json_file, found.as_json)


def _write_page(file: Path, found: Report, source: Source) -> None:
    from spark_replay.report.html import Made, render_report, write_page

    origin = Made(command=command_line(click.get_current_context()), source=str(source))
    write_page(file, render_report(found, made=origin))
