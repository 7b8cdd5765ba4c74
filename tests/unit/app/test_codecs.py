from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Optional
from uuid import UUID

import faust
import msgspec
import pytest
from faust.exceptions import KeyDecodeError, SecurityWarning, ValueDecodeError
from faust.serializers import codecs as registry
from hypothesis import given
from hypothesis import strategies as st

from actors.declare.values.codecs import Codec, CodecError, resolve, resolve_key
from actors.declare.values.schemas import ActorSchema, key_codec, value_codec
from actors.errors import ActorsError, ConfigurationError


class Point(faust.Record, include_metadata=False):
    x: int
    y: float = 0.5


class Order(faust.Record, isodates=True, decimals=True):
    id: str
    placed: datetime
    price: Decimal
    points: list[Point]
    tags: dict[str, int]
    note: Optional[str] = None  # noqa: UP045  Faust reads it at run time, and knows no `str | None`


class Described(faust.Record, include_metadata=True, namespace="test.Described"):
    name: str


class Shouted(faust.Record, serializer="shouted", include_metadata=False):
    text: str


class Command(msgspec.Struct):
    name: str
    args: list[str]
    at: datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    sensor: UUID
    value: Decimal
    point: Point | None = None


class Opaque:
    pass


class Shouting(registry.Codec):
    """JSON in capital letters: a codec as a user writes one."""

    def _loads(self, s: bytes) -> Any:
        return json.loads(s.decode().lower())

    def _dumps(self, s: Any) -> bytes:
        return json.dumps(s).upper().encode()


NOW = datetime(2026, 3, 4, 5, 6, 7, 890, tzinfo=UTC)
ORDER = Order(
    id="ä1",
    placed=NOW,
    price=Decimal("12.340"),
    points=[Point(x=1, y=2.5), Point(x=3)],
    tags={"a": 1},
)
COMMAND = Command("ls", ["-l", "ü"], NOW)
READING = Reading(UUID(int=7), Decimal("1.50"), Point(x=1))

VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Described, Described(name="d")),
    (Command, COMMAND),
    (Reading, READING),
    (bytes, b"\xff\x00"),
    (str, "grüße"),
    (int, -(2**40)),
    (float, 1.25),
    (bool, True),
    (Decimal, Decimal("3.10")),
    (UUID, UUID(int=5)),
    (dict, {"a": [1, None]}),
    (list, [1, "b"]),
    (dict[str, int], {"a": 1}),
    (list[Command], [COMMAND]),
    (Any, {"free": ["form"]}),
    (None, {"free": ["form"]}),
]
FAUST_VALUES = [
    (type_, value) for type_, value in VALUES if type_ in (Order, Described, str, int, float, Decimal, None)
]


def named(pairs: list[tuple[Any, Any]]) -> Any:
    return pytest.mark.parametrize(("type_", "value"), pairs, ids=[str(type_) for type_, _ in pairs])


@pytest.fixture(autouse=True)
def shouted() -> Iterator[None]:
    registry.register("shouted", Shouting())
    yield
    del registry.codecs["shouted"]


@pytest.fixture(scope="module")
def app() -> faust.App:
    return faust.App("codecs-test", broker="kafka://127.0.0.1:1", Schema=ActorSchema)


@pytest.fixture(scope="module")
def plain_app() -> faust.App:
    return faust.App("plain-test", broker="kafka://127.0.0.1:1")


@dataclasses.dataclass
class Message:
    """As much of Faust's message as a schema looks at."""

    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] = dataclasses.field(default_factory=dict)


@named(VALUES)
def test_a_value_survives_the_trip(type_: Any, value: Any) -> None:
    codec = resolve(type_)
    raw = codec.encode(value)
    assert isinstance(raw, bytes)
    assert codec.decode(raw) == value
    assert type(codec.decode(raw)) is type(value)


@named([pair for pair in VALUES if pair[0] is not None])
def test_an_optional_type_is_the_type(type_: Any, value: Any) -> None:
    codec = resolve(Optional[type_])  # noqa: UP045
    assert codec.encode(value) == resolve(type_).encode(value)
    assert codec.decode(codec.encode(value)) == value


@named(VALUES)
@pytest.mark.parametrize("optional", [False, True])
def test_none_is_never_encoded(type_: Any, value: Any, optional: bool) -> None:
    codec = resolve(Optional[type_] if optional and type_ is not None else type_)  # noqa: UP045
    with pytest.raises(CodecError, match="got NoneType"):
        codec.encode(None)


def test_an_optional_json_null_is_none() -> None:
    assert resolve(Command | None).decode(b"null") is None
    assert resolve(Optional[Point]).decode(b"null") is None  # noqa: UP045
    assert resolve(str | None).decode(b"null") == "null"
    with pytest.raises(CodecError):
        resolve(Command).decode(b"null")


def faust_can(serializer: str | None, type_: Any) -> bool:
    """Capital letters lose some types, and Faust refuses to read the nested models that it pickled."""
    lost = {"shouted": (str, Order, Described, Decimal, None), "pickle_restricted": (Order,)}
    return type_ not in lost.get(serializer or "", ())


@pytest.mark.parametrize(
    ("serializer", "type_", "value"),
    [
        pytest.param(serializer, type_, value, id=f"{serializer}-{type_}")
        for serializer in (None, "json", "pickle_restricted", "shouted")
        for type_, value in FAUST_VALUES
        if faust_can(serializer, type_)
    ],
)
def test_faust_reads_what_we_write_and_we_what_faust_writes(
    plain_app: faust.App, type_: Any, value: Any, serializer: str | None
) -> None:
    topic = plain_app.topic("t", value_type=type_, value_serializer=serializer)
    codec = value_codec(plain_app, topic.schema)
    by_faust, _ = topic.prepare_value(value, topic.value_serializer)
    assert codec.decode(by_faust) == value
    assert topic.schema.loads_value(plain_app, Message(value=codec.encode(value))) == value


@named(FAUST_VALUES)
def test_json_is_the_same_to_the_byte(plain_app: faust.App, type_: Any, value: Any) -> None:
    topic = plain_app.topic("t", value_type=type_)
    by_faust, _ = topic.prepare_value(value, None)
    assert value_codec(plain_app, topic.schema).encode(value) == by_faust


@pytest.mark.parametrize(("type_", "value"), [(str, "ü"), (bytes, b"\xff\x00")])
def test_raw_text_and_bytes_are_shared_with_faust(plain_app: faust.App, type_: Any, value: Any) -> None:
    topic = plain_app.topic("t", key_type=type_, value_type=type_, value_serializer="raw")
    for codec in (key_codec(plain_app, topic.schema), value_codec(plain_app, topic.schema)):
        raw = codec.encode(value)
        assert topic.schema.loads_value(plain_app, Message(value=raw)) == value
        assert topic.schema.loads_key(plain_app, Message(key=raw)) == value
        assert codec.decode(topic.prepare_key(value, None)[0]) == value
        assert codec.decode(topic.prepare_value(value, topic.value_serializer)[0]) == value


@pytest.mark.parametrize(("type_", "value"), [(int, 5), (float, 0.5), (Decimal, Decimal("1.5"))])
def test_faust_reads_number_keys(plain_app: faust.App, type_: Any, value: Any) -> None:
    schema = plain_app.topic("t", key_type=type_).schema
    codec = key_codec(plain_app, schema)
    raw = codec.encode(value)
    assert raw == str(value).encode()
    assert codec.decode(raw) == value
    assert schema.loads_key(plain_app, Message(key=raw)) == value


def test_structured_keys_are_json_by_default(plain_app: faust.App) -> None:
    schema = plain_app.topic("t", key_type=Point).schema
    assert key_codec(plain_app, schema).encode(Point(x=1)) == b'{"x":1,"y":0.5}'


@named([pair for pair in VALUES if pair[0] not in (bytes, Any, None, str)])
def test_a_users_codec_carries_every_type(type_: Any, value: Any) -> None:
    codec = resolve(type_, "json|binary")
    raw = codec.encode(value)
    assert raw.isascii()
    assert codec.decode(raw) == value


def test_pickle_is_honoured_for_structs_and_records() -> None:
    for type_, value in ((Command, COMMAND), (Order, ORDER)):
        codec = resolve(type_, "pickle")
        with pytest.warns(SecurityWarning):
            assert codec.decode(codec.encode(value)) == value


def test_a_records_own_serializer_is_its_default() -> None:
    record = Shouted(text="quiet")
    codec = resolve(Shouted)
    assert codec.encode(record) == b'{"TEXT": "QUIET"}' == record.dumps()
    assert codec.decode(codec.encode(record)) == record
    assert resolve(Shouted, "json").encode(record) == b'{"text":"quiet"}'


def test_a_codec_object_of_the_user_and_a_replaced_json_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str, Shouting()).encode("x") == b'"X"'
    monkeypatch.setitem(registry.codecs, "json", Shouting())
    assert resolve(Point).encode(Point(x=1)) == b'{"X": 1, "Y": 0.5}'


def test_text_codecs_under_faust_types() -> None:
    assert resolve(bytes, "binary").encode(b"\xff") == b"/w=="
    assert resolve(bytes, "binary").decode(b"/w==") == b"\xff"
    assert resolve(str, "binary").decode(resolve(str, "binary").encode("ü")) == "ü"
    assert resolve(int, "binary").decode(b"NQ==") == 5


def test_bytes_pass_a_json_topic_as_they_do_in_faust(plain_app: faust.App) -> None:
    topic = plain_app.topic("t", value_type=bytes)
    codec = value_codec(plain_app, topic.schema)
    assert codec.encode(b"\xff") == topic.prepare_value(b"\xff", None)[0] == b"\xff"
    assert codec.decode(b"\xff") == b"\xff"


@pytest.mark.parametrize("type_", [None, Any])
def test_bytes_pass_an_untyped_topic_and_no_untyped_store(plain_app: faust.App, type_: Any) -> None:
    topic = plain_app.topic("t", value_type=type_, key_serializer="json")
    for codec in (value_codec(plain_app, topic.schema), key_codec(plain_app, topic.schema)):
        assert codec.encode(b'{"a":1}') == topic.prepare_value(b'{"a":1}', None)[0] == b'{"a":1}'
        assert codec.encode("text") == b'"text"'
    with pytest.raises(CodecError, match="bytes aren't JSON"):
        resolve(type_).encode(b"x")


@pytest.mark.parametrize(
    ("type_", "raw"),
    [
        (Point, b"{"),
        (Point, b"[]"),
        (Point, b"{}"),
        (Point, b"null"),
        (Command, b'{"name":1,"args":[]}'),
        (Reading, b'{"sensor":"x"}'),
        (str, b"\xff"),
        (int, b"1.5"),
        (bool, b"2"),
        (dict, b"[]"),
        (dict[str, int], b'{"a":"b"}'),
        (None, b""),
        (UUID, b'"no"'),
    ],
)
def test_bytes_that_do_not_fit_are_refused(type_: Any, raw: bytes) -> None:
    with pytest.raises(CodecError, match="not a valid ") as caught:
        resolve(type_).decode(raw)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ActorsError)
    assert caught.value.__cause__ is not None


def test_an_error_shows_the_first_bytes_only() -> None:
    with pytest.raises(CodecError) as caught:
        resolve(Command).decode(b"x" * 10_000)
    assert "x" * 80 in str(caught.value)
    assert "x" * 81 not in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "serializer", "value", "expected"),
    [
        (Point, None, COMMAND, "expected Point, got Command"),
        (Command, None, {"name": "x"}, "expected Command, got dict"),
        (Reading, None, COMMAND, "expected Reading, got Command"),
        (str, None, b"x", "expected str, got bytes"),
        (bytes, None, "x", "expected bytes, got str"),
        (int, None, "5", "expected int, got str"),
        (int, None, True, "expected int, got bool"),
        (float, None, True, "expected float, got bool"),
        (dict[str, int], None, [1], "expected dict, got list"),
        (Point, "pickle", 5, "expected Point, got int"),
        (None, None, Opaque(), "Opaque"),
        (None, "raw", 5, "expected bytes or str, got int"),
        (Command, None, Command("x", [Opaque()]), "can't encode Command"),  # type: ignore[list-item]
    ],
)
def test_values_that_do_not_fit_are_refused(type_: Any, serializer: Any, value: Any, expected: str) -> None:
    with pytest.raises(CodecError, match=expected):
        resolve(type_, serializer).encode(value)


def test_an_integer_is_a_float() -> None:
    assert resolve(float).decode(resolve(float).encode(3)) == 3.0


@pytest.mark.parametrize(
    ("type_", "serializer"),
    [
        (Point, "raw"),
        (Command, "raw"),
        (dict, "raw"),
        (Opaque, None),
        (str, "no-such"),
        (str, "no|json"),
        (str, "json|no"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(type_: Any, serializer: str | None) -> None:
    with pytest.raises(ConfigurationError):
        resolve(type_, serializer)


def test_memory_errors_are_not_taken_for_bad_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(self: Any, raw: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Shouting, "_loads", exhausted)
    monkeypatch.setattr(Shouting, "_dumps", exhausted)
    codec = resolve(int, "shouted")
    with pytest.raises(MemoryError):
        codec.decode(b"1")
    with pytest.raises(MemoryError):
        codec.encode(1)


def test_a_codec_is_immutable_and_says_what_it_is() -> None:
    codec = resolve(Command)
    assert isinstance(codec, Codec)
    assert codec.name == "Command as json()"
    assert resolve(Command, "json").name == "Command as json"
    with pytest.raises(dataclasses.FrozenInstanceError):
        codec.name = "other"  # type: ignore[misc]


@given(st.text())
def test_all_text_survives(text: str) -> None:
    for serializer in (None, "json", "binary"):
        codec = resolve(str, serializer)
        assert codec.decode(codec.encode(text)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_all_finite_floats_survive(number: float) -> None:
    for serializer in (None, "raw"):
        codec = resolve(float, serializer)
        assert codec.decode(codec.encode(number)) == number


def test_raw_numbers_keep_what_json_has_not() -> None:
    codec = resolve(float, "raw")
    assert math.isnan(codec.decode(codec.encode(math.nan)))


@named([(Command, COMMAND), (Reading, READING), (dict[str, int], {"a": 1}), (UUID, UUID(int=1)), (bool, True)])
@pytest.mark.parametrize("serializer", [None, "json", "json|binary"])
async def test_plain_agents_get_our_types(app: faust.App, type_: Any, value: Any, serializer: str | None) -> None:
    topic = app.topic("t", key_type=type_, value_type=type_, key_serializer=serializer, value_serializer=serializer)
    key, _ = topic.prepare_key(value, topic.key_serializer)
    raw, _ = topic.prepare_value(value, topic.value_serializer)
    assert raw == resolve(type_, serializer).encode(value)
    # Faust's default for keys is raw: what has a text is written as such.
    assert key == resolve_key(type_, serializer).encode(value)
    event = await topic.decode(Message(key=key, value=raw), propagate=True)
    assert (event.key, event.value) == (value, value)


@named(FAUST_VALUES)
def test_what_faust_knows_is_left_to_faust(app: faust.App, plain_app: faust.App, type_: Any, value: Any) -> None:
    ours, theirs = app.topic("t", value_type=type_), plain_app.topic("t", value_type=type_)
    raw = theirs.prepare_value(value, None)
    assert ours.prepare_value(value, None) == raw
    message = Message(value=raw[0])
    assert ours.schema.loads_value(app, message) == theirs.schema.loads_value(plain_app, message)


@pytest.mark.parametrize("type_", [str, bytes, None, Point])
def test_faust_keys_are_left_to_faust(app: faust.App, plain_app: faust.App, type_: Any) -> None:
    serializer = "json" if type_ is Point else None
    ours = app.topic("t", key_type=type_, key_serializer=serializer)
    theirs = plain_app.topic("t", key_type=type_, key_serializer=serializer)
    key = Point(x=1) if type_ is Point else b"k"
    assert ours.prepare_key(key, serializer) == theirs.prepare_key(key, serializer)
    message = Message(key=theirs.prepare_key(key, serializer)[0])
    assert ours.schema.loads_key(app, message) == theirs.schema.loads_key(plain_app, message)


def test_the_schema_passes_nulls_bytes_and_headers(app: faust.App) -> None:
    schema = app.topic("t", key_type=Command, value_type=Command).schema
    headers = {"h": b"1"}
    assert schema.dumps_value(app, None, headers=headers) == (None, headers)
    assert schema.dumps_value(app, b"raw", headers=headers) == (b"raw", headers)
    assert schema.dumps_key(app, None, headers=headers) == (None, headers)
    with pytest.raises(ValueDecodeError):
        schema.loads_value(app, Message())
    with pytest.raises(KeyDecodeError):
        schema.loads_key(app, Message())
    assert app.topic("t", value_type=Command | None).schema.loads_value(app, Message()) is None


def test_the_schema_raises_fausts_errors(app: faust.App) -> None:
    schema = app.topic("t", key_type=Command, value_type=Command).schema
    with pytest.raises(ValueDecodeError, match="not a valid Command"):
        schema.loads_value(app, Message(value=b"{}"))
    with pytest.raises(KeyDecodeError, match="not a valid Command"):
        schema.loads_key(app, Message(key=b"{}"))
    with pytest.raises(CodecError, match="expected Command, got int"):
        schema.dumps_value(app, 5, headers=None)


def test_the_schema_follows_the_apps_serializer_and_the_calls() -> None:
    app = faust.App("other", broker="kafka://127.0.0.1:1", Schema=ActorSchema, value_serializer="json|binary")
    schema = app.topic("t", value_type=Command).schema
    expected = resolve(Command, "json|binary").encode(COMMAND)
    assert schema.dumps_value(app, COMMAND, headers=None)[0] == expected
    assert schema.loads_value(app, Message(value=expected)) == COMMAND
    assert schema.dumps_value(app, COMMAND, serializer="json", headers=None)[0] == resolve(Command).encode(COMMAND)


def test_the_schema_follows_an_update(app: faust.App) -> None:
    schema = ActorSchema(value_type=Command)
    raw = resolve(Reading).encode(READING)
    with pytest.raises(ValueDecodeError):
        schema.loads_value(app, Message(value=raw))
    schema.update(value_type=Reading)
    assert schema.loads_value(app, Message(value=raw)) == READING


def test_equal_sets_have_equal_bytes_whatever_the_order_in_which_they_were_filled():
    words = [f"word-{number}" for number in range(0, 1000, 8)]
    codec = resolve(set[str])
    assert codec.encode(set(words)) == codec.encode({*reversed(words)})
    assert resolve(dict[int, set[int]]).encode({1: {2}}) == b'{"1":[2]}'
    tagged = msgspec.defstruct("Tagged", [("tags", set[str]), ("counts", dict[str, int])])
    codec = resolve(tagged)
    assert codec.encode(tagged(set(words), {"b": 1, "a": 2})) == codec.encode(
        tagged({*reversed(words)}, {"a": 2, "b": 1})
    )


@pytest.mark.parametrize("kind", ["int | str", "str | None | int", "bytes | int", "Decimal | int"])
def test_keys_of_two_types_that_may_be_one_text_are_refused_at_the_declaration(kind: str) -> None:
    keys = eval(kind)
    field = msgspec.defstruct("Counts", [("counts", dict[keys, int] | None)])
    for type_ in (dict[keys, int], list[dict[str, dict[keys, int]]], field, field | None):
        with pytest.raises(ConfigurationError, match='may be one text in JSON, as 1 and "1" are: use one type'):
            resolve(type_)
        with pytest.raises(ConfigurationError, match="use one type for keys"):
            resolve(type_, for_others=True)
    resolve(dict[int | float, int])


def test_a_topic_keeps_its_codecs_until_its_types_are_others(plain_app: faust.App) -> None:
    schema = ActorSchema(key_type=str, value_type=Point)
    kept = key_codec(plain_app, schema), value_codec(plain_app, schema)
    assert (key_codec(plain_app, schema), value_codec(plain_app, schema)) == kept
    assert kept[1] is value_codec(plain_app, schema)
    schema.value_type = dict[str, int]
    assert value_codec(plain_app, schema).encode({"a": 1}) == b'{"a":1}'
    assert key_codec(plain_app, schema) is kept[0]
