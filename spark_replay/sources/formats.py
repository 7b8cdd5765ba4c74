"""The files of a rebuild."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFIED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of a reader that compares the checksums that Parquet's pages are written with."""


def write_files(frame: DataFrame, folder: Path, file_format: str) -> None:
    """Write rows below `partition=…` folders."""
    frame.write.format(file_format).partitionBy("partition").save(f"file://{folder}")


def read_files(spark: SparkSession, folder: Path, file_format: str, columns: str) -> DataFrame:
    """Read what `write_files` wrote, also if it was no row at all."""
    reader = spark.read.format(file_format).options(**VERIFIED)
    # of Parquet without rows there is no file that would tell the columns
    reader = reader.schema(columns) if file_format == "parquet" else reader
    return reader.load(f"file://{folder.absolute()}")
