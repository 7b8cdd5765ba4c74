"""`spark_replay validate`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.live import Live, live_options
from spark_replay.cli.options import (
    Failure,
    Given,
    command_line,
    dry_run_option,
    failing,
    html_option,
    make_console,
    require_writable,
    say_plan,
    source_options,
    spark_for,
    write_json,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from spark_replay.comparison.report import Report
    from spark_replay.report.plans import Plan
    from spark_replay.sources import Source

_POINT = "latest, offset:0=500,1=480, or timestamp:2026-01-31T12:00:00Z, as `rebuild` takes it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """What to compare the changelog with, as it was given.

    Attributes:
        folder: A folder, or None.
        urls: Running workers, or none.
        store: Their store, None if it isn't needed.
        sample: How many keys to ask them for, None for all.
        brokers: Another cluster, or None.
        changelog: The changelog there, None if it has the same name.
        as_of: The point of the changelog.
        other_as_of: The point of the other one, None if it is the same.
        placement: Of data folders and rebuilds.
        metadata: Whether write metadata counts between two logs.
        invariants: Whether to check the log too.
        live: How to get into the workers.
    """

    folder: Path | None
    urls: tuple[str, ...]
    store: str | None
    sample: int | None
    brokers: str | None
    changelog: str | None
    as_of: str
    other_as_of: str | None
    placement: str
    metadata: bool
    invariants: bool
    live: Live

    def __post_init__(self) -> None:
        other = self.brokers is not None or self.changelog is not None or self.other_as_of is not None
        if [self.folder is not None, bool(self.urls), other].count(True) != 1:
            raise click.UsageError(
                "say what to compare with: --against DIR; or --live URL; or another log with --against-brokers, "
                "--against-changelog, --against-as-of"
            )
        if not other and (self.as_of != "latest" or self.metadata):
            raise click.UsageError("--as-of and --metadata go with another log: a folder or worker tells its own point")
        if self.folder is None and self.invariants:
            raise click.UsageError("--invariants goes with --against DIR; of a log alone `check` tells")
        if self.live.is_given and not self.urls:
            raise click.UsageError("--live-token-file, --live-ca and --live-certificate go with --live")
        if bool(self.urls) != (self.store is not None) or (self.sample is not None and not self.urls):
            raise click.UsageError("--live needs --store, and --store and --sample need --live")


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
    help="Where keys live, if it isn't an export, which tells: where murmur2 puts them, or in any partition.",
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
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the report here.")
@html_option
@dry_run_option
def validate(json_file: Path | None, html_file: Path | None, dry_run: bool, min_keys: int, **options: Any) -> None:
    """Compare what workers hold with their changelog, key by key, and name the cause of each mismatch.

    Data folders are read on this machine, each partition as of one moment, also while a worker uses them.

    With --html the log is also profiled, for the page's plots: two more passes over it.

    The last line on standard output is a JSON object with the counts; tables and examples go to standard error. Exit
    code 0: equal, 1: there are mismatches, 2: it can't be told, or fewer keys than --min-keys were compared.

    \b
    faust -A shop -D /var/lib/shop state export spent --to exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop-spent-changelog --against exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop-spent-changelog --against /var/lib/shop
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop-spent-changelog \\
        --against-brokers mirror:9092
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop-spent-changelog \\
        --live http://127.0.0.1:6066 --store spent --sample 10000
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    given, console = Given.of(options), make_console()
    against = _against(options)
    with failing():
        require_writable(html_file)
        with spark_for(given, console) as spark:
            from spark_replay.report.progress import progress

            source = given.source(spark)
            if dry_run:
                say_plan(_plan(source, against), console)
                return
            with progress(spark.sparkContext, console, f"validate {source.topic}"):
                found = _validate(spark, given, source, against)
            _tell(found, console, json_file)
            if html_file is not None:
                with progress(spark.sparkContext, console, f"profile {source.topic}"):
                    _write_page(html_file, found, source)
    click.echo(json.dumps(found.totals))
    if found.is_clean and found.compared < min_keys:
        raise Failure(
            f"{found.compared} keys of {found.changelog} were compared with {found.against}, fewer than --min-keys "
            f"{min_keys}: is it the right store, point and folder? With --min-keys {found.compared} this is no failure"
        )
    sys.exit(0 if found.is_clean else 1)


def _tell(found: Report, console: Console, json_file: Path | None) -> None:
    from spark_replay.comparison.report import show

    show(found, console)
    if json_file is not None:
        write_json(json_file, found.as_json)


def _write_page(file: Path, found: Report, source: Source) -> None:
    from spark_replay.report.html import Made, render_report, write_page
    from spark_replay.report.profile import profile_log

    made = Made(command=command_line(click.get_current_context()), source=str(source))
    write_page(file, render_report(found, made=made, profile=profile_log(source)))


def _against(options: dict[str, Any]) -> Against:
    return Against(
        folder=options["against"],
        urls=tuple(filter(None, (options["live"] or "").split(","))),
        store=options["store"],
        sample=options["sample"],
        brokers=options["against_brokers"],
        changelog=options["against_changelog"],
        as_of=options["as_of"],
        other_as_of=options["against_as_of"],
        placement=options["placement"],
        metadata=options["metadata"],
        invariants=options["invariants"],
        live=Live.of(options),
    )


def _validate(spark: SparkSession, given: Given, source: Source, against: Against) -> Report:
    from spark_replay.comparison.diff import validate_states
    from spark_replay.comparison.invariants import Asked
    from spark_replay.comparison.validate import validate_exports

    if against.folder is not None:
        asked = Asked(placement=against.placement) if against.invariants else None
        return validate_exports(source, against=against.folder, placement=against.placement, invariants=asked)
    if against.urls:
        return _validate_live(source, against)
    return validate_states(
        source,
        _other(spark, given, source, against),
        as_of=against.as_of,
        against_as_of=against.other_as_of,
        metadata=against.metadata,
    )


def _validate_live(source: Source, against: Against) -> Report:
    from spark_replay.comparison.live import Workers, validate_live

    workers = Workers(against.urls, token=against.live.token(), ssl=against.live.context())
    try:
        return validate_live(
            source, workers, store=against.store or "", sample=against.sample, placement=against.placement
        )
    finally:
        workers.close()


def _other(spark: SparkSession, given: Given, source: Source, against: Against) -> Source:
    if against.brokers is None and against.changelog is None:
        return source
    there = replace(given, changelog=against.changelog or given.changelog)
    if against.brokers is not None:
        from spark_replay.sources.topic import require_reachable

        require_reachable(against.brokers)
        there = replace(there, brokers=against.brokers, archive=None)
    return there.source(spark)


def _plan(source: Source, against: Against) -> Plan:
    from spark_replay.comparison.exports import find_exports
    from spark_replay.comparison.sides import EXPORTS, kind_of
    from spark_replay.report.plans import plan_reading

    if against.urls:
        count = "all keys" if against.sample is None else f"{against.sample:,} keys"
        return plan_reading("validate", source, also=f"would ask {', '.join(against.urls)} for {count}")
    if against.folder is None:
        where = against.brokers or "the same brokers"
        also = f"would compare with {against.changelog or source.topic} of {where} at {against.other_as_of or 'latest'}"
        return plan_reading("validate", source, also=also)
    kind = kind_of(against.folder)
    if kind != EXPORTS:
        return plan_reading("validate", source, also=f"would read the {kind} in {against.folder}")
    exports = find_exports(against.folder, source.topic)
    files = [copy.file for copy in exports.chosen]
    size = sum(file.stat().st_size for file in files)
    also = f"would read {len(files)} exported files of {size:,} bytes in {against.folder}"
    return plan_reading("validate", source, also=also)
