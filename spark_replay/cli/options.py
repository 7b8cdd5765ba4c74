"""The parts that all commands share: options, the source that they name, the Spark session, and errors in one line."""

from __future__ import annotations

import errno
import shlex
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from rich.console import Console

from spark_replay.errors import LiveError, ReplayError
from spark_replay.session import active_session, require_pyspark, spark_session
from spark_replay.sources.brokers.topic import require_reachable
from spark_replay.sources.staging import local_folder, table_format
from stores._core.printable import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_replay.comparison.live import Workers
    from spark_replay.sources.base import Source

_FILE_WIDTH = 120
_BROKERS = "HOST:PORT,…"
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
LIVE_FILES = ("live_token_file", "live_ca", "live_certificate", "live_key")
POINT = "latest, offset:0=500,1=480, or timestamp:2026-01-31T12:00:00Z, as `rebuild` takes it."

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Place(click.ParamType):
    """A folder, by its path or a URI that Spark reads and writes; or a table, `delta:PATH`, `iceberg:CATALOG.TABLE`."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check its scheme."""
        try:
            if not table_format(value):
                local_folder(value)
        except ReplayError as error:
            raise Failure(f"{param.opts[0] if param else ''}: {error}") from error
        return str(value)


class Pair(click.ParamType):
    """`name=value` on the command line."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first `=`."""
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} isn't name=value", param, ctx)
        return key, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options that most commands share, as they were given."""

    brokers: str | None
    kafka_options: dict[str, str]
    kafka_properties: Path | None
    master: str | None
    settings: dict[str, str]
    archive: str | None = None
    changelog: str = ""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Given:
        """Make it from the options that click passes to a command."""
        shared = cls(
            brokers=options.get("brokers"),
            kafka_options=dict(options["kafka_option"]),
            kafka_properties=options["kafka_properties"],
            master=options["master"],
            settings=dict(options["spark_option"]),
            archive=options.get("archive"),
            changelog=options.get("changelog") or "",
        )
        if shared.brokers is None and shared.archive is None:
            raise click.UsageError("give the place of the log: --brokers, or --archive, or both")
        return shared

    def client(self, spark: SparkSession) -> dict[str, str]:
        """Return the Kafka client's settings; those of `--kafka-option` go before those of the file."""
        from spark_replay.sources.kafka import read_properties

        file = {} if self.kafka_properties is None else read_properties(spark, self.kafka_properties)
        return file | self.kafka_options

    def with_avro(self) -> Given:
        """Return the same with Spark's jar for Avro."""
        from spark_replay.jars import ensure_more_jars

        jars = [*map(str, ensure_more_jars("avro")), *filter(None, [self.settings.get("spark.jars")])]
        return replace(self, settings={**self.settings, "spark.jars": ",".join(jars)})

    def source(self, spark: SparkSession) -> Source:
        """Return the changelog as a source."""
        from spark_replay.sources.archives.archive import archive
        from spark_replay.sources.kafka import kafka

        older = None if self.archive is None else archive(spark, self.archive, self.changelog)
        newer = None if self.brokers is None else kafka(spark, self.brokers, self.changelog, self.client(spark))
        if older is not None and newer is not None:
            return newer.after(older)
        return newer or cast("Source", older)


def spark_options(command: _Command) -> _Command:
    """Add the options of all commands: those of the Kafka client and of Spark, and `--json`."""
    return _with(
        command,
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            help="Print the whole result on standard output, as one JSON object; also that of a failure.",
        ),
        click.option(
            "--kafka-option",
            multiple=True,
            type=Pair(),
            help="A setting of the Kafka client, such as security.protocol=SASL_SSL. May be repeated.",
        ),
        click.option(
            "--kafka-properties",
            type=_FILE,
            metavar="FILE",
            help="A file of such settings, as Kafka's own tools take by --command-config.",
        ),
        click.option("--master", help="Spark's master. Default: this machine, all cores."),
        click.option(
            "--spark-option",
            multiple=True,
            type=Pair(),
            help="A setting of Spark, such as spark.driver.memory=8g. May be repeated.",
        ),
    )


def placement_option(more: str = "") -> Callable[[_Command], _Command]:
    """Return the option `--placement`; `more` ends its help."""
    return click.option(
        "--placement",
        type=click.Choice(["key", "row", "task"]),
        default="key",
        show_default=True,
        help="Partitions of keys: those that murmur2 gives them; those of the keys that the rows of a map, list or set "
        f"store are below; or any.{more}",
    )


def source_options(command: _Command, *, several: bool = False, required: bool = True) -> _Command:
    """Add the options that say which changelog, or which `several`, and where it is."""
    return _with(
        spark_options(command),
        click.option("--brokers", metavar=_BROKERS, help="Kafka's bootstrap brokers."),
        click.option(
            "--changelog",
            required=required,
            multiple=several,
            metavar="TOPIC",
            help="The changelog, APP--STORE-changelog." + (" May be repeated." if several else ""),
        ),
        click.option(
            "--archive",
            type=Place(),
            metavar="DIR",
            help="What `spark_replay archive` wrote, a folder or a URI; with --brokers too, Kafka is read from the "
            "archive's end on.",
        ),
    )


def broker_options(command: _Command) -> _Command:
    """Add those of a command that reads brokers only."""
    brokers = click.option("--brokers", required=True, metavar=_BROKERS, help="Kafka's bootstrap brokers.")
    return brokers(spark_options(command))


def live_options(command: _Command) -> _Command:
    """Add the credentials of `--live`, for workers that authenticate their clients."""
    return _with(
        command,
        click.option("--live-token-file", type=_FILE, help="A file with one of the workers' query_tokens."),
        click.option("--live-ca", type=_FILE, help="The CA that signs the certificates of workers with https."),
        click.option("--live-certificate", type=_FILE, help="A client certificate, for workers that require one."),
        click.option("--live-key", type=_FILE, help="The key of --live-certificate, if it isn't in the same file."),
    )


def open_workers(urls: str, options: dict[str, Any]) -> AbstractContextManager[Workers]:
    """Return the workers with these URLs, separated by commas, until the block ends.

    Raises:
        click.UsageError: The options don't go together.
        LiveError: There is no URL, or a file isn't what it should be.
    """
    from spark_replay.comparison.live import Workers

    token_file, *certificates = (options[name] for name in LIVE_FILES)
    return closing(Workers(urls.split(","), token=_read_token(token_file), ssl=_tls_context(*certificates)))


def _read_token(file: Path | None) -> str | None:
    """Return the token: the file's first line; `LiveError` if there is none in it."""
    if file is None:
        return None
    lines = file.read_text(encoding="utf-8", errors="replace").split()
    if not lines or not lines[0].isascii():
        raise LiveError(f"{file} has no token in its first line")
    return lines[0]


def _tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for requests to workers, None for Python's default; errors as of `open_workers`."""
    if key is not None and certificate is None:
        raise click.UsageError("--live-key goes with --live-certificate")
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise LiveError(f"--live-ca, --live-certificate or --live-key can't be used: {error}") from error
    return context


def html_option(command: _Command) -> _Command:
    """Add `--html`."""
    text = "Write the report as a page here, a path or a URI: one file, for any browser. An earlier page is replaced."
    return click.option("--html", "html_file", type=Place(), metavar="FILE", help=text)(command)


def require_writable(html_file: str | None, *, is_local: bool) -> None:
    """Check before a long run that its page can be written, if it `is_local` or not; errors as of `failing`."""
    if html_file is not None and (local_folder(html_file) is not None) == is_local:
        with failing():
            from spark_replay.report.html import require_page

            require_page(html_file)


def command_line(context: click.Context) -> str:
    """Return the command as it could be typed; of settings only their names, for their values may be passwords."""
    words = [f"python -m spark_replay {context.info_name}"]
    for param in context.command.params:
        value, flag = context.params.get(str(param.name)), param.opts[0]
        if isinstance(param.type, Pair):
            words += [f"{flag} {name}=…" for name, _ in value or ()]
        elif value is True:
            words.append(flag)
        elif value not in (None, False, (), param.default):
            words += [f"{flag} {shlex.quote(str(word))}" for word in (value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def _with(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


class Failure(click.ClickException):
    """An error of this package, printed in one line."""

    exit_code = 2


@contextmanager
def failing() -> Iterator[None]:
    """Print errors of this package and a full disk in one line, and exit with 2."""
    try:
        yield
    except ReplayError as error:
        raise Failure(printable(str(error))) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        folder = tempfile.gettempdir()
        raise Failure(
            printable(f"a disk is full: {error}. Temporary files are in {folder}, TMPDIR names another folder")
        ) from error


def make_console() -> Console:
    """Return the console for progress and tables: standard error."""
    console = Console(stderr=True)
    # a file or a pipe has no width to fit into, and rich would take 80
    return console if console.is_terminal else Console(stderr=True, width=_FILE_WIDTH)


@dataclass(frozen=True, slots=True)
class Run:
    """A command under way: its options, where it shows what it does, and its session."""

    given: Given
    console: Console
    spark: SparkSession

    def source(self) -> Source:
        """Return the changelog as a source."""
        return self.given.source(self.spark)

    def progress(self, what: str, more: Callable[[], str] = lambda: "") -> AbstractContextManager[None]:
        """Show Spark's progress while the block runs, and what `more` returns."""
        from spark_replay.report.progress import progress

        return progress(self.spark.sparkContext, self.console, what, more=more)


@contextmanager
def running(given: Given, *places: object) -> Iterator[Run]:
    """Start a session that ends with the block, unless it was there before, and print errors as `failing` does.

    It can read and write `places`, and read the archive.
    """
    s3a = any("s3a:" in str(place) for place in (given.archive, *places))
    tables = {table_format(place) for place in places} - {""}
    with failing(), _session(given, make_console(), s3a=s3a, tables=tables) as run:
        yield run


@contextmanager
def _session(given: Given, console: Console, *, s3a: bool, tables: set[str]) -> Iterator[Run]:
    require_pyspark()
    if given.brokers is not None:
        require_reachable(given.brokers)
    ours = active_session() is None
    with tempfile.TemporaryDirectory(prefix="spark-replay-") as folder:
        log = Path(folder) / "spark.log"
        console.print("starting Spark …", highlight=False)
        try:
            spark = spark_session(master=given.master, settings=given.settings, log=log, s3a=s3a, tables=tables)
        except ReplayError:
            text = log.read_text(errors="replace") if log.exists() else ""
            console.print(printable(text, keep="\n\t"), markup=False, highlight=False)
            raise
        try:
            yield Run(given, console, spark)
        finally:
            if ours:
                _stop(spark)


def _stop(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    # a signal to the whole process group may have ended the JVM already
    with suppress(Py4JError, OSError):
        spark.stop()
