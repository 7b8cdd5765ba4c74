"""The file formats of a rebuild: Parquet, and Delta where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_replay.errors import ToolMissingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta")
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What a session needs to write Delta, besides the jars."""
VERIFIED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of a reader that compares the checksums that Parquet's pages are written with."""
_DELTA_JAR = "io.delta:delta-spark_2.13:4.0.0"


def require_format(spark: SparkSession, file_format: str) -> None:
    """Check that a session can write a format.

    Raises:
        ToolMissingError: It can't; the text says what to install.
    """
    if file_format != "delta":
        return
    from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

    jvm = spark._jvm
    delta = jvm.io.delta.sql.DeltaSparkSessionExtension if jvm is not None else None
    if delta is None or isinstance(delta, JavaPackage):
        raise ToolMissingError(
            f"this Spark has no Delta Lake: hand it over with --spark-option spark.jars.packages={_DELTA_JAR}, or its "
            "jars with --spark-option spark.jars=…"
        )


def write_files(frame: DataFrame, folder: Path, file_format: str) -> None:
    """Write rows below `partition=…` folders."""
    frame.write.format(file_format).partitionBy("partition").save(f"file://{folder}")


def read_files(spark: SparkSession, folder: Path, file_format: str, columns: str) -> DataFrame:
    """Read what `write_files` wrote, also if it was no row at all."""
    reader = spark.read.format(file_format).options(**VERIFIED)
    # of Parquet without rows there is no file that would tell the columns
    reader = reader.schema(columns) if file_format == "parquet" else reader
    return reader.load(f"file://{folder.absolute()}")
