"""`python -m spark_replay`: rebuild a state from its changelog, and validate what the workers hold."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from spark_replay.errors import ReplayError
from spark_replay.session import require_pyspark, spark_session
from spark_replay.topic import require_reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_WIDTH = 120

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    brokers: str
    changelog: str
    kafka_options: dict[str, str]
    master: str | None
    settings: dict[str, str]


class _Failure(click.ClickException):
    exit_code = 2


class _Pair(click.ParamType):
    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, found, text = str(value).partition("=")
        if not found or not key:
            self.fail(f"{value!r} isn't name=value", param, ctx)
        return key, text


def _source_options(command: _Command) -> _Command:
    options = [
        click.option("--brokers", required=True, metavar="HOST:PORT,…", help="Kafka's bootstrap brokers."),
        click.option("--changelog", required=True, metavar="TOPIC", help="The changelog, APP-STORE-changelog."),
        click.option(
            "--kafka-option",
            multiple=True,
            type=_Pair(),
            help="A setting of the Kafka client, such as security.protocol=SASL_SSL. May be repeated.",
        ),
        click.option("--master", help="Spark's master. Default: this machine, all cores."),
        click.option(
            "--spark-option",
            multiple=True,
            type=_Pair(),
            help="A setting of Spark, such as spark.driver.memory=8g. May be repeated.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _source(given: dict[str, Any]) -> _Source:
    return _Source(
        brokers=given["brokers"],
        changelog=given["changelog"],
        kafka_options=dict(given["kafka_option"]),
        master=given["master"],
        settings=dict(given["spark_option"]),
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rebuild state from a compacted changelog with Spark, and validate it key by key.

    Exit codes: 0 all is well, 1 mismatches were found, 2 the question could not be answered.
    """


@main.command()
@_source_options
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write Parquet to.",
)
@click.option("--overwrite", is_flag=True, help="Replace a rebuild that is there.")
def rebuild(to: Path, overwrite: bool, **given: Any) -> None:
    """Write the state that a changelog stands for as Parquet.

    The last line on standard output is a JSON object: keys, records, unstamped, seconds.
    """
    source, console = _source(given), _console()
    with _failing(), _spark(source, console) as spark:
        from spark_replay.progress import progress
        from spark_replay.rebuild import require_free, write_rebuild

        require_free(to, overwrite=overwrite)
        with progress(spark.sparkContext, console, f"rebuild {source.changelog}"):
            done = write_rebuild(
                spark,
                source.brokers,
                source.changelog,
                to=to,
                overwrite=overwrite,
                kafka_options=source.kafka_options,
            )
    if done.unstamped:
        console.print(f"{done.unstamped} records of {done.changelog} have no key or no stamp: run validate")
    totals = {name: getattr(done, name) for name in ("keys", "records", "unstamped", "seconds")}
    click.echo(json.dumps(totals))


@main.command()
@_source_options
@click.option(
    "--against",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder that the workers exported to.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the report here.")
def validate(against: Path, json_file: Path | None, **given: Any) -> None:
    """Compare exports of the workers' stores with their changelog, key by key.

    The last line on standard output is a JSON object with the counts; the table goes to standard error.
    """
    source, console = _source(given), _console()
    with _failing(), _spark(source, console) as spark:
        from spark_replay.progress import progress
        from spark_replay.validate import validate_exports

        with progress(spark.sparkContext, console, f"validate {source.changelog}"):
            found = validate_exports(
                spark,
                source.brokers,
                source.changelog,
                against=against,
                kafka_options=source.kafka_options,
            )
    from spark_replay.report import show

    show(found, console)
    if json_file is not None:
        with _failing():
            _write_json(json_file, asdict(found) | {"totals": found.totals})
    click.echo(json.dumps(found.totals))
    sys.exit(1 if found.mismatches else 0)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ReplayError(f"the report can't be written to {file}: {error}") from error


def _console() -> Console:
    console = Console(stderr=True)
    # a file or a pipe has no width to fit into, and rich would take 80
    return console if console.is_terminal else Console(stderr=True, width=_FILE_WIDTH)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except ReplayError as error:
        raise _Failure(str(error)) from error


@contextmanager
def _spark(source: _Source, console: Console) -> Iterator[SparkSession]:
    """A session that ends with the block, unless it was there before; a failed start shows its log."""
    require_pyspark()
    require_reachable(source.brokers)
    from pyspark.sql import SparkSession

    ours = SparkSession.getActiveSession() is None
    with tempfile.TemporaryDirectory(prefix="spark-replay-") as folder:
        log = Path(folder) / "spark.log"
        console.print("starting Spark …", highlight=False)
        try:
            spark = spark_session(master=source.master, settings=source.settings, log=log)
        except ReplayError:
            console.print(log.read_text() if log.exists() else "", markup=False, highlight=False)
            raise
        try:
            yield spark
        finally:
            if ours:
                spark.stop()


# behind what it takes from here
from spark_replay.cli_recompute import recompute  # noqa: E402

main.add_command(recompute)
