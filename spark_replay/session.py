"""The Spark session that reads Kafka: one of our own on this machine, or the one that is there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ReplayError, ToolMissingError
from spark_replay.jars import ensure_jars, ensure_more_jars, require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = "local[*]"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # A lone executor takes none for a peer for so many ms, by default a minute: rows are kept on two (`keep`)
    "spark.storage.cachedPeersTtl": "1000",
    # Spark's default is a type that other readers of Parquet warn of
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
TABLE_SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # of a table's files; by default 50 tasks
        "spark.databricks.delta.snapshotPartitions": "4",
    },
    "iceberg": {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
}
_CATALOG = re.compile(r"(spark\.sql\.catalog\.\w+)\..+")
_STDERR = 2
_CONNECT = (
    "this is a session of Spark Connect, which has no JVM to ask Kafka with: use a classic one (spark-submit, or "
    "--master local[*], spark://… or yarn), without SPARK_REMOTE"
)


def spark_session(
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    s3a: bool = False,
    tables: Collection[str] = (),
) -> SparkSession:
    """Return a Spark session that can read Kafka: that of this process if there is one, else a new one.

    Args:
        master: Spark's master; this machine with all its cores if None and `spark-submit` set none.
        settings: Spark settings that go before this module's.
        log: Where the JVM of a new session writes what it says on standard error; ours if None.
        s3a: Whether the session reads or writes `s3a://`, for which it needs more jars.
        tables: The formats of tables that it reads or writes, `delta` and `iceberg`: with jars and settings for each.
            A catalog that `settings` set up is one of Iceberg.

    Raises:
        ToolMissingError: pyspark or Java is missing, Java is too old, or the connector is for another Spark.
        ReplayError: The connector can't be fetched, or Spark doesn't start.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    _require_no_remote(master, settings or {})
    active = active_session()
    if active is not None:
        return active
    require_java()
    builder = SparkSession.builder.appName("spark_replay")
    chosen = _settings(master, settings or {}, s3a=s3a, tables=tables)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if chosen.get("spark.master", "").startswith("local"):
        # else Spark's tasks run whatever python3 is on PATH, without what is installed here
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _stderr_to(log):
        try:
            return builder.getOrCreate()
        except Exception as error:
            where = f"; its log is {log}" if log else ""
            raise ReplayError(f"Spark does not start: {first_line(error)}{where}") from error


def active_session() -> SparkSession | None:
    """Return the session of this thread, else of any thread; None if there is none that goes on.

    Raises:
        ReplayError: It is one of Spark Connect.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return None
    require_classic(session)
    return session if session.sparkContext._jsc is not None else None


def require_classic(spark: SparkSession) -> None:
    """Check that a session isn't one of Spark Connect; `ReplayError` if it is."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ReplayError(_CONNECT)


def _require_no_remote(master: str | None, settings: Mapping[str, str]) -> None:
    remote = os.environ.get("SPARK_REMOTE") or settings.get("spark.remote") or settings.get("spark.master") or master
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ or (remote or "").startswith("sc://"):
        raise ReplayError(_CONNECT)


def require_pyspark() -> None:
    """Check that pyspark and pyarrow can be imported; `ToolMissingError` if one can't."""
    for name in ("pyspark", "pyarrow"):
        try:
            import_module(name)
        except ImportError as error:
            raise ToolMissingError(f"{name} isn't installed: pip install 'faust-actors[spark]'") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that isn't empty."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def java_reason(error: Any) -> str:
    """Return the first line of a Java exception's message, or its class if it has none."""
    return first_line(ValueError(error.getMessage() or error.getClass().getName()))


def _settings(
    master: str | None, asked: Mapping[str, str], *, s3a: bool, tables: Collection[str] = ()
) -> dict[str, str]:
    # spark-submit hands its master and settings over in the environment of the JVM that runs us
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    chosen = dict(_SETTINGS)
    if master or not submitted:
        chosen["spark.master"] = master or _LOCAL
    if chosen.get("spark.master", "").startswith("local"):
        chosen |= _LOCAL_SETTINGS
        chosen["spark.sql.shuffle.partitions"] = str(4 * (os.cpu_count() or 1))
    chosen |= {**_of_tables(tables, asked), **asked}
    if submitted:
        # its JVM runs already: jars named now would reach the executors only, in place of those of --jars
        return chosen
    jars = [str(jar) for jar in ensure_jars()]
    packages = f"{asked.get('spark.jars')},{asked.get('spark.jars.packages')}"
    kinds = [*(["s3a"] if s3a else []), *(kind for kind in tables if f"{kind}-spark" not in packages)]
    more = [str(jar) for kind in kinds for jar in ensure_more_jars(kind)]
    if chosen.get("spark.master", "").startswith("local"):
        # Spark copies the jars of spark.jars for each run, and the SDK's is large
        path = "spark.driver.extraClassPath"
        chosen |= {path: os.pathsep.join(filter(None, [*more, asked.get(path)]))} if more else {}
    else:
        jars += more
    chosen["spark.jars"] = ",".join(jars + [jar for jar in [asked.get("spark.jars")] if jar])
    return chosen


def _of_tables(kinds: Collection[str], asked: Mapping[str, str]) -> dict[str, str]:
    settings = {name: value for kind in kinds for name, value in TABLE_SETTINGS[kind].items()}
    if kinds:
        settings["spark.sql.extensions"] = ",".join(TABLE_SETTINGS[kind]["spark.sql.extensions"] for kind in kinds)
    if "iceberg" in kinds:
        catalogs = {match[1] for name in asked if (match := _CATALOG.fullmatch(name))}
        settings |= dict.fromkeys(
            catalogs - {"spark.sql.catalog.spark_catalog"}, "org.apache.iceberg.spark.SparkCatalog"
        )
    return settings


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    # the JVM keeps the standard error it was started with, so it is ours again right after the start
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
