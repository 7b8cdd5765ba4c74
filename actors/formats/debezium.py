"""Tables that follow a table of PostgreSQL by the changes that Debezium writes: `app.table(topic, cdc="debezium")`.

The topic of Debezium has envelopes by its own keys. A forwarder reads it, and sends each change to a topic of the app,
by the key that the table is declared with. There a record's value is

    kind, 1 byte    r a row of a snapshot, c a row that was written, p one without some columns, d a row that was
                    deleted, x a tombstone without a deletion, t a truncation
    lsn, 8 bytes    the position of the change in the database's log
    content         r, c: the row as a JSON object; p: the pair of row and missing columns; t: the key to go on from

and rows of the table are r and c. A row's lock orders the changes of a key, so that a change with a smaller lsn than
that of the row, or of its deletion, is a repetition. Only a transaction that was open during a snapshot has a smaller
lsn than the rows of the snapshot and isn't in them: what was written takes the place of any row of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property
from typing import Any

import msgspec

from actors._core.task.policy import OnError
from actors._core.values.read_back import unfit
from actors.declare.streams.repartition import Route, checked_repartition, forwarder_of
from actors.declare.values.codecs import UNTYPED, Codec, CodecError, Place, is_model, is_record, resolve, strip_optional
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError, UnresolvedSchemaError, show_bytes
from actors.formats.avro import Avro
from actors.formats.columns import Columns, avro_columns, converted, hints_of, json_columns
from actors.formats.data import load_model
from actors.formats.framing import MAX_READERS, id_of, type_is_int
from actors.formats.registry import client_of
from actors.runtime.inputs.event_times import with_content
from actors.runtime.message.context import Context
from actors.runtime.message.grouping import TIME_BYTES
from actors.runtime.message.table import Table
from stores._core.overlay import Overlay

LSN_BYTES = 8
HEAD = 1 + LSN_BYTES
SNAPSHOT, WRITTEN, PARTIAL, DELETED, TOMBSTONE, TRUNCATED = b"r", b"c", b"p", b"d", b"x", b"t"
KINDS = {"r": SNAPSHOT, "c": WRITTEN, "u": WRITTEN, "d": DELETED, "t": TRUNCATED}
MESSAGE = "m"
"""The operation of what `pg_logical_emit_message` writes, which is about no row."""
TRUNCATION_KEY, DELETION_KEYS = b"t", b"k"
"""The rows of the store of deletions: the last truncation, and the keys behind their prefix."""
DELETION_TTL = timedelta(days=7)
"""For how long the deletion of a key is kept, against changes before it that a connector repeats."""
PAGE_ROWS = 256
"""How many rows one message of a truncation looks at."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change as Debezium writes it."""

    kind: bytes
    lsn: int
    row: Any = None
    columns: Columns | None = None
    timestamp_ms: int | None = None


class Envelopes:
    """Reads the keys and values of a topic of Debezium: JSON, JSON with its schema, or Avro."""

    def __init__(self, app: Any, topic: str) -> None:
        self._app, self._topic = app, topic
        self._columns: dict[bytes, Columns] = {}

    @cached_property
    def _avro(self) -> tuple[Codec, Codec]:
        avro, key, value = Avro(), Place(self._topic, "key"), Place(self._topic, "value")
        return avro.bind(key, None, self._app), avro.bind(value, None, self._app)

    def key(self, raw: bytes) -> dict[str, Any]:
        """Return the columns of a key.

        Raises:
            ValueError: it is no key of Debezium.
        """
        columns = self._avro[0].decode(raw) if raw[:1] == b"\0" else _payload(raw)[0]
        if not isinstance(columns, dict) or not columns:
            raise ValueError(f"its key has no columns of a primary key: {show_bytes(raw)}")
        return columns

    def event(self, headers: Any, raw: bytes) -> Event | None:
        """Return the change of a record; None if it is about no row.

        Raises:
            ValueError: it is no envelope of Debezium, or not of PostgreSQL.
        """
        frame = self._avro[1].frame
        content = raw if frame is None else frame(headers, raw)
        if content[:1] in (b"\0", b"\1"):
            data, columns = self._avro[1].decode(content), self._avro_columns(content)
        else:
            data, schema = _payload(content)
            columns = json_columns(schema)
        source: Any = data.get("source") if isinstance(data, dict) else None
        if not isinstance(source, dict) or "op" not in data:
            raise ValueError("it is no envelope of Debezium, which has op, source, before and after")
        op, row = data["op"], data.get("after")
        lsn: Any = source.get("lsn")
        at_ms: Any = source.get("ts_ms")
        if op == MESSAGE:
            return None
        kind = KINDS.get(op) if isinstance(op, str) else None
        if kind is None:
            raise ValueError(f"its op is {op!r:.80}, which is none of {', '.join(KINDS)}")
        if not type_is_int(lsn) or not 0 <= lsn < 1 << 8 * LSN_BYTES:
            raise ValueError(
                f"its source.lsn is {lsn!r:.80}: only changes of PostgreSQL can be followed, which have it"
            )
        if (kind in (SNAPSHOT, WRITTEN)) != isinstance(row, dict):
            raise ValueError(f"its op is {op!r}, and its after is {row!r:.80}")
        return Event(kind, lsn, row, columns, at_ms if type_is_int(at_ms) and at_ms >= 0 else None)

    def _avro_columns(self, raw: bytes) -> Columns:
        prefix, id = id_of(raw) or (b"", 0)
        columns = self._columns.get(prefix)
        if columns is None:
            columns = avro_columns(client_of(self._app).schema(id, "AVRO").text)
            if len(self._columns) < MAX_READERS:
                self._columns[prefix] = columns
        return columns


def _payload(raw: bytes) -> tuple[Any, Any]:
    """Return what JSON says, and its schema if Kafka Connect wrote one."""
    data = msgspec.json.decode(raw)
    if isinstance(data, dict) and data.keys() == {"schema", "payload"}:
        return data["payload"], data["schema"]
    return data, None


@dataclass(frozen=True)
class Rows:
    """The format of the topic by which changes come to their table; see the top of this file."""

    type: Any

    def bind(self, place: Place, type_: Any, app: Any) -> Codec:
        """Return the codec of a type; see `Format`."""
        decode = resolve(type_, "json").decode

        def decode_row(raw: bytes) -> Any:
            if raw[:1] in (SNAPSHOT, WRITTEN):
                return decode(raw[HEAD:])
            # What isn't settled yet is bytes.
            return None if raw[:1] in (DELETED, TOMBSTONE) else raw

        def refuse(_: Any) -> bytes:
            raise CodecError(f"topic {place.topic} has what Debezium writes: change the database's table")

        return Codec(decode_row, refuse, "rows of a database", origin=(type_, place, self))


@dataclass(frozen=True, slots=True)
class ChangeRoute(Route):
    """The way of changes to the topic of their table."""

    envelopes: Envelopes
    key_type: Any
    encode_key: Callable[[Any], bytes]
    decode_row: Callable[[bytes], Any]
    hints: Mapping[str, Any]
    last_deleted: dict[int, bytes | None]
    """By partition, the key of the last record if that was a deletion: its tombstone follows."""

    def send(self, ctx: Context, value: Any) -> None:
        """Forward the change that is handled.

        Raises:
            RecordError: it is none that can be followed.
        """
        record = ctx._record
        last, self.last_deleted[ctx.partition] = self.last_deleted.get(ctx.partition), None
        try:
            event = Event(TOMBSTONE, 0) if record.value is None else self.envelopes.event(record.headers, record.value)
            if event is None or (event.kind == TOMBSTONE and last == record.key):
                return
            raw_key = None if event.kind == TRUNCATED else self._key(record.key)
            content = self._content(event)
        except (UnresolvedSchemaError, MemoryError):
            raise
        except Exception as error:
            raise ctx.undecodable(error) from error
        if event.kind == DELETED:
            self.last_deleted[ctx.partition] = record.key
        partitions: Iterable[int | None] = [None]
        if raw_key is None:
            partitions = range(ctx._working("send").resolve_output(self.to).partition_count)
        for partition in partitions:
            # A truncation has no key, and comes to one partition of Debezium's topic; it is about all of the table's.
            ctx.send(
                self.to,
                key=raw_key,
                value=content,
                partition=partition,
                timestamp_ms=event.timestamp_ms,
                headers=ctx.headers,
            )

    def _key(self, raw: bytes | None) -> bytes:
        if raw is None:
            raise ValueError("it has no key: give the database's table a primary key")
        if self.key_type is bytes:
            return raw
        columns: Any = self.envelopes.key(raw)
        if is_record(self.key_type) or is_model(self.key_type):
            return self.encode_key(load_model(self.key_type, columns))
        if len(columns) == 1 and not hasattr(self.key_type, "__annotations__"):
            (columns,) = columns.values()
        return self.encode_key(msgspec.convert(columns, self.key_type))

    def _content(self, event: Event) -> bytes:
        head = event.kind + event.lsn.to_bytes(LSN_BYTES)
        if event.row is None:
            return head
        row, missing = converted(event.row, event.columns or {}, self.hints)
        if (reason := unfit(row)) is not None:
            raise ValueError(reason)
        if missing:
            return PARTIAL + head[1:] + msgspec.json.encode((row, missing))
        raw = head + msgspec.json.encode(row)
        # What its table can't read fails here, where the offset is that of Debezium's record.
        self.decode_row(raw)
        return raw


class Debezium:
    """The changes of one table of a database; see `actors.runtime.message.table.Changes`.

    Attributes:
        topic: what brings them to the table that follows it.
        owned: the store of deletions.
    """

    def __init__(self, app: Any, table: str, source: Any) -> None:
        name, schema = str(source.get_topic_name()), source.schema
        key_type, _ = strip_optional(schema.key_type)
        what = f"table {table}"
        if key_type in UNTYPED:
            raise ConfigurationError(
                f'{what}: cdc="debezium" needs the type of the table\'s keys: app.topic({name!r}, key_type=…), int or '
                "str for a primary key of one column, a Struct for more"
            )
        target = checked_repartition(app, what, table, name)
        self._app, self._name, self._source = app, table, name
        self.topic = app.topic(target, key_type=key_type, format=Rows(schema.value_type))
        self.topic.made_of, self.topic.is_keyless = name, True
        self._raw = app.topic(target, key_type=bytes, value_type=bytes)
        self.owned = app.store(f"{table}-deletions", key_type=bytes, value_type=bytes, placement="task")
        self._table: Table[Any, Any] | None = None

    def feed(self, table: Table[Any, Any], on_error: OnError) -> None:
        """Have changes forwarded to a table, with the policy of its actor."""
        self._table = table
        source, schema = self._app.topic(self._source, key_type=bytes, value_type=bytes), self.topic.schema
        # Codecs follow the app's settings, which aren't there yet.
        codecs = cache(lambda: topic_codecs(self.topic))
        route = ChangeRoute(
            self._name,
            lambda key, _: key,
            self._raw,
            Envelopes(self._app, self._source),
            schema.key_type,
            lambda key: codecs()[0].encode(key),
            lambda raw: codecs()[1].decode(raw),
            hints_of(strip_optional(schema.value_type)[0]),
            {},
        )
        forwarder = forwarder_of(self._app, self._source, source, on_error)
        forwarder.routes.append(route)
        forwarder.is_whole = True

    def settle(self, ctx: Context, value: Any) -> tuple[bool, Any]:
        """Return whether the change that is handled changes the table, and the row; see `Changes`.

        Raises:
            RecordError: it lacks columns, and the row that has them is missing.
        """
        table, state = self._table, ctx._state
        raw = ctx._record.value
        if table is None or state is None or raw is None:
            raise AssertionError(f"table {self._name} gets changes that nobody forwarded")
        kind, lsn = raw[:1], _lsn(raw)
        rows, deletions = state.overlays[table], state.overlays[self.owned]
        truncated = _lsn(deletions.get(TRUNCATION_KEY))
        if kind == TRUNCATED:
            if lsn > truncated:
                self.owned.write_raw(state, TRUNCATION_KEY, raw[:HEAD])
            self._truncate(ctx, rows, raw)
            return False, None
        row, place = rows.get(ctx._raw_key), DELETION_KEYS + ctx._raw_key
        current = None if row is None else row[TIME_BYTES:]
        last = _lsn(deletions.get(place) if current is None else current)
        if kind == TOMBSTONE:
            # A deletion that the topic's compaction took, whose lsn is unknown.
            lsn = last
        if not _is_new(kind, lsn, current=current, last=last, truncated=truncated):
            return False, None
        if kind in (DELETED, TOMBSTONE):
            deadline_ms = DELETION_TTL // timedelta(milliseconds=1)
            self.owned.write_raw(state, place, kind + lsn.to_bytes(LSN_BYTES), deadline_ms)
            return True, None
        if kind == PARTIAL:
            raw = self._completed(ctx, raw, current)
            ctx._record = with_content(ctx._record, raw, "")
            value = table.decode_value(bytes(TIME_BYTES) + raw)
        if current is None:
            deletions.delete(place)
        return True, value

    def _completed(self, ctx: Context, raw: bytes, current: bytes | None) -> bytes:
        """Return a row with the columns that a change lacks, as they are in the table."""
        new, missing = msgspec.json.decode(raw[HEAD:])
        old = {} if current is None else msgspec.json.decode(current[HEAD:])
        lacking = [name for name in missing if name not in old]
        if lacking:
            raise ctx.undecodable(
                ValueError(
                    f"it leaves column {lacking[0]} as it was, and table {self._name} has no such row: read the "
                    "topic from a snapshot on, or have the database write whole rows (alter table … replica identity "
                    "full)"
                )
            )
        return WRITTEN + raw[1:HEAD] + msgspec.json.encode(new | {name: old[name] for name in missing})

    def _truncate(self, ctx: Context, rows: Overlay, raw: bytes) -> None:
        """Send a deletion for each row that is older, a page at a time."""
        for count, (key, row) in enumerate(rows.items(raw[HEAD:] or None)):
            if count == PAGE_ROWS:
                ctx.send(self._raw, value=raw[:HEAD] + key, partition=ctx.partition)
                return
            if _lsn(row[TIME_BYTES:]) < _lsn(raw):
                ctx.send(self._raw, key=key, value=DELETED + raw[1:HEAD], partition=ctx.partition)


def _is_new(kind: bytes, lsn: int, *, current: bytes | None, last: int, truncated: int) -> bool:
    """Return whether a change is later than the last one of its key.

    Args:
        kind: of the change.
        lsn: of the change.
        current: the row; None if there is none.
        last: the lsn of the row, or of its deletion; -1 without either.
        truncated: the lsn of the last truncation.
    """
    if kind == TOMBSTONE:
        return current is not None
    if lsn <= truncated:
        return kind == DELETED and lsn == truncated and last < lsn
    if current is not None and current[:1] == SNAPSHOT and kind != SNAPSHOT:
        return True
    # A row that a tombstone took comes again with its own lsn.
    return lsn > last or (lsn == last and current is None and kind != DELETED)


def _lsn(raw: bytes | None) -> int:
    return -1 if raw is None else int.from_bytes(raw[1:HEAD])
