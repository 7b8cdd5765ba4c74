"""A changelog as a DataFrame: a source's records, and the write metadata decoded by built-in functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from stores._core.record import (
    INPUT_BITS,
    INPUT_PLACE,
    INPUTS_VERSION,
    METADATA_BYTES,
    METADATA_HEADER,
    METADATA_VERSION,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# (position from 1, bytes) of each field in the write metadata
_METADATA_FIELDS = {"epoch": 2, "source_offset": 10, "expires_at_ms": 18}


def store_of(changelog: str, app: str) -> str | None:
    """Return the store of a changelog, None if it isn't of this app."""
    store = changelog.removeprefix(f"{app}--").removesuffix("-changelog")
    return store if app and store and changelog == f"{app}--{store}-changelog" else None


def read_changelog(source: Source) -> DataFrame:
    """Read all that is committed in a changelog.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` returns it.

    Returns:
        One row a record: `partition` int, `offset` bigint, `key` binary, `value` binary (null in a
        tombstone), `timestamp` timestamp, `epoch` bigint, `source_offset` bigint, `expires_at_ms` bigint (0:
        never), `input` int (the place of the input that `source_offset` is of, null for an actor with one),
        `tombstone` boolean. A record without a key, or without write metadata of this release's version, has null in
        the four columns of write metadata.

    Raises:
        ReplayError: What `Source.describe` raises.
    """
    rows = read_rows(source, source.describe())
    decoded = metadata_fields(F.col("metadata"))
    return rows.select(
        "partition",
        "offset",
        "key",
        "value",
        "timestamp",
        *(column.alias(name) for name, column in decoded.items()),
        F.col("value").isNull().alias("tombstone"),
    )


def read_rows(source: Source, topic: Topic) -> DataFrame:
    """Read the committed records of a changelog between the `starts` and `ends` of `topic`.

    Returns:
        `partition`, `offset`, `key`, `value`, `timestamp` and `metadata`, the header's 25 bytes, or null where
        the record has no key or no such header: a row with null metadata is damage.
    """
    return with_metadata(source.records(topic))


def read_uncommitted_rows(source: Source, topic: Topic) -> DataFrame | None:
    """Read the same up to the high watermarks, committed or not; None where only what was committed is kept."""
    records = source.uncommitted(topic)
    return None if records is None else with_metadata(records)


def with_metadata(records: DataFrame) -> DataFrame:
    """Return `Source.records` as `read_rows` shapes them."""
    return records.select("partition", "offset", "key", "value", "timestamp", metadata_of_record().alias("metadata"))


def metadata_fields(metadata: Column) -> dict[str, Column]:
    """Return the fields of write metadata.

    Returns:
        `epoch`, `source_offset` and `expires_at_ms` as bigints, null of null metadata, and `input` as an int: the place
        of the input that the offset is of, null for an actor with one.
    """
    # to base -10 conv reads 64 bits as a signed number
    fields = {
        name: F.conv(F.hex(F.substring(metadata, first, 8)), 16, -10).cast("bigint")
        for name, first in _METADATA_FIELDS.items()
    }
    fields["source_offset"] = F.when(has_input(metadata), F.shiftright(fields["source_offset"], INPUT_BITS)).otherwise(
        fields["source_offset"]
    )
    return fields | {"input": F.when(has_input(metadata), _place(metadata))}


def expiry(metadata: Column) -> Column:
    """Return the 8 bytes of `expires_at_ms` in write metadata, null of null; they sort as it does unless negative."""
    return F.substring(metadata, _METADATA_FIELDS["expires_at_ms"], 8)


def input_of(metadata: Column) -> Column:
    """Return the place of the input that a write came from, 0 for an actor with one, as an int; null of null."""
    return F.when(has_input(metadata), _place(metadata)).when(metadata.isNotNull(), 0)


def has_input(metadata: Column) -> Column:
    """Return whether write metadata names the input of a write, one of several; null of null metadata."""
    return F.substring(metadata, 1, 1) == F.lit(bytes([INPUTS_VERSION]))


def _place(metadata: Column) -> Column:
    return F.conv(F.hex(F.substring(metadata, INPUT_PLACE.start + 1, 2)), 16, 10).cast("int")


def metadata_of_record() -> Column:
    """Return the write metadata of `Source.records`, as `read_rows` has it."""
    headers = F.col("headers")
    first = F.get(headers, F.lit(0))
    # a worker takes the last of several such headers. Functions with a lambda would keep Spark from compiling the stage
    from_end = F.array_position(F.reverse(F.col("headers.key")), METADATA_HEADER)
    header = F.get(headers, (F.size(headers) - from_end).cast("int"))
    # the framework writes one header; looking there first keeps the search out of the usual record's way
    is_usual = (F.size(headers) == 1) & (first["key"] == METADATA_HEADER)
    raw = F.when(is_usual, first["value"]).when(from_end > 0, header["value"])
    valid = (
        F.col("key").isNotNull()
        & (F.octet_length(raw) == METADATA_BYTES)
        & F.substring(raw, 1, 1).isin(bytes([METADATA_VERSION]), bytes([INPUTS_VERSION]))
    )
    return F.when(valid, raw)
