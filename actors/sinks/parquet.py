"""Parquet files as a sink's target, exactly once: in a folder, or in object storage.

A partition's files are a chain. Each is named by the offset from which it goes on, is created only if there is none of
that name, and has the next offset in its metadata. So of two workers that write at the same place one is refused, and
reads the chain again. A file is there whole, or isn't there: readers take all that there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

try:
    import obstore
    import pyarrow as pa
    import pyarrow.parquet as pq
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import from_url
except ImportError as error:
    raise ImportError("actors.sinks.parquet takes both: pip install 'faust-actors[parquet,s3]'") from error

from typing_extensions import override

from actors.errors import ConfigurationError, FencedError, Rejected
from actors.ports import TopicPartition
from actors.sinks.batch import Batch, Record, Target

NEXT, TOPIC_ID = b"faust-actors.next_offset", b"faust-actors.topic_id"
REQUEST_S = 60.0
ADDED = frozenset(("_partition", "_offset", "_timestamp"))
_TAIL_BYTES = 64 << 10


class Parquet(Target):
    """Parquet files at a place, a file for each batch: `{topic}/{partition}/{offset, 20 digits}.parquet`.

    A row is a dict of columns; one that it lacks is null. The columns `_partition`, `_offset` and `_timestamp` are
    added. Records without a row are left out. Large batches make large files: `batch=100_000,
    within=timedelta(minutes=1)`.

    Args:
        place: a folder, or a URI of object storage as `s3://bucket/folder`; credentials are the environment's.
        schema: the rows' schema: a row with another column is refused. Without it each file's is that of its own rows,
            and may differ from file to file.
    """

    def __init__(self, place: str | Path, *, schema: pa.Schema | None = None) -> None:
        uri = str(place) if "://" in str(place) else Path(place).absolute().as_uri()
        options: dict[str, Any] = {"mkdir": True}
        if not uri.startswith("file:"):
            options = {"client_options": {"timeout": timedelta(seconds=REQUEST_S), "allow_http": True}}
        try:
            self._store: Any = from_url(uri, **options)
        except (BaseError, ValueError, TypeError) as error:
            raise ConfigurationError(f"Parquet({str(place)!r}): {error}") from error
        self._schema = schema
        self._topic_ids: dict[TopicPartition, str] = {}

    @override
    async def claim(self, source: TopicPartition, topic_id: str) -> tuple[int | None, int | None]:
        self._topic_ids[source] = topic_id
        newest, size = "", 0
        async for entries in obstore.list(self._store, f"{source.topic}/{source.partition}/"):
            files = [(str(entry["path"]), entry["size"]) for entry in entries]
            newest, size = max([(newest, size), *(file for file in files if file[0].endswith(".parquet"))])
        if not newest:
            return None, None
        metadata = await self._metadata(newest, size)
        if NEXT not in metadata:
            raise ConfigurationError(f"{newest} wasn't written by a sink: write to another place, or move it away")
        recorded = metadata.get(TOPIC_ID, b"")
        if topic_id and recorded and recorded != topic_id.encode():
            raise ConfigurationError(
                f"{newest}: topic {source.topic} was deleted and created again since: write to another place, or move "
                f"{source.topic}/ away"
            )
        return int(metadata[NEXT]), None

    async def _metadata(self, path: str, size: int) -> dict[bytes, bytes]:
        length = min(size, _TAIL_BYTES)
        while True:
            tail = bytes(await obstore.get_range_async(self._store, path, start=size - length, length=length))
            footer = int.from_bytes(tail[-8:-4], "little") + 8
            if footer <= length:
                metadata: dict[bytes, bytes] = pq.read_metadata(pa.BufferReader(tail)).metadata or {}
                return metadata
            length = min(size, footer)

    @override
    async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
        raw = await asyncio.to_thread(self._file, batch, rows)
        path = f"{batch.topic}/{batch.partition}/{batch.first:020}.parquet"
        try:
            await obstore.put_async(self._store, path, raw, mode="create")
        except AlreadyExistsError:
            raise FencedError(
                f"{path} exists: another worker, or an attempt that was cut off, has written it"
            ) from None

    def _file(self, batch: Batch, rows: Sequence[Any]) -> bytes:
        pairs = [(record, row) for record, row in zip(batch.records, rows, strict=True) if row is not None]
        wrong = next((row for _, row in pairs if not isinstance(row, Mapping)), None)
        if wrong is not None:
            raise Rejected(f"the row has to be a mapping of columns to values, not {type(wrong).__name__}")
        try:
            return self._encoded(batch, pairs)
        except (pa.ArrowException, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise Rejected(f"{type(error).__name__}: {error}") from error

    def _encoded(self, batch: Batch, pairs: Sequence[tuple[Record, Any]]) -> bytes:
        schema = self._schema
        # Of rows without a schema, the library would take the columns of the first one alone.
        names = dict.fromkeys(name for _, row in pairs for name in row) if schema is None else schema.names
        other = next((name for _, row in pairs for name in row if name in ADDED or name not in names), None)
        if other is not None:
            raise ValueError(f"column {other!r} isn't in the schema, or is one of those that are added")
        columns: dict[Any, Any] = {}
        for name in names:
            values = [row.get(name) for _, row in pairs]
            columns[name] = pa.array(values, None if schema is None else schema.field(name).type)
        table = pa.table(columns, schema=schema)
        records = [record for record, _ in pairs]
        added = {
            "_partition": pa.array([batch.partition] * len(records), pa.int32()),
            "_offset": pa.array([record.offset for record in records], pa.int64()),
            "_timestamp": pa.array([record.timestamp for record in records], pa.int64()),
        }
        for name, column in added.items():
            # Rows without a column make a table without rows, which takes no column.
            table = table.append_column(name, column) if table.num_columns else pa.table({name: column})
        topic_id = self._topic_ids.get(batch.source, "")
        table = table.replace_schema_metadata({NEXT: str(batch.next).encode(), TOPIC_ID: topic_id.encode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return bytes(sink.getvalue())
