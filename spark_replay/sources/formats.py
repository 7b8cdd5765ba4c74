"""The files of a rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFIED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of a reader that compares the checksums that Parquet's pages are written with."""
WRITING = {
    # a file of a task that fails has the name of its repetition
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Options of a writer that leaves no more than files, by no more renames than one."""


def write_files(frame: DataFrame, uri: str) -> None:
    """Write rows below `partition=…` folders."""
    frame.write.options(**WRITING).partitionBy("partition").parquet(uri)


def read_files(spark: SparkSession, uri: str, columns: str) -> DataFrame:
    """Read what `write_files` wrote, also if it was no row at all."""
    # of no rows there is no file that would tell the columns
    return spark.read.options(**VERIFIED).schema(columns).parquet(uri)
