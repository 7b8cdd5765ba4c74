"""PostgreSQL as a sink's target, exactly once: rows, offsets and fencing tokens in the same transaction."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from zlib import crc32

try:
    import psycopg
    from psycopg import sql
    from psycopg.rows import dict_row
    from psycopg.types.json import JsonbDumper
except ImportError as error:
    raise ImportError("actors.sinks.postgres takes psycopg: pip install 'faust-actors[postgres]'") from error

from typing_extensions import override

from actors.errors import ConfigurationError, FencedError, Rejected
from actors.ports import TopicPartition
from actors.sinks.batch import Batch, Target

OFFSETS = "faust_sink_offsets"
CONNECT_S = 10
_DDL = """CREATE TABLE IF NOT EXISTS {} (
    sink text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id text NOT NULL,
    next_offset bigint,
    token bigint NOT NULL,
    PRIMARY KEY (sink, topic, partition)
)"""
_CLAIM = """INSERT INTO {0} AS o (sink, topic, partition, topic_id, token) VALUES (%s, %s, %s, %s, 1)
ON CONFLICT (sink, topic, partition) DO UPDATE SET token = o.token + 1 RETURNING next_offset, token, topic_id"""
_ADVANCE = """UPDATE {} SET next_offset = %s WHERE sink = %s AND topic = %s AND partition = %s
AND token = %s AND (next_offset IS NULL OR next_offset = %s)"""

_STAGE = """CREATE TEMPORARY TABLE IF NOT EXISTS {staging} ON COMMIT DELETE ROWS
AS SELECT {columns} FROM {table} WITH NO DATA"""
_MERGE = """INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} ON CONFLICT ({key}) DO {action}"""
_UNWRITABLE = (psycopg.errors.CardinalityViolation, TypeError, ValueError, OverflowError)
"""A key that is there twice, written in two ways, which halving parts; values that don't become text or JSON."""
_FIELDS = ("__struct_fields__", "__dataclass_fields__", "asdict")
"""Marks of types with fields: structs, dataclasses and Faust's records."""

Key = tuple[Any, ...]
Connection = psycopg.AsyncConnection[Any]
Cursor = psycopg.AsyncCursor[Any]
Step = tuple[dict[tuple[str, ...], list[Key]], list[Key]]
"""Rows by their columns, and keys to delete after them."""


class Sessions:
    """Up to `most` connections to a database, made when they are needed and kept while they work.

    Args:
        address: a connection string, `postgresql://…`, or `key=value` pairs.
        most: how many are open at a time.
        timeout: the longest statement, and the longest pause within a transaction.
    """

    def __init__(self, address: str, *, most: int, timeout: timedelta) -> None:
        try:
            psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.ProgrammingError:
            raise ConfigurationError(
                "the database's address isn't one of PostgreSQL's: write postgresql://user@host:5432/database"
            ) from None
        self._address = address
        self._timeout_s = timeout.total_seconds()
        self._free = asyncio.Semaphore(most)
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """Yield a connection outside of a transaction. It is closed after an error, `Rejected` excepted."""
        async with self._free:
            connection = self._idle.pop() if self._idle else await self._connected()
            try:
                # The server may hang, or its machine be gone.
                async with asyncio.timeout(2 * self._timeout_s):
                    yield connection
            except BaseException as error:
                self._idle.append(connection)
                if not isinstance(error, Rejected):
                    # The idle ones lead to the same server.
                    await self.close()
                raise
            self._idle.append(connection)

    async def _connected(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(
            self._address, autocommit=True, connect_timeout=CONNECT_S, application_name="faust-actors"
        )
        milliseconds = str(int(self._timeout_s * 1000))
        await connection.execute(
            "SELECT set_config('statement_timeout', %s, false), set_config('client_min_messages', 'warning', false), "
            "set_config('idle_in_transaction_session_timeout', %s, false)",
            (milliseconds, milliseconds),
        )
        connection.adapters.register_dumper(dict, JsonbDumper)
        return connection

    async def close(self) -> None:
        """Close all connections that nobody uses. May be called twice."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


class Postgres(Target):
    """A table of a PostgreSQL database.

    A row is a mapping of columns to values; dicts within it become JSON. A batch is copied into a temporary table and
    merged from there, with the partition's next offset and the check of the fencing token in the same transaction. A
    record without a row, such as a tombstone, deletes the row with the record's key.

    Args:
        address: a connection string, `postgresql://user:password@host:5432/database`.
        table: the table's name, with its schema as `schema.table`.
        key: the columns of a unique index, one or several: a row takes the place of the one with the same key. Without
            it rows are only added.
        offsets: the table of offsets and tokens; it is made if it is missing.
        connections: how many are open at a time.
        timeout: the longest statement; a batch that takes longer is rolled back and written again.
    """

    def __init__(
        self,
        address: str,
        *,
        table: str,
        key: str | Sequence[str] = (),
        offsets: str = OFFSETS,
        connections: int = 4,
        timeout: timedelta = timedelta(minutes=1),
    ) -> None:
        self._sessions = Sessions(address, most=connections, timeout=timeout)
        self._table = sql.Identifier(*table.split("."))
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._offsets_name = offsets
        self._offsets = sql.Identifier(*offsets.split("."))
        self._sink = ""
        self._has_offsets = False

    @override
    def prepare(self, sink: str) -> None:
        if self._sink:
            raise ConfigurationError(f"sink {sink}: its target is that of sink {self._sink}: make a second one")
        self._sink = sink

    @override
    async def claim(self, source: TopicPartition, topic_id: str) -> tuple[int | None, int | None]:
        async with self._sessions.session() as connection:
            await self._ensure_offsets(connection)
            parameters = (self._sink, *source, topic_id)
            cursor = await connection.execute(sql.SQL(_CLAIM).format(self._offsets), parameters)
            following, token, recorded = (await cursor.fetchone()) or (None, 1, topic_id)
        if topic_id and recorded and recorded != topic_id:
            raise ConfigurationError(
                f"sink {self._sink}: topic {source.topic} was deleted and created again since offset {following} of "
                f"partition {source.partition} was written. To begin with the new topic: DELETE FROM "
                f"{self._offsets_name} WHERE sink = '{self._sink}' AND topic = '{source.topic}'"
            )
        return following, token

    async def _ensure_offsets(self, connection: Connection) -> None:
        if self._has_offsets:
            return
        cursor = await connection.execute("SELECT to_regclass(%s)", (self._offsets.as_string(),))
        if (await cursor.fetchone()) == (None,):
            statement = sql.SQL(_DDL).format(self._offsets)
            try:
                await connection.execute(statement)
            except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject):
                # Another worker has made it at the same time.
                pass
            except psycopg.errors.InsufficientPrivilege:
                raise ConfigurationError(
                    f"sink {self._sink}: the table of offsets is missing, and this user may not make it. Run: "
                    f"{statement.as_string()}; and grant SELECT, INSERT and UPDATE on it"
                ) from None
        self._has_offsets = True

    @override
    async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
        steps = self._steps(batch, rows)
        async with self._sessions.session() as connection:
            try:
                async with connection.transaction(), connection.cursor() as cursor:
                    await self._advance(cursor, batch)
                    for upserts, deletes in steps:
                        for columns, values in upserts.items():
                            await self._write_rows(cursor, columns, values)
                        if deletes:
                            await self._delete(cursor, deletes)
            except (psycopg.DataError, psycopg.IntegrityError, *_UNWRITABLE) as error:
                raise Rejected(f"{type(error).__name__}: {error}") from error
            except psycopg.ProgrammingError as error:
                # Without a state it is not the server that refuses: no type of PostgreSQL takes the value.
                if error.sqlstate is None:
                    raise Rejected(str(error)) from error
                raise

    def _steps(self, batch: Batch, rows: Sequence[Any]) -> list[Step]:
        """Return what is written one after the other: of each key the last row or delete.

        A step begins with each row behind a delete, because the database alone can tell whether both have one key: a
        UUID in capitals is equal to one in small letters.
        """
        latest: dict[Any, Any] = {}
        for record, row in zip(batch.records, rows, strict=True):
            if row is not None and type(row) is not dict and not isinstance(row, Mapping):
                raise Rejected(f"the row has to be a mapping of columns to values, not {type(row).__name__}")
            if self._key:
                key = self._key_of(record.key if row is None else row)
                text = tuple(map(str, key))
                latest.pop(text, None)
                latest[text] = key if row is None else row
            elif row is not None:
                latest[record.offset] = row
        steps: list[Step] = [(defaultdict(list), [])]
        for row in latest.values():
            if type(row) is tuple:
                steps[-1][1].append(row)
                continue
            if steps[-1][1]:
                steps.append((defaultdict(list), []))
            steps[-1][0][tuple(row)].append(tuple(row.values()))
        return steps

    def _key_of(self, parts: Any) -> Key:
        """Return the key's columns of a row, or of a record's key: its fields, its elements, or itself."""
        try:
            if isinstance(parts, Mapping):
                return tuple([parts[column] for column in self._key])
            if any(hasattr(parts, mark) for mark in _FIELDS):
                return tuple(getattr(parts, column) for column in self._key)
        except (KeyError, AttributeError) as error:
            raise Rejected(f"a column of the key is missing: {error}") from None
        key = (parts,) if len(self._key) == 1 else tuple(parts) if isinstance(parts, Sequence) else ()
        if len(key) != len(self._key):
            raise Rejected(f"the record's key isn't one of {len(self._key)} columns")
        return key

    async def _advance(self, cursor: Cursor, batch: Batch) -> None:
        """Note the next offset. The row's lock makes the others wait until this transaction has ended.

        Raises:
            FencedError: another worker has claimed the partition, or has written it.
        """
        parameters = (batch.next, self._sink, *batch.source, batch.token, batch.first)
        await cursor.execute(sql.SQL(_ADVANCE).format(self._offsets), parameters)
        if cursor.rowcount != 1:
            raise FencedError(f"sink {self._sink}: another worker has claimed {batch.source} since")

    async def _write_rows(self, cursor: Cursor, columns: tuple[str, ...], values: Sequence[Key]) -> None:
        """Copy rows with these columns: without a key into the table, else through a temporary one."""
        changed = [sql.Identifier(column) for column in columns if column not in self._key]
        update = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(column) for column in changed)
        names = {
            "table": self._table,
            "staging": sql.Identifier(f"faust_sink_{crc32(repr(columns).encode()):08x}") if self._key else self._table,
            "columns": _names(columns),
            "key": _names(self._key),
            "action": sql.SQL("UPDATE SET {}").format(update) if changed else sql.SQL("NOTHING"),
        }
        if self._key:
            await cursor.execute(sql.SQL(_STAGE).format(**names))
        async with cursor.copy(sql.SQL("COPY {staging} ({columns}) FROM STDIN").format(**names)) as copy:
            for row in values:
                await copy.write_row(row)
        if self._key:
            await cursor.execute(sql.SQL(_MERGE).format(**names))

    async def _delete(self, cursor: Cursor, keys: Sequence[Key]) -> None:
        condition = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(column)) for column in self._key)
        await cursor.executemany(sql.SQL("DELETE FROM {} WHERE {}").format(self._table, condition), keys)

    @override
    async def close(self) -> None:
        await self._sessions.close()


class SelectRow:
    """Loads rows for `actors.sinks.Lookup`: the first one of a query with the parameter `%s`, as a dict.

    A key that is a tuple has the values of several parameters.

    Args:
        connections: how many are open at a time.
        timeout: the longest query.
    """

    def __init__(
        self, address: str, query: str, *, connections: int = 2, timeout: timedelta = timedelta(seconds=10)
    ) -> None:
        self._sessions = Sessions(address, most=connections, timeout=timeout)
        # The program's own text.
        self._query = query.encode()

    async def __call__(self, key: Any) -> dict[str, Any] | None:
        """Return the row of a key, None if there is none."""
        async with self._sessions.session() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(self._query, key if isinstance(key, tuple) else (key,))
            return await cursor.fetchone()

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._sessions.close()


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
