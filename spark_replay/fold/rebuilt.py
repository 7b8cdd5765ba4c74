"""The folder of a rebuild: its summary, its files, and the rows that they stand for.

A rebuild from the start is one layer: the rows of the state, in `partition=…` folders. A rebuild from an earlier one
has the layers of that one, and one more: the keys that changed since, with null for a value where a key is gone. Of
each key the row of the highest layer counts. Files never change: those of the earlier rebuild are linked, or copied
where the file system has no links.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ReadError, ReplayError
from spark_replay.fold.columns import VALUE_COLUMNS
from spark_replay.fold.decoding import DECODED, Codecs, decoded
from spark_replay.fold.fold import to_all
from spark_replay.sources.digests import Digest, digests, require_same, watched
from spark_replay.sources.folders import VERIFIED, WRITING, Folder
from spark_replay.sources.reading import reading
from stores._core.manifest import require_crc32
from stores._core.outside import MISSHAPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = 1
LAYERS = "_layers"
SUMMARY = "_rebuild.json"
COLUMNS = (
    "key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, offset bigint, input int, "
    "partition int"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltPartition:
    """The result of a rebuild for one partition.

    Attributes:
        partition: The partition.
        start_offset: Where the log begins.
        end_offset: The state is that of the records below it.
        last_offset: The last of these records, -1 if there is none. Only markers of transactions lie behind it.
        as_of_ms: Unix milliseconds at which its keys count as expired.
        keys: Rows written.
    """

    partition: int
    start_offset: int
    end_offset: int
    last_offset: int
    as_of_ms: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A key whose state at the point is unknown: it was written again at `later_offset`."""

    partition: int
    key: str
    later_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Files that were written at one go.

    Attributes:
        folder: Where they are below the rebuild's folder, empty if in it.
        ends: In each partition the state is that of the records below this offset, with the layers before.
        rows: Of all files.
        files: By path below `folder`, size in bytes and CRC-32.
    """

    folder: str
    ends: tuple[int, ...]
    rows: int = 0
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The result of a rebuild; `_rebuild.json` holds the same.

    Attributes:
        version: `FORMAT`.
        changelog: The topic.
        topic_id: What Kafka gave it when it was made.
        as_of: The point that was asked for.
        as_of_ms: Unix milliseconds at which keys count as expired; the latest of the partitions' if they differ.
        keys: Rows written.
        records: Records read.
        without_metadata: How many of these have no key or no write metadata that this release reads: damage.
        unknown: Keys whose state at the point is unknown, see `spark_replay.fold.points`; they aren't in the rebuild.
        undecodable: Keys and values that aren't what the app's store declares; None if none were decoded.
        seconds: How long it took.
        format: `parquet` or `delta`.
        partitions: One entry a partition.
        unknown_keys: Up to 10 of the unknown ones.
        notes: What else has to be known of it.
        made_ms: A moment before the log's ends were asked for, Unix milliseconds.
        made_from: The rebuild from which it was made; empty if it was made from the start of the log.
        deletes: Whether the changelog also deletes old records, as those of window stores do.
        layers: Its files, the oldest first; without names where the format keeps its own list of them.
    """

    version: int = FORMAT
    changelog: str
    topic_id: str
    as_of: str
    as_of_ms: int
    keys: int
    records: int
    without_metadata: int
    unknown: int
    undecodable: int | None
    seconds: float
    format: str
    partitions: tuple[RebuiltPartition, ...]
    unknown_keys: tuple[UnknownKey, ...] = ()
    notes: tuple[str, ...] = ()
    made_ms: int = 0
    made_from: str = ""
    deletes: bool = False
    layers: tuple[Layer, ...] = ()

    @property
    def columns(self) -> str:
        """The schema of the rows."""
        return columns_of(is_decoded=self.undecodable is not None)

    @property
    def totals(self) -> dict[str, int | float | None]:
        """The counts for a machine."""
        names = ("keys", "records", "without_metadata", "unknown", "seconds")
        more = () if self.undecodable is None else ("undecodable",)
        return {name: getattr(self, name) for name in (*names, *more)}


def columns_of(*, is_decoded: bool) -> str:
    """Return the schema of a rebuild's rows; `is_decoded`: with the columns that `--app` adds."""
    return (f"{DECODED}, " if is_decoded else "") + COLUMNS


def write_layer(
    rows: DataFrame, folder: Folder, layer: Layer, *, codecs: Codecs | None
) -> tuple[Layer, dict[int, Digest]]:
    """Write rows below a rebuild's folder, and check that they can be read.

    Returns:
        The layer with its files, and the digest of each partition; `more` is how many keys and values don't decode.

    Raises:
        TargetError: Rows are missing, or are others.
    """
    # Decoded columns follow from `value`, which is compared.
    root, names = folder.below(layer.folder), [name for name in rows.columns if name != VALUE_COLUMNS]
    watch, written = watched(rows, names)
    write_files(watch if codecs is None else decoded(watch, codecs), root)
    lost = None if codecs is None else F.count_if(is_lost())
    read = digests(_read_files(root, columns_of(is_decoded=lost is not None)), names, lost=lost)
    require_same(written, read.values(), root)
    return replace(layer, rows=sum(digest.rows for digest in read.values()), files=digests_of(root)), read


def write_files(rows: DataFrame, folder: Folder) -> None:
    """Write rows below `partition=…` folders."""
    rows.write.options(**WRITING).partitionBy("partition").parquet(folder.uri)


def _read_files(folder: Folder, columns: str) -> DataFrame:
    # of no rows there is no file that would tell the columns
    return folder.spark.read.options(**VERIFIED).schema(columns).parquet(folder.uri)


def is_lost() -> Column:
    """Return of a row with the columns that `--app` adds whether its key or its value doesn't decode."""
    return F.col("value").isNotNull() & (F.col("key_json").isNull() | F.col("value_json").isNull())


def read_rebuild(spark: SparkSession, folder: str | Path) -> DataFrame:
    """Read what `write_rebuild` wrote to a folder, given by its path or URI.

    Raises:
        ReadError: The folder is no rebuild, or a file of it is missing, or isn't what was written.
    """
    place = Folder(spark, folder, ReadError)
    rebuilt = read_summary(place)
    require_sound(place, rebuilt)
    with reading(f"the rebuild in {place}"):
        return state_rows(place, rebuilt)


def read_summary(folder: Folder | Path) -> Rebuilt:
    """Read a rebuild's summary; `ReadError` if the folder is no rebuild."""
    try:
        text = (folder / SUMMARY).read_text("utf-8") if isinstance(folder, Path) else folder.text(SUMMARY)
    except (OSError, ReplayError, ValueError) as error:
        raise ReadError(f"{folder} is no rebuild: its {SUMMARY} can't be read ({error}): rebuild again") from error
    return decode_summary(text, folder)


def decode_summary(content: str | bytes, where: object) -> Rebuilt:
    """Decode a rebuild's summary; `where` is for errors, those of `read_summary`."""
    try:
        raw: Any = msgspec.json.decode(content)
        version = raw["version"]
        if version == FORMAT:
            require_crc32(raw)
            return msgspec.convert(raw, Rebuilt)
    except (*MISSHAPEN, msgspec.MsgspecError) as error:
        raise ReadError(f"{where} is no rebuild: its {SUMMARY} can't be read ({error}): rebuild again") from error
    raise ReadError(
        f"{where} is a rebuild of format {version}, this release reads format {FORMAT}: rebuild again, or use the "
        "release that made it"
    )


def state_rows(folder: Folder, rebuilt: Rebuilt) -> DataFrame:
    """Return the rows of a state from the files of its layers; those aren't looked at."""
    rows, *newer = (_read_files(folder.below(layer.folder), rebuilt.columns) for layer in rebuilt.layers)
    for layer, changes in zip(rebuilt.layers[1:], newer, strict=True):
        rows = without_keys(rows, changes, layer.rows).unionByName(changes)
    return rows.where(F.col("value").isNotNull()) if newer else rows


def without_keys(rows: DataFrame, other: DataFrame, count: int) -> DataFrame:
    """Return the rows whose partition and key isn't among the `count` rows of another frame."""
    keys = other.select(F.col("partition").alias("_partition"), F.col("key").alias("_key"))
    is_same = (F.col("partition") == F.col("_partition")) & F.col("key").eqNullSafe(F.col("_key"))
    return rows.join(to_all(keys, count), is_same, "left_anti")


def require_sound(folder: Folder, rebuilt: Rebuilt) -> None:
    """Check that a rebuild has its files and no others, as they were written.

    Raises:
        ReadError: It hasn't.
    """
    for layer in rebuilt.layers:
        root = folder.below(layer.folder)
        _require_names(root, layer)
        for name, digest in digests_of(root).items():
            if digest != tuple(layer.files[name]):
                raise ReadError(
                    f"{root}/{name} of the rebuild isn't what was written: it has (bytes, CRC-32) {digest}, and had "
                    f"{tuple(layer.files[name])}: rebuild again"
                )


def _require_names(root: Folder, layer: Layer) -> None:
    names = _sizes(root).keys()
    odd = sorted(names ^ layer.files.keys())
    if odd:
        state = "isn't one of the rebuild's files" if odd[0] in names else "is missing from the rebuild"
        raise ReadError(f"{root}/{odd[0]} {state}: rebuild again, or give a folder that this machine sees")


def digests_of(root: Folder) -> dict[str, tuple[int, int]]:
    """Return the size in bytes and CRC-32 of a layer's files, by path below its folder; errors as of `Folder`."""
    sizes = _sizes(root)
    with ThreadPoolExecutor() as pool:
        return dict(zip(sizes, zip(sizes.values(), pool.map(root.crc32, sizes), strict=True), strict=True))


def _sizes(root: Folder) -> dict[str, int]:
    files = sorted(root.files().items())
    return {name: size for name, (size, _) in files if name.startswith("partition=") and name.endswith(".parquet")}


def link_layers(folder: Folder, rebuilt: Rebuilt, to: Path) -> tuple[Layer, ...]:
    """Link or copy a local rebuild's files below `to`, and return its layers as they are there."""
    layers = tuple(replace(layer, folder=f"{LAYERS}/{number}") for number, layer in enumerate(rebuilt.layers))
    for old, new in zip(rebuilt.layers, layers, strict=True):
        # names that lead out of the folder aren't among those that are there
        _require_names(folder.below(old.folder), old)
        (to / new.folder).mkdir(parents=True)
        for name in old.files:
            source, target = Path(f"{folder}/{old.folder}/{name}"), to / new.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)
    return layers
