"""All that decodes bytes from outside, and how each is tried: a new decoder has to be added here, see `test_outside`.

A decoder is named by its function, `Class.method` where it has one.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import faust
import msgspec

from actors._core import aggregates, pages
from actors._core.group.members import Member, TaskId, decode_member_data, encode_member_data
from actors._core.group.placement import Copies, decode_copies, encode_copies
from actors._core.outside import MALFORMED
from actors._core.task import commit
from actors._core.task import completed as progress
from actors._core.task.pauses import Pause
from actors._core.windows import changes, foreign_keys, join_rows, rows, versions
from actors._faust.settings import values as setting_values
from actors._kafka.admin.owners import KafkaOwners, StoreRecord
from actors.admin.parked import reader as lines
from actors.admin.parked.operations import DropParked
from actors.coordination import messages as m
from actors.coordination.client import transport
from actors.coordination.errors import CoordinationError
from actors.declare.values.codecs import CodecError, resolve
from actors.declare.values.messages import _tag_in
from actors.declare.values.stored import stored_values
from actors.declare.values.versions import versioned
from actors.errors import NewerVersionError, NotReadyError
from actors.formats.registry import schema_json
from actors.http_client import HttpReply
from actors.local_kafka import probe
from actors.local_kafka import settings as local_settings
from actors.local_kafka.errors import LocalKafkaError
from actors.ports import ActorReply, OwnerInput, OwnerRecord
from actors.runtime import commands
from actors.runtime.handlers.call_arguments import decode_arguments
from actors.runtime.observe import tracing
from actors.runtime.outbox import calls as effect_calls
from actors.runtime.quarantine import entries as parked_entries
from actors.runtime.requests import replies as answers
from actors.runtime.requests import requests as asks
from actors.runtime.timers import timers
from actors.testing.fakes.log import StoredRecord
from actors.web import front, operations, workers
from actors.web.access import callers
from actors.web.dashboard import group
from actors.web.dashboard import pages as dashboard_pages
from actors.web.dashboard.history import History
from actors.web.dashboard.plots import read_series
from actors.web.problems import Problem
from actors.web.queries import answers as answer_parts
from actors.web.queries import coding as query_coding
from actors.web.queries.coding import ENCODINGS, KeyCoding, Parameters, arguments, many_body
from actors.web.queries.digests import digests_body
from spark_replay import printing
from spark_replay.comparison import live, writers
from spark_replay.errors import ReplayError
from spark_replay.fold import points
from spark_replay.fold.rebuilt import SUMMARY, decode_summary, read_summary
from spark_replay.sources.archives.ledger import Ledger
from spark_replay.sources.archives.manifest import ArchiveFile, Manifest, decode_entry, encode_entry
from spark_replay.sources.brokers.topic import Span
from stores import folder
from stores._core import identity, manifest, record, windows
from stores._core import snapshot as snapshot
from stores.errors import StoreError

Decode = Callable[[bytes], object]


@dataclass(frozen=True)
class Decoder:
    """How bytes are given to a decoder, documents that it takes, and what it may raise for others."""

    call: Decode
    valid: tuple[bytes, ...]
    raises: tuple[type[Exception], ...] = ()


class Point(msgspec.Struct):
    x: int
    at: datetime
    left: timedelta
    price: Decimal
    id: UUID
    tags: set[str]
    more: dict[str, Any] = {}


@dataclass
class Data:
    x: float
    y: int | None = None


class Record(faust.Record, serializer="json", isodates=True, decimals=True):
    x: int
    at: datetime
    price: Decimal


_POINT = msgspec.json.encode(
    Point(1, datetime(2026, 1, 1, tzinfo=UTC), timedelta(1), Decimal("1.5"), UUID(int=1), {"a"}, {"b": [1.5, None]})
)
_RECORD = b'{"x": 1, "at": "2026-01-01T00:00:00Z", "price": "1.5"}'
_PROGRESS = windows.Progress(5, b"w", 6, "l", 7, has_entries=True, expired=b"w" + bytes(8))
_PARKED = msgspec.json.encode(
    parked_entries.ParkedMessage(
        topic="in", partition=1, offset=2, timestamp_ms=3, key=b"k", value=b"v", headers=[("h", b"x"), ("n", None)],
        id="id", timer="t", error="e", attempts=1, parked_at_ms=4,
    )
)  # fmt: skip
_HEAD = b'{"v":2,' + _PARKED[1:-1] + b',"size":1,"slices":1}'
_EFFECT = msgspec.json.encode(
    effect_calls.EffectRecord(
        id="i", name="n", args=[1], kwargs={"a": [2.5]}, result=(b"r", [("h", b"h")]), trace={"a": "b"}
    )
)
_COMMAND = b'{"actor": "a", "what": "internal", "command": "retry", "id": "b"}'
_POSITION = record.Position(1, 2, 3, 4, "id")
_STORE = StoreRecord(
    store="s", changelog="c", at_ms=1, topic_id="i", partitions=2, version=1, shapes=[{"a": 1}], former={1: [2]},
    came_after=["t"], contents="values", windows="", is_given_up=False,
)  # fmt: skip
_OWNER = OwnerRecord("a", 0, 1, "w", "http://w", 2, (OwnerInput("t", "i", 3),))
_PAUSE = Pause(actor="a", partition=0, is_paused=True, at_ms=2, by="ann")
_MEMBER = Member(
    "m", "i", "http://w", 3, frozenset({TaskId("a", 1)}), {TaskId("a", 1): 5}, {TaskId("a", 1): 0}, True, 7
)
_COPIES = Copies(frozenset({TaskId("a", 1)}), frozenset({TaskId("b", 2)}), 5, 6)
_MANIFEST = manifest.Manifest(
    app="a", store="s", changelog="c", placement="key", worker="w", exported_at_ms=1, partition_count=2,
    partitions=(manifest.ManifestPartition(0, "partition-00000.parquet", 5, _POSITION),),
)  # fmt: skip
_SNAPSHOT = snapshot.SnapshotManifest(
    app="a", store="s", changelog="c", partition_count=2, made_at_ms=1,
    partitions=(snapshot.SnapshotPartition(0, _POSITION,
        (snapshot.SnapshotTable("partition-00000-0000.sst", 1, 2, 3),)),),
)  # fmt: skip
_SPANS = ((Span(0, 5, exact=True),),)
_LEDGER = Ledger(topic="t", topic_id="i", asked_ms=2, starts=(0,), spans=_SPANS, deletes=False)
_FILE = ArchiveFile(name="data/a", topic="t", partition=0, first=1, last=2, latest_ms=5, records=2, bytes=3, digest="d")
_ENTRY = encode_entry(Manifest(number=0, ledgers={"t": _LEDGER}, files={_FILE.name: _FILE}), Manifest())
_SUMMARY = manifest.with_crc32(
    {
        "version": 1,
        "changelog": "c",
        "topic_id": "",
        "as_of": "latest",
        "as_of_ms": 1,
        "keys": 2,
        "records": 3,
        "without_metadata": 0,
        "unknown": 0,
        "undecodable": None,
        "seconds": 0.1,
        "format": "parquet",
        "partitions": [
            {"partition": 0, "start_offset": 0, "end_offset": 5, "last_offset": 4, "as_of_ms": 1, "keys": 2}
        ],
        "layers": [{"folder": "", "ends": [5], "rows": 2, "files": {"partition=0/a.parquet": [1, 2]}}],
    }
)
_DIGESTS = {
    "position": {"source_offset": 1, "changelog_offset": 2, "wall_time_ms": 3, "epoch": 4, "changelog_id": "id"},
    "digests": [-81, 7],
    "rows": [{"key": "aw==", "value": "dg=="}],
}
_BROKERS = struct.pack(">iiih9sih", 1, 1, 1, 9, b"127.0.0.1", 9092, -1)
_KEYS = KeyCoding("keys", *(lambda codec: (codec.decode, codec.encode))(resolve(None, "json")))


def _text(decode: Callable[[str], object], errors: str = "surrogateescape") -> Decode:
    return lambda raw: decode(raw.decode(errors=errors))


def _file(name: str, decode: Callable[[Path], object]) -> Decode:
    def read(raw: bytes) -> object:
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / name).write_bytes(raw)
            return decode(Path(made))

    return read


def _take(key: bytes) -> Decode:
    return lambda raw: KafkaOwners("owners", None)._take(  # type: ignore[arg-type]
        StoredRecord("owners", 0, 7, 0, key, raw, (), None)
    )


def _with(*names: str) -> Callable[[bytes], Any]:
    """Make a record with the bytes as the value of each of these headers."""
    return lambda raw: StoredRecord("in", 0, 7, 0, b"k", raw, tuple((name, raw) for name in names), None)


def _context(raw: bytes) -> Any:
    return SimpleNamespace(headers=[(asks.CHAIN, raw)], topic="in", offset=1)


def _deliver(raw: bytes) -> None:
    found = asks.Waiting("k")
    found.deliver(_with(asks.ASK, asks.STATUS)(raw))


def _asked(query: str) -> Any:
    return SimpleNamespace(rel_url=SimpleNamespace(raw_query_string=query))


def _codec(type_: Any, serializer: str | None = None) -> Decoder:
    codec = resolve(type_, serializer)
    return Decoder(codec.decode, (_POINT, _RECORD, b'{"x": 1.5}', b"[1]", b"1"), (CodecError,))


TYPES: tuple[Any, ...] = (
    None, Any, str, bytes, int, float, bool, Decimal, UUID, datetime, dict, list, dict[int, float], Point, Data, Record,
    Point | None, list[Point], set[int],
)  # fmt: skip
DECODERS: dict[str, Decoder] = {
    **{f"_json {type_}": _codec(type_) for type_ in TYPES},
    **{f"_raw {type_}": _codec(type_, "raw") for type_ in (str, int, float, bool, Decimal, UUID)},
    **{f"_conversion {type_}": _codec(type_, "binary|json") for type_ in (Point, Record, int)},
    "_upgraded": Decoder(
        versioned(resolve(Point), version=2, upgrades={1: lambda data: data}, owner="s").decode,
        (_POINT,),
        (CodecError, NewerVersionError),
    ),
    "_tag_in": Decoder(lambda raw: _tag_in(raw, "type"), (b'{"type": "a"}',)),
    # headers of inputs and replies
    "CommandKey.read": Decoder(
        lambda raw: commands.OPEN_COMMANDS.read(0, _with(commands.CONTROL_HEADER)(raw)),
        (_COMMAND,),
        (commands.RefusedCommandError,),
    ),
    "CommandKey.read signed": Decoder(
        lambda raw: commands.CommandKey("a", "in", "i", lambda: [b"secret"]).read(
            0, _with(commands.CONTROL_HEADER, commands.MAC_HEADER)(raw)
        ),
        (_COMMAND,),
        (commands.RefusedCommandError,),
    ),
    "_chain_in": Decoder(lambda raw: asks._chain_in(_context(raw)), (b'[["a", 0, "k"]]',)),
    "_RequestHeaders.of": Decoder(
        lambda raw: answers._RequestHeaders.of(_with(asks.ASK, asks.REPLY_TO, asks.DEADLINE)(raw)),
        (b"12",),
    ),
    "Waiting.deliver": Decoder(_deliver, (b"ok",)),
    "_FromHeaders.get": Decoder(
        lambda raw: tracing.propagate.extract([("traceparent", raw), ("baggage", raw)], getter=tracing._from_headers),
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
    ),
    "_text": Decoder(tracing._text, (b"k",)),
    # what members of the group say, and offsets' metadata
    "decode_member_data": Decoder(lambda raw: decode_member_data("m", raw), (encode_member_data(_MEMBER),)),
    "decode_copies": Decoder(decode_copies, (encode_copies(_COPIES),)),
    "parse_mark": Decoder(_text(commit.parse_mark), (b"1;2;abc~,0.5;AQ==", b"1;2;abc~,0")),
    "decode_finished": Decoder(_text(lambda text: progress.decode_finished(0, text)), (b"AQ==",), (ValueError,)),
    "read_series": Decoder(read_series, (msgspec.json.encode(History().series()).replace(b":-179", b":7"),), MALFORMED),
    # the owners' registry
    "KafkaOwners._take store": Decoder(_take(b"store:s"), (msgspec.json.encode(_STORE),)),
    "KafkaOwners._take pause": Decoder(_take(b"pause:a/0"), (msgspec.json.encode(_PAUSE),)),
    "KafkaOwners._take": Decoder(_take(b"a/0"), (msgspec.json.encode(asdict(_OWNER)),)),
    # entries of the stores beside an actor's state
    "read_entry": Decoder(
        lambda raw: parked_entries.read_entry(lambda _: raw, b"k", 1, raw), (_PARKED, _HEAD), (NewerVersionError,)
    ),
    "_decoded summary": Decoder(parked_entries.summary_of, (_PARKED, _HEAD), (NewerVersionError,)),
    "entry_of": Decoder(lambda raw: lines.entry_of("message", b"\1", raw, b""), (_PARKED, _HEAD)),
    "entry_of effect": Decoder(lambda raw: lines.entry_of("effect", b"\1", raw, b""), (_EFFECT,)),
    "_effect": Decoder(lambda raw: lines._effect(b"\1", raw, b"", {}), (_EFFECT,), (NewerVersionError, *MALFORMED)),
    "_timer": Decoder(
        lambda raw: lines._timer(b"a", raw, b"", {}), (b'{"id":"a","due_ms":1,"every_ms":2,"clock":"wall"}',), MALFORMED
    ),
    "entry_of timer": Decoder(
        lambda raw: lines.entry_of("timer", b"a", raw, b""), (b'{"id":"a","due_ms":1,"every_ms":2,"clock":"wall"}',)
    ),
    "_written_by": Decoder(lambda raw: lines._written_by(raw, None), (b"",)),
    "_place": Decoder(_text(lines._place, "replace"), (b"",), (lines.ParkedError,)),
    "decode_arguments": Decoder(decode_arguments, (b'[[1,"a"],{"b":null}]',), MALFORMED),
    "decoded": Decoder(effect_calls.decoded, (_EFFECT,)),
    "_decoded timer": Decoder(
        timers._decoded, (b'{"due_ms":1,"every_ms":2,"clock":"wall","value":"","headers":[]}',), (NewerVersionError,)
    ),
    "_parted": Decoder(timers._parted, (timers._address(b"k", "name"),)),
    # rows of window stores
    "decode_progress": Decoder(
        windows.decode_progress,
        (windows.encode_progress(_PROGRESS), windows.encode_progress(_PROGRESS)[windows.KEY_AT :]),
        (ValueError,),
    ),
    "row_value": Decoder(
        lambda raw: printing.row_value(raw, has_windows=True),
        (windows.encode_progress(_PROGRESS), rows.encode_list([rows.Held(1, 2, b"v", 3)]), b"v1"),
    ),
    "row_value list": Decoder(
        lambda raw: printing.row_value(rows.LIST + raw, has_windows=True),
        (rows.encode_list([rows.Held(1, 2, b"v", 3)])[1:],),
    ),
    "row_value records": Decoder(
        lambda raw: printing.row_value(join_rows.CONTENT + raw, has_windows=True),
        (join_rows.encode_chunk([join_rows.Kept(1, b"v")])[1:],),
    ),
    "decode_times": Decoder(rows.decode_times, (rows.encode_times([1, 2]),), (ValueError,)),
    "decode_list": Decoder(rows.decode_list, (rows.encode_list([rows.Held(1, 2, b"v", 3)]),), (ValueError,)),
    "last_of": Decoder(rows.last_of, (rows.encode_list([rows.Held(1, 2, b"v", 3)]),), (ValueError,)),
    "decode_mark": Decoder(versions.decode_mark, (msgspec.msgpack.encode((5, 6, 7)),), (ValueError,)),
    "decode_versions": Decoder(
        versions.decode_versions, (msgspec.msgpack.encode([(1, 2, b"v"), (2, 3, None)]),), (ValueError,)
    ),
    "row_value headers": Decoder(
        lambda raw: printing.row_value(join_rows.HEADERS + raw, has_windows=True),
        (join_rows.encode_headers([("tenant", b"v")])[1:],),
    ),
    "decode_headers": Decoder(join_rows.decode_headers, (join_rows.encode_headers([("tenant", b"v")]),), (ValueError,)),
    "decode_early": Decoder(
        join_rows.decode_early, (join_rows.encode_early(join_rows.Early(1, [], b"v")),), (ValueError,)
    ),
    "decode_ones": Decoder(join_rows.decode_ones, (join_rows.encode_ones([join_rows.One(1, 2, b"v")]),), (ValueError,)),
    "decode_chunk": Decoder(
        join_rows.decode_chunk, (join_rows.encode_chunk([join_rows.Kept(1, b"v")]),), (ValueError,)
    ),
    "decode_change": Decoder(
        changes.decode_change, (changes.encode_change(changes.Change(b"k", None)),), (ValueError,)
    ),
    "decode_added": Decoder(
        changes.decode_added, (changes.encode_added(5, b"row"), changes.encode_added([], b"row")), (ValueError,)
    ),
    "decode_subscription": Decoder(
        foreign_keys.decode_subscription,
        (foreign_keys.encode_message(foreign_keys.Subscription(b"k", b"d")),),
        (ValueError,),
    ),
    "decode_answer": Decoder(
        foreign_keys.decode_answer, (foreign_keys.encode_message(foreign_keys.Answer(b"d", None)),), (ValueError,)
    ),
    **{
        f"Aggregate.decoder {name}": Decoder(made.decoder(), (made.encoder()(made.initial),), (ValueError,))
        for name, made in (("sum", aggregates.sum()), ("mean", aggregates.mean()), ("top_n", aggregates.top_n(2)))
    },
    **{
        f"StoredValues.codec {made.name}": Decoder(
            stored_values("store s", None, None, version=None, upgrades=None, aggregate=made).codec.decode,
            (made.encoder()(made.initial),),
            (CodecError,),
        )
        for made in (aggregates.mean(), aggregates.approx_distinct(), aggregates.collect(2, int))
    },
    # positions, metadata, manifests, files
    "decode_metadata": Decoder(record.decode_metadata, (record.encode_metadata(1, 2, 3),), (ValueError,)),
    "decode_position": Decoder(record.decode_position, (record.encode_position(_POSITION),), (ValueError,)),
    "decode_identity": Decoder(
        identity.decode_identity,
        (identity.encode_identity(identity.DatabaseIdentity("cluster", "app", "store", 1)),),
        (ValueError,),
    ),
    "decode_document": Decoder(
        _text(manifest.decode_manifest), (manifest.encode_manifest(_MANIFEST).encode(),), (ValueError,)
    ),
    "document snapshot": Decoder(
        snapshot.decode_snapshot, (snapshot.encode_snapshot(_SNAPSHOT).encode(),), (ValueError,)
    ),
    "_read_about": Decoder(
        _file(folder._ABOUT, folder._read_about), (b'{"app": "a", "format": 1, "id": "i"}',), (StoreError,)
    ),
    # requests, and answers of other workers
    "digests_body": Decoder(
        digests_body,
        (b'{"partition": 0, "as_of_ms": 1}', b'{"partition": 0, "as_of_ms": 1, "buckets": 2, "rows": [1]}'),
        (Problem,),
    ),
    "many_body": Decoder(many_body, (b'{"keys": ["a", {"b": 1}], "encoding": "json", "partition": 1}',), (Problem,)),
    "arguments": Decoder(arguments, (b'{"a": [1, {"b": null}]}', b""), (Problem,)),
    **{
        f"KeyCoding.key_of_url {name}": Decoder(
            lambda raw, name=name: _KEYS.key_of_url(raw, name), (b'{"a": 1}', b"aw=="), (Problem,)
        )
        for name in (None, *ENCODINGS)
    },
    "Parameters.text": Decoder(
        _text(lambda text: Parameters(_asked(text), frozenset({"a", "read"})).text("a"), "replace"),
        (b"a=%ff&read=1",),
        (Problem,),
    ),
    "decode_base64": Decoder(_text(pages.decode_place), (pages.encode_place((b"k", 1)).encode(),), (ValueError,)),
    "decoded answer": Decoder(
        lambda raw: answer_parts.part_of(raw, "http://w"),
        (b'{"items": [], "next": null, "positions": {}}',),
        (NotReadyError,),
    ),
    "json_key": Decoder(lambda raw: query_coding.json_key(msgspec.Raw(raw)), (b'{"a": 1}',), (Problem,)),
    "_password": Decoder(lambda raw: callers._password(raw.decode("latin-1")), (b"dTp0b2tlbg==",), ()),
    "operation_of": Decoder(
        lambda raw: operations.operation_of(DropParked, operations.arguments_of(DropParked), raw),
        (b'{"actor":"a","key":"b","since":"2026-01-01T00:00:00Z","yes":true}',),
        (Problem,),
    ),
    "_form": Decoder(dashboard_pages._form, (b"actor=a&key=aw==",), (Problem,)),
    "mapping": Decoder(_text(setting_values.mapping), (b'{"orders": "shop-orders"}',), (ValueError,)),
    "read_report": Decoder(group.read_report, (b"{}",), MALFORMED),
    "load": Decoder(
        _file(local_settings.STATE_FILE, local_settings.load),
        (
            b'{"cluster_id": "k", "brokers": [{"id": 1, "port": 1, "controller_port": 2, "process": null}],'
            b' "overrides": {}}',
        ),
        (LocalKafkaError,),
    ),
    "_string": Decoder(probe._parse, (_BROKERS,), (struct.error, UnicodeDecodeError)),
    "_families": Decoder(
        front._families,
        (b'# HELP a_total Text\n# TYPE a_total counter\na_total{app="x",process="\\"1"} 1.0 5\n',),
    ),
    "_error_of": Decoder(
        lambda raw: workers._error_of(HttpReply(500, {}, raw), "http://w"),
        (b'{"type": "a:b", "title": "t", "detail": {"a": 1}}',),
    ),
    # the lock service
    "Refusal.read": Decoder(asks.Refusal.read, (b'{"reason": "x", "type": "E", "data": [1]}', b"x")),
    "schema_json": Decoder(_text(schema_json, "replace"), (b'{"type": "long"}',), (ValueError,)),
    "decode_reply": Decoder(
        lambda raw: transport._opened("x", ActorReply(asks.OK, raw)),
        (m.encode(m.Grant(1, 2, 3, 4)),),
        (CoordinationError,),
    ),
    "_opened": Decoder(lambda raw: transport._opened("x", ActorReply("?", raw)), (), (CoordinationError,)),
    # what spark_replay reads
    "decode_entry": Decoder(_text(decode_entry), (_ENTRY.encode(),), (ValueError,)),
    "decode_owner": Decoder(
        lambda raw: writers.decode_owner(raw, "id"),
        (b'{"changelog_ids": {"s": "id"}, "partition": 0, "epoch": 1, "inputs": [{"topic": "t"}]}',),
        (),
    ),
    "decode_digests": Decoder(
        lambda raw: live.decode_digests("http://w", raw), (json.dumps(_DIGESTS).encode(),), (ReplayError,)
    ),
    "_problem": Decoder(live._problem, (b'{"title": "t", "detail": "d"}',)),
    "decode_summary": Decoder(
        lambda raw: decode_summary(raw, "a table"), (json.dumps(_SUMMARY).encode(),), (ReplayError,)
    ),
    "read_summary": Decoder(_file(SUMMARY, read_summary), (json.dumps(_SUMMARY).encode(),), (ReplayError,)),
    "_parse_offsets": Decoder(
        _file("offsets", lambda made: points._parse_offsets(f"@{made / 'offsets'}")),
        (b'{"0": 5}', b"[5]"),
        (ReplayError,),
    ),
}
EXCEPTED: dict[str, str] = {
    "take_assignment": "reads what its parent process wrote",
    "_load": "codecs raise CodecError",
    "Avro.shape": "the program's own schema",
    "AvroShape.reader": "`Framed._make_reader` sees to what that raises",
    "AvroShape.writer": "`Framed.resolve` sees to what that raises",
    "JsonSchema.shape": "the program's own schema",
    "JsonShape.writer": "reads what it wrote; `Framed.encode_bare` sees to what that raises",
    "_checker": "`Framed.resolve` sees to what that raises",
    "Registry.request": "`RegistryClient._attempt` sees to whatever it raises",
    "_kind": "makes a decoder for `_encoded`",
    "KeyCoding": "codecs raise CodecError",
    "_converted": "the caller parks the call for whatever it raises",
    "Effects._encoded": "reads what it wrote, and refuses the call for whatever that raises",
    "_decoder": "makes a decoder for `_json`",
    "resolve": "reads what it wrote; `_guard_encode` sees to what that raises",
    "typed_form": "reads what it wrote; `_encode_formed` sees to what that raises",
    "_is_known": "asks whether there is a decoder",
    "_check_type": "asks whether there is a decoder",
    "as_json": "reads what it wrote; `_text` sees to what that raises",
    "_absent": "reads what it wrote",
    "_offsets": "its callers, `_read_planned` and `_read_first`, see to what it raises",
    "Query.bind": "its caller refuses the request",
    "_encoded": "decodes what the type of the message was decoded of, and refuses the request for what that raises",
    "_from_stdin": "a person's own input",
    "_question": "only of bytes that are ASCII",
    "Coordinator._question": "only of bytes that are ASCII",
    "QueryRoutes.many": "another worker's answer; the request fails for whatever it raises",
    "QueryRoutes.range": "another worker's answer; the request fails for whatever it raises",
    "QueryRoutes.count": "another worker's answer; the request fails for whatever it raises",
    "StateClient.lookup": "the caller's own workers",
    "StateClient.windows": "the caller's own workers",
    "StateClient._late": "the caller's own workers",
}
"""What decodes and isn't tried, and why."""
TRIED_ELSEWHERE: dict[str, str] = {
    "Parked._command": "test_hostile_records",
    "Coordinator._understood": "test_hostile_records",
    "_records": "its caller passes over what isn't a record of the registry",
    "_content": "its caller passes over what can't be read",
    "_decode_owner": "KafkaOwners._take",
    "_decode_store": "KafkaOwners._take",
    "Pauses.take": "KafkaOwners._take pause",
    "_reply": "decode_reply",
    "ask_worker": "test_dashboard",
    "StateClient._send": "test_access_clients",
    "_quoted": "KeyCoding.key_of_url",
    "_Events._binary": "test_cloudevents",
    "_Events._structured": "test_cloudevents",
    "_event_of": "test_cloudevents",
    "avro_columns": "test_debezium: its caller refuses the record for whatever it raises",
    "_converted_value": "test_debezium: its caller refuses the record for whatever it raises",
    "_payload": "test_debezium: its caller refuses the record for whatever it raises",
    "ChangeRoute._key": "test_debezium: its caller refuses the record for whatever it raises",
    "Debezium._completed": "reads what `ChangeRoute` wrote",
    "Context.header": "test_propagation",
    "QueryReference.answer": "test_references: the program's own question, whose answer is JSON already",
    "GetJson.__call__": "tests/unit/sinks/test_http",
    "value_columns": "test_columns: a file of the user's",
    "_bytes_json": "any bytes are text or base64",
    "printable": "any bytes are text or base64",
}
