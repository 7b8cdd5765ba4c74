"""`spark_replay validate`."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.options import (
    LIVE_FILES,
    POINT,
    Given,
    Place,
    Run,
    command_line,
    failing,
    html_option,
    live_options,
    open_workers,
    placement_option,
    require_writable,
    running,
    source_options,
)
from spark_replay.cli.outcome import Outcome
from stores._core.printable import counted

if TYPE_CHECKING:
    from spark_replay.comparison.live import Workers
    from spark_replay.comparison.report import Report
    from spark_replay.sources.base import Source


@click.command()
@source_options
@click.option(
    "--against",
    type=Place(),
    metavar="DIR",
    help="What `state export` wrote, or a worker's data folder (-D; one may lie beside the other), or a rebuild, which "
    "may be s3a://bucket/folder or a table (delta:PATH, iceberg:CATALOG.TABLE).",
)
@click.option("--live", metavar="URL,…", help="Running workers, asked through their query API.")
@live_options
@click.option("--store", metavar="NAME", help="The store that --live asks for.")
@click.option("--against-brokers", metavar="HOST:PORT,…", help="Another cluster, such as a mirror.")
@click.option("--against-changelog", metavar="TOPIC", help="The changelog there. Default: of the same name.")
@click.option("--as-of", default="latest", show_default=True, metavar="POINT", help=POINT)
@click.option("--against-as-of", metavar="POINT", help="Compare with the state at this point.")
@click.option("--metadata", is_flag=True, help="Between two logs, also compare source offset and epoch.")
@placement_option(" Exports state their own.")
@click.option(
    "--incremental",
    type=Place(),
    metavar="DIR",
    help="A rebuild older than --against: only the log behind it is read.",
)
@click.option("--invariants", is_flag=True, help="Check the log itself, beside a comparison or alone.")
@click.option("--put-if-absent", is_flag=True, help="The store is written by put_if_absent only: no key may change.")
@click.option(
    "--min-keys",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Fail where fewer keys could be compared; 0: an empty state is right.",
)
@html_option
def validate(html_file: str | None, min_keys: int, **options: Any) -> Outcome:
    """Compare the workers' state with its changelog, key by key, and name the cause of each mismatch.

    Data folders are read on this machine, each partition as of one moment, also while a worker uses them.

    --invariants checks the log itself: epochs and input offsets only grow, each key is in its own partition, each
    record has write metadata, and an owner of its partition can have written it. With --put-if-absent no key changes
    its value.

    The last line on standard output is a JSON object with the counts; tables and examples go to standard error. Exit
    codes: 0 equal, 1 mismatches, or records that break an invariant, 2 the command failed, fewer keys than --min-keys
    were compared, or a partition couldn't be compared and the others are equal.

    \b
    faust -A shop -D /var/lib/shop state export spent --to exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --against exports
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog --against /var/lib/shop
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --against-brokers mirror:9092
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog \\
        --live http://127.0.0.1:6066 --store spent
    python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--seen-changelog --invariants \\
        --put-if-absent
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    _require_one_side(options)
    require_writable(html_file, is_local=True)
    with failing():
        workers = open_workers(options["live"], options) if options["live"] else nullcontext()
    with running(Given.of(options), options["against"], options["incremental"], html_file) as run, workers as live:
        require_writable(html_file, is_local=False)
        source = run.source()
        copied: Counter[int] = Counter()

        def more() -> str:
            return f"{counted(sum(list(copied.values())), 'key')} copied from data folders" if copied else ""

        with run.progress(f"validate {source.topic}", more):
            report = _compare(source, run, live, options, copied=copied)
        from spark_replay.report.tables import show

        show(report, run.console)
        if html_file is not None:
            from spark_replay.report.html import Made, render_report, write_page

            origin = Made(command=command_line(click.get_current_context()), source=str(source))
            write_page(html_file, render_report(report, made=origin))
    error = unanswered(report, min_keys) if report.is_clean else None
    return Outcome(totals=report.totals, content=asdict(report), differs=not report.is_clean, error=error)


def unanswered(report: Report, min_keys: int) -> str | None:
    """Return why a report without mismatches isn't an answer, None if it is one."""
    if report.unanswered:
        numbers = ", ".join(map(str, sorted(report.unanswered)))
        return (
            f"the state of {len(report.unanswered)} of {counted(len(report.ends), 'partition')} of {report.changelog} "
            f"couldn't be read and isn't compared: {numbers}. The others are equal"
        )
    if report.against and report.compared < min_keys:
        return (
            f"only {counted(report.compared, 'key')} of {report.changelog} compared with {report.against}, fewer than "
            f"--min-keys {min_keys}: is it the right store, point and folder? With --min-keys {report.compared} "
            "this is no failure"
        )
    return None


def _require_one_side(options: dict[str, Any]) -> None:
    urls, has_store = options["live"], options["store"] is not None
    is_log = _is_log(options)
    sides = [options["against"] is not None, bool(urls), is_log].count(True)
    if sides != 1 and (sides or not options["invariants"]):
        raise click.UsageError(
            "say what to compare with: --against DIR; or --live URL; or another log with --against-brokers, "
            "--against-changelog, --against-as-of; or check the log alone with --invariants"
        )
    if not is_log and (options["as_of"] != "latest" or options["metadata"]):
        raise click.UsageError(
            "--as-of and --metadata go with another log: a folder or a worker has a point of its own"
        )
    if options["put_if_absent"] and not options["invariants"]:
        raise click.UsageError("--put-if-absent goes with --invariants")
    if options["against"] is None and options["incremental"] is not None:
        raise click.UsageError("--incremental goes with --against DIR")
    if any(options[name] for name in LIVE_FILES) and not urls:
        raise click.UsageError("--live-token-file, --live-ca and --live-certificate go with --live")
    if bool(urls) != has_store:
        raise click.UsageError("--live needs --store, and --store needs --live")


def _compare(
    source: Source, run: Run, workers: Workers | None, options: dict[str, Any], *, copied: Counter[int]
) -> Report:
    from spark_replay.comparison.invariants import Asked
    from spark_replay.comparison.validate import validate_exports, validate_log
    from spark_replay.comparison.watching import validate_live

    asked = Asked(placement=options["placement"], put_if_absent=options["put_if_absent"])
    invariants = asked if options["invariants"] else None
    if options["against"] is not None:
        return validate_exports(
            source,
            against=options["against"],
            placement=options["placement"],
            invariants=invariants,
            progress=copied.__setitem__,
            base=options["incremental"],
        )
    if workers is not None:
        compared = validate_live(source, workers, store=options["store"], placement=options["placement"])
    elif _is_log(options):
        from spark_replay.comparison.diff import validate_states

        other = _other(source, run.given, options)
        compared = validate_states(
            source, other, **{name: options[name] for name in ("as_of", "against_as_of", "metadata")}
        )
    else:
        return validate_log(source, asked)
    return compared if invariants is None else replace(compared, findings=validate_log(source, asked).findings)


def _is_log(options: dict[str, Any]) -> bool:
    """Return whether another log or point is named."""
    return any(options[name] is not None for name in ("against_brokers", "against_changelog", "against_as_of"))


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
