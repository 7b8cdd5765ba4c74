"""The check that an archive's files are as they were written, by their digests, on the executors.

A file's digest is the XOR of XXH64 (seed 42) of its lines, the bytes between line feeds, each with the file's name as
the end: so that of all files together differs too if two have changed places. Spark computes it without Python and
without holding a file in memory, which a CRC of a whole file would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ArchiveError
from spark_replay.sources.archives.manifest import FILES, ArchiveFile
from spark_replay.sources.folders import VERIFIED, Folder
from spark_replay.sources.reading import reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_WORD = (1 << 64) - 1
# by URI: size and modification time of files that were as they were written
_sound: dict[str, tuple[int, int]] = {}


def read_parquet(spark: SparkSession, folder: Folder, names: Iterable[str], columns: str) -> DataFrame:
    """Read files of an archive, whatever their folders are called."""
    reader = spark.read.options(**VERIFIED, recursiveFileLookup="true").schema(columns)
    return reader.parquet(*(f"{folder.uri}/{name}" for name in names))


def digests_of(spark: SparkSession, folder: Folder, names: Sequence[str]) -> dict[str, str]:
    """Return the digest of each file."""
    sums = _digests(spark, folder, names, F.col("_metadata.file_path").alias("name"))
    return {file_name(name): f"{digest:016x}" for name, digest in sums.items()}


def _digests(spark: SparkSession, folder: Folder, names: Sequence[str], by: Column) -> dict[str, int]:
    lines = spark.read.options(lineSep="\n", recursiveFileLookup="true")
    with reading(f"the files of the archive {folder}"):
        rows = lines.text([f"{folder.uri}/{name}" for name in names]).groupBy(by)
        digest = F.bit_xor(F.xxhash64("value", "_metadata.file_name"))
        return {name: number & _WORD for name, number in rows.agg(digest).collect()}


def file_name(path: str) -> str:
    """Return the name of a file in an archive for the path that Spark has of it."""
    return f"{FILES}/{unquote(path.rpartition(f'/{FILES}/')[2])}"


def require_present(folder: Folder, files: Sequence[ArchiveFile]) -> dict[str, tuple[int, int]]:
    """Check that files are there, as long as they were written; return all files of the archive.

    Raises:
        ArchiveError: One is missing or has another length.
    """
    present = folder.files(FILES)
    for file in files:
        if file.name not in present:
            raise ArchiveError(f"the archive {folder} has lost {file}: restore it from a backup")
        size = present[file.name][0]
        if size != file.bytes:
            raise ArchiveError(
                f"{file} of the archive {folder} has {size} bytes and was written with {file.bytes}: restore it from a "
                "backup"
            )
    return present


def require_sound(spark: SparkSession, folder: Folder, files: Sequence[ArchiveFile]) -> None:
    """Check that files are as they were written; one that this process has checked isn't read again.

    Raises:
        ArchiveError: One isn't.
    """
    present = require_present(folder, files)
    new = [file for file in files if _sound.get(f"{folder.uri}/{file.name}") != present[file.name]]
    names = [file.name for file in new]
    # all at once, which costs half as much as by file; each only to name the one that differs
    total = sum(_digests(spark, folder, names, F.lit("")).values()) if new else 0
    is_sound = total == reduce(xor, (int(file.digest, 16) for file in new), 0)
    digests = {} if is_sound else digests_of(spark, folder, names)
    for file in new:
        if not is_sound and digests.get(file.name) != file.digest:
            raise ArchiveError(
                f"{file} of the archive {folder} isn't what was written: its digest is {digests.get(file.name)} and "
                f"was {file.digest}. Restore it from a backup"
            )
        _sound[f"{folder.uri}/{file.name}"] = present[file.name]
