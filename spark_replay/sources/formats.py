"""The file formats of a rebuild: Parquet, and Delta where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_replay.errors import ToolMissingError
from spark_replay.jars import minor_release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta")
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Spark settings for writing Delta, besides the jars."""
VERIFIED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of a reader that compares the checksums that Parquet's pages are written with."""
WRITING = {
    # a file of a task that fails has the name of its repetition
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Options of a writer that leaves no more than files, by no more renames than one."""
_DELTA = "io.delta:delta-spark_{minor}_2.13:4.4.0"
"""Each minor release of Spark has an artifact of its own."""


def require_format(spark: SparkSession, file_format: str) -> None:
    """Check that a session can write a format.

    Raises:
        ToolMissingError: It can't; the text names what to install.
    """
    if file_format != "delta":
        return
    from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

    jvm = spark._jvm
    delta = jvm.io.delta.sql.DeltaSparkSessionExtension if jvm is not None else None
    if delta is None or isinstance(delta, JavaPackage):
        raise ToolMissingError(
            f"this Spark has no Delta Lake: hand it over with --spark-option spark.jars.packages="
            f"{delta_package(spark.version)}, or its jars with --spark-option spark.jars=…"
        )


def delta_package(spark_version: str) -> str:
    """Return the package of Delta Lake for a release of Spark."""
    return _DELTA.format(minor=minor_release(spark_version))


def write_files(frame: DataFrame, uri: str, file_format: str) -> None:
    """Write rows below `partition=…` folders."""
    frame.write.format(file_format).options(**WRITING).partitionBy("partition").save(uri)


def read_files(spark: SparkSession, uri: str, file_format: str, columns: str) -> DataFrame:
    """Read what `write_files` wrote, also if it was no row at all."""
    reader = spark.read.format(file_format).options(**VERIFIED)
    # of Parquet without rows there is no file that would tell the columns
    reader = reader.schema(columns) if file_format == "parquet" else reader
    return reader.load(uri)
