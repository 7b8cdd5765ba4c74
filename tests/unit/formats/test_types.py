"""Types as values and as keys, in each format: what is written is read back, and equal keys have equal bytes."""

import enum
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import faust
import msgspec
import pydantic
import pytest
from google.protobuf.struct_pb2 import Struct

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError
from actors.formats import Avro, CodecError, Json, JsonSchema, Place, Protobuf
from actors.formats.data import plain_data
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry
from tests.unit.formats.served import messages

T = TypeVar("T")
Cents = NewType("Cents", int)
Price = Annotated[Decimal, msgspec.Meta(extra={"precision": 12, "scale": 2})]


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Grade(enum.IntEnum):
    A = 1
    B = 2


class Line(msgspec.Struct, frozen=True):
    item: str
    count: int = 1
    size: Size | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]
    more: bool = False


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


class Row(TypedDict):
    id: int
    note: str


class Sparse(TypedDict):
    id: int
    note: NotRequired[str]
    size: NotRequired[Size | None]
    rows: NotRequired[Annotated[list["Sparse"], msgspec.Meta(max_length=9)] | None]
    by_name: NotRequired[dict[str, "Sparse | int | None"]]


class Patch(msgspec.Struct, frozen=True):
    note: str | msgspec.UnsetType = msgspec.UNSET
    parts: tuple["Patch | None", ...] | msgspec.UnsetType = msgspec.UNSET


class Changed(msgspec.Struct, tag=True, frozen=True):
    id: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class Short(msgspec.Struct, omit_defaults=True):
    tags: set[str] = msgspec.field(default_factory=set)
    id: int = 1


class Created(msgspec.Struct, tag=True, frozen=True):
    id: int


class Deleted(msgspec.Struct, tag=True, frozen=True):
    id: int


class Everything(msgspec.Struct, frozen=True):
    at: datetime
    on: date
    hour: time
    price: Price
    id: UUID
    size: Size
    grade: Grade
    kind: Literal["a", "b"]
    cents: Cents
    raw: bytes
    point: Point
    change: Created | Deleted
    lines: tuple[Line, ...]
    counts: dict[str, int]
    note: str | None = None


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    name: str = pydantic.Field(alias="fullName")
    since: datetime
    lines: list[int] = []


class Record(faust.Record):
    id: int
    note: str


class Paid(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    cents: int
    price: Decimal = pydantic.Field(max_digits=12, decimal_places=2)
    rest: Price | None = None


class Started(msgspec.Struct, tag="a", frozen=True):
    at: int


class Ended(msgspec.Struct, tag="b", frozen=True):
    at: int


class Unions(msgspec.Struct, frozen=True):
    """Unions whose tags are told apart by their places alone, and a dict that has one of the tags."""

    change: Created | Deleted
    begin: Started | Ended
    texts: dict[str, str]
    changes: tuple[Created | Deleted, ...] = ()
    begins: dict[str, Started | Ended] = {}
    later: list[Started | Ended] | Created | None = None
    label: Literal["a", 1, None] = None


class Nested(msgspec.Struct, frozen=True):
    inner: "Nested | None" = None
    pages: dict[str, tuple[Page[Page[Line]], ...]] = {}
    customer: Customer | None = None
    records: tuple[Record, ...] = ()


EVERYTHING = Everything(
    datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
    date(2031, 1, 2),
    time(3, 4, 5, 6),
    Decimal("12.50"),
    UUID(int=7),
    Size.LARGE,
    Grade.B,
    "b",
    Cents(5),
    b"\0\xff",
    Point(1, 2.5),
    Deleted(3),
    (Line("hat"), Line("coat", 2, Size.SMALL)),
    {"b": 1, "a": 2},
)
ADA = Customer(fullName="Ada", since=datetime(2031, 1, 1, tzinfo=UTC))
VALUES = [
    (Everything, EVERYTHING),
    (Line, Line("hat", 3, Size.LARGE)),
    (Page[Line], Page((Line("hat"), Line("coat")), True)),
    (Page[int], Page((1, 2**53 + 1, 2**63 - 1, -(2**63)))),
    (Point, Point(3, -0.25)),
    (Row, {"id": 1, "note": "x"}),
    (Created | Deleted, Deleted(4)),
    (list[Created | Deleted], [Created(1), Deleted(2)]),
    (Size, Size.LARGE),
    (Grade, Grade.A),
    (Cents, 7),
    (Literal["a", "b"], "b"),
    (datetime, datetime(2031, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
    (UUID, UUID(int=9)),
    (dict[str, list[float]], {"a": [1.5], "b": []}),
    (Customer, ADA),
    (Record, Record(id=1, note="x")),
    (Paid, Paid(cents=5, price=Decimal("12.50"), rest=Decimal("1.25"))),
    (date, date(2031, 1, 2)),
    (Price, Decimal("1.50")),
    (date | None, date(2031, 1, 2)),
    (int | str, 3),
    (int | str, "x"),
    (bool | int, True),
    (bool | int, 1),
    (float | int, 3),
    (float | int, 3.0),
    (datetime | int, 3),
    (datetime | int, datetime(2031, 1, 2, tzinfo=UTC)),
    (date | int, 3),
    (Literal["a", 1], 1),
    (Page[Created | Deleted], Page((Created(1), Deleted(2)))),
    (Page[Page[int]], Page((Page((1,)), Page((2, 3), True)))),
    (Unions, Unions(Created(1), Ended(1), {"type": "Created"}, later=Created(2), label="a")),
    (
        Unions,
        Unions(Deleted(1), Started(1), {}, (Deleted(1), Created(2)), {"x": Ended(3)}, [Ended(4), Started(5)], 1),
    ),
    (Nested, Nested(Nested(), {"a": (Page((Page((Line("hat"),)),)),)})),
    (Nested, Nested(customer=ADA, records=(Record(id=1, note="x"),))),
    (list[Customer], [ADA]),
    # What may be missing.
    (Sparse, {"id": 1, "size": None, "rows": None}),
    (Sparse, {"id": 1, "note": "x", "size": None, "rows": [{"id": 2, "size": Size.LARGE, "rows": None}]}),
    (Sparse, {"id": 1, "size": None, "rows": None, "by_name": {"a": {"id": 3, "size": None, "rows": None}}}),
    (Patch, Patch()),
    (Patch, Patch("x", (Patch("y"), None, Patch()))),
    (Changed | Created, Changed(1)),
    (Short, Short()),
    (tuple[int, ...] | None, (1, 2)),
    (Page[tuple[int, ...] | None], Page(((1, 2), None))),
    (Short, Short({"a"})),
]
FORMATS = {"json": Json, "avro": Avro, "json schema": JsonSchema}


def codecs_of(format_: Any, type_: Any) -> Any:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    topic = app.topic("orders", format=format_(type_), key_format=format_(type_))
    return topic_codecs(topic)


def written(codec: Any, value: Any) -> bytes:
    return resolved_now(lambda: codec.encode(value))


@pytest.mark.parametrize("format_", list(FORMATS))
@pytest.mark.parametrize(("type_", "value"), VALUES, ids=[str(type_) for type_, _ in VALUES])
def test_values_and_keys_are_read_back(type_: Any, value: Any, format_: str) -> None:
    if format_ == "json schema" and type_ in (Record, Nested, list[Customer]):
        with pytest.raises(ConfigurationError, match="give one with schema="):
            codecs_of(JsonSchema, type_)
        return
    key_codec, value_codec = codecs_of(FORMATS[format_], type_)
    for codec in (value_codec, key_codec):
        raw = written(codec, value)
        back = codec.decode(raw)
        assert back == value
        assert type(back) is type(value)
        # Keys: the bytes of what was read are those that were read.
        assert codec.encode(back) == raw


def test_avro_reads_a_field_that_may_be_missing_and_may_be_none_as_none() -> None:
    codec = codecs_of(Avro, Sparse)[1]
    assert codec.decode(written(codec, {"id": 1})) == {"id": 1, "size": None, "rows": None}


def test_the_arms_of_a_union_may_have_schemas_of_their_own_and_a_namespace() -> None:
    registry = FakeRegistry()
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=registry)
    for name in ("Created", "Deleted"):
        fields = [{"name": "id", "type": "long"}]
        registry.register(f"com.{name}", json.dumps({"type": "record", "name": f"com.{name}", "fields": fields}))
    codec = Avro(namespace="com").bind(Place("orders", "value"), Created | Deleted, app)
    assert resolved_now(lambda: codec.decode(b"\0\0\0\0\1\6")) == Created(3)
    assert resolved_now(lambda: codec.decode(b"\0\0\0\0\2\6")) == Deleted(3)
    assert codec.decode(written(codec, Deleted(4))) == Deleted(4)


@pytest.mark.parametrize("format_", list(FORMATS))
@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        (dict[str, int], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Point, Point(1, 0.0), Point(1, -0.0)),
        (datetime, datetime(2031, 1, 2, tzinfo=UTC), datetime(2031, 1, 2, 2, tzinfo=timezone(timedelta(hours=2)))),
        (Price, Decimal("1.5"), Decimal("1.50")),
        (set[int], {1, 2, 3}, {3, 2, 1}),
    ],
)
def test_equal_keys_have_equal_bytes(format_: str, type_: Any, one: Any, other: Any) -> None:
    codec = codecs_of(FORMATS[format_], type_)[0]
    assert written(codec, one) == written(codec, other)


@pytest.mark.parametrize("format_", list(FORMATS))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused(format_: str, value: float) -> None:
    for codec in codecs_of(FORMATS[format_], Point):
        with pytest.raises(CodecError, match=r"nan|inf"):
            written(codec, Point(1, value))


class Rate(pydantic.BaseModel):
    rate: float


@pytest.mark.parametrize("format_", list(FORMATS))
def test_pydantic_writes_no_nan(format_: str) -> None:
    for codec in codecs_of(FORMATS[format_], Rate):
        with pytest.raises(CodecError, match=r"rate.* is nan"):
            written(codec, Rate(rate=float("nan")))


def test_numbers_of_more_than_64_bits_are_refused_by_avro() -> None:
    with pytest.raises(CodecError, match="too large"):
        written(codecs_of(Avro, Cents)[1], 2**63)


def test_a_time_without_zone_and_digits_that_would_be_lost_are_refused_by_avro() -> None:
    with pytest.raises(CodecError, match="no time zone"):
        written(codecs_of(Avro, datetime)[1], datetime(2031, 1, 2))
    with pytest.raises(CodecError, match="Scale"):
        written(codecs_of(Avro, Price)[1], Decimal("1.555"))
    with pytest.raises(ConfigurationError, match="'scale': 2"):
        codecs_of(Avro, Decimal)


@pytest.mark.parametrize(
    "value",
    [Line(3), Line("hat", "x"), Line("hat", True), Line("hat", size="no"), "hat", {"item": "hat"}, None],  # type: ignore[arg-type]
)
def test_values_of_other_types_are_refused_by_avro(value: Any) -> None:
    codec = codecs_of(Avro, Line)[1]
    with pytest.raises(CodecError):
        written(codec, value)


def test_an_error_of_pydantic_names_the_field() -> None:
    codec = codecs_of(Json, Customer)[1]
    with pytest.raises(CodecError, match="since"):
        codec.decode(b'{"fullName": "Ada", "since": "yesterday"}')


class Spot(msgspec.Struct):
    x: float


class Cloud(msgspec.Struct):
    name: str
    middle: Spot | None = None
    points: list[Spot] = []
    by_name: dict[str, float] = {}
    anything: Any = None


@pytest.mark.parametrize(
    "cloud",
    [
        Cloud("a", Spot(math.nan)),
        Cloud("a", None, [Spot(1.0), Spot(math.inf)]),
        Cloud("a", by_name={"b": math.nan}),
        Cloud("a", anything=[{"b": -math.inf}]),
    ],
)
def test_nan_is_found_wherever_a_type_may_have_it(cloud: Cloud) -> None:
    data = plain_data(Cloud, is_key=False)
    with pytest.raises(ValueError, match=r"NaN|infinity|nan|inf"):
        data.dump(cloud)
    with pytest.raises(ValueError, match=r"NaN|infinity|nan|inf"):
        data.load(msgspec.to_builtins(cloud))
    whole = Cloud("a", Spot(1.0), [Spot(2.0)], {"b": 3.0})
    assert data.load(data.dump(whole)) == whole


def struct_of(**fields: Any) -> Struct:
    made = Struct()
    made.update(fields)
    return made


READINGS = messages(
    "readings.proto",
    """
Reading name:string value:double more:*float next:.shop.Reading others:*.shop.Reading
""",
)["Reading"]


@pytest.mark.parametrize(
    "message",
    [
        READINGS(value=math.nan),
        READINGS(value=1, more=[1, math.inf]),
        READINGS(next=READINGS(next=READINGS(value=-math.inf))),
        READINGS(others=[READINGS(), READINGS(more=[math.nan])]),
        struct_of(a=math.nan),
        struct_of(a=[{"b": [1, {"c": math.inf}]}]),
    ],
    ids=str,
)
def test_messages_with_nan_are_neither_written_nor_read(message: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    _, codec = topic_codecs(app.topic("readings", format=Protobuf(type(message))))
    with pytest.raises(CodecError, match="which JSON can't hold"):
        resolved_now(lambda: codec.encode(message))
    whole = (
        READINGS(value=1, next=READINGS(more=[2.5])) if isinstance(message, READINGS) else struct_of(a=[1, {"b": 2}])
    )
    raw = resolved_now(lambda: codec.encode(whole))
    assert codec.decode(raw) == whole
    with pytest.raises(CodecError, match="which JSON can't hold"):
        codec.decode(raw[:6] + message.SerializeToString())
