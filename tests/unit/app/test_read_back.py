"""What a codec writes is read back as the same value, or is refused at the write: by type, and in every place."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict
from uuid import UUID

import faust
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import (
    Actor,
    ActorsError,
    App,
    ConfigurationError,
    Context,
    EffectCall,
    HandlerFailedError,
    Session,
    Tumbling,
    aggregates,
    receive,
)
from actors.declare.values.codecs import Codec, CodecError, resolve
from actors.testing import ActorTestDriver


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Word(enum.StrEnum):
    ONE = "one"


class Point(NamedTuple):
    x: float
    y: int = 0


class Row(TypedDict):
    count: int
    note: NotRequired[str]


class Money(msgspec.Struct):
    cents: int
    rate: float | None = None
    tags: dict[str, list[str]] = {}
    extra: Any = None


class Cash(Money):
    drawer: int = 1


class Owner(msgspec.Struct, rename="camel", frozen=True):
    full_name: str
    age: int | None = None


class Plain(msgspec.Struct):
    """Has fields of which their classes say that JSON returns them as they are."""

    count: int
    rate: float
    name: str | int | None
    is_paid: bool = False
    raw: bytes = b""
    price: Decimal = Decimal(0)
    id: UUID | None = None
    owner: Owner | None = None


class Rounded(msgspec.Struct):
    cents: int

    def __post_init__(self) -> None:
        self.cents //= 100


class Opened(msgspec.Struct, tag="opened"):
    at: datetime
    by: dict[int, float]


class Closed(msgspec.Struct, tag="closed", eq=False):
    after: timedelta
    colors: set[Color]


@dataclasses.dataclass
class Reading:
    sensor: UUID
    value: Decimal
    day: date | None = None
    at: time | None = None
    point: Point | None = None


class Item(faust.Record, include_metadata=False):
    name: str
    weight: float = 0.0
    note: Optional[str] = None  # noqa: UP045  Faust reads it at run time, and knows no `str | None`
    counts: dict[str, int] = {}  # noqa: RUF012  Faust's models take it as the default


class Cart(faust.Record, isodates=True, decimals=True):
    at: datetime
    price: Decimal
    items: list[Item] = []  # noqa: RUF012  as above


TEXT = st.text(st.characters(codec=None), max_size=8)
"""With lone surrogates."""
FLOATS = st.floats()
INTS = st.integers() | st.integers(-(2**70), 2**70)
TIMES = st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30))))
DELTAS = st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000))
PLAIN = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT | INTS | st.booleans() | FLOATS, inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=6,
)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: INTS | st.booleans() | FLOATS,
    float: FLOATS | INTS,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    Decimal: st.decimals(),
    UUID: st.uuids(),
    datetime: TIMES,
    date: st.dates(),
    time: st.times(),
    timedelta: DELTAS,
    Color: st.sampled_from(Color),
    Literal["a", "b"]: st.sampled_from(["a", "b", "c"]),
    Annotated[int, msgspec.Meta(ge=0)]: INTS,
}
# The last strategy of a field is of what its type doesn't allow, and msgspec's encoder takes all the same.
MONEY = st.builds(
    Money,
    INTS | FLOATS | st.none(),
    st.none() | FLOATS | INTS,
    st.dictionaries(TEXT, st.lists(TEXT | st.integers(), max_size=2) | st.tuples(TEXT), max_size=2),
    PLAIN | TIMES | st.uuids() | st.sets(st.integers(), max_size=2),
)
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    **LEAVES,
    None: PLAIN | TIMES | st.uuids() | st.sampled_from(Word),
    Any: PLAIN,
    dict: st.dictionaries(TEXT | INTS | st.sampled_from(Word), PLAIN, max_size=3),
    list: st.lists(PLAIN, max_size=3),
    dict[str, int]: st.dictionaries(TEXT, INTS | FLOATS, max_size=3),
    dict[int, float]: st.dictionaries(INTS | TEXT, FLOATS | INTS, max_size=3),
    dict[Any, int]: st.dictionaries(TEXT | INTS, st.integers(), max_size=3),
    dict[float, str]: st.dictionaries(FLOATS, TEXT, max_size=3),
    list[float | None]: st.lists(st.none() | FLOATS, max_size=3),
    set[str]: st.sets(TEXT, max_size=3),
    frozenset[float]: st.frozensets(FLOATS, max_size=3),
    tuple[int, str]: st.tuples(INTS, TEXT) | st.tuples(INTS),
    int | str: INTS | TEXT,
    Point: st.builds(Point, FLOATS | INTS, INTS),
    Row: st.fixed_dictionaries({"count": INTS | TEXT}, optional={"note": TEXT | st.none(), "more": INTS}),
    Money: MONEY | st.builds(Cash, st.integers(), drawer=st.integers()),
    Opened | Closed: (
        st.builds(Opened, TIMES, st.dictionaries(st.integers(), FLOATS, max_size=2))
        | st.builds(Closed, DELTAS, st.sets(st.sampled_from(Color)))
    ),
    list[Money]: st.lists(MONEY, max_size=2),
    Plain: st.builds(
        Plain,
        INTS | st.booleans() | FLOATS,
        FLOATS | INTS,
        TEXT | INTS | st.none() | st.booleans(),
        st.booleans() | st.integers(0, 1),
        st.binary(max_size=4) | st.builds(bytearray),
        st.decimals() | st.integers(),
        st.none() | st.uuids() | TEXT,
        st.none() | st.builds(Owner, TEXT, st.none() | INTS | st.booleans()) | st.builds(Money, st.integers()),
    ),
    Rounded: st.builds(Rounded, st.integers(0, 1000)),
    Reading: st.builds(
        Reading, st.uuids(), st.decimals() | st.floats(), st.none() | st.dates(), st.none() | st.times()
    ),
    Item: st.builds(
        Item, name=TEXT, weight=FLOATS, note=st.none() | TEXT, counts=st.dictionaries(TEXT | INTS, INTS, max_size=2)
    ),
    Cart: st.builds(
        Cart,
        at=TIMES,
        price=st.decimals(allow_nan=False, allow_infinity=False),
        items=st.lists(st.builds(Item, name=TEXT, weight=FLOATS), max_size=2),
    ),
}


def plainly(value: Any) -> Any:  # noqa: C901  a case for each kind of value
    """Return a value as plain data in which NaN equals itself, and values of other types differ, save whole numbers."""
    if isinstance(value, Mapping):
        return {("str" if isinstance(key, str) else "", plainly(key)): plainly(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(part) for part in value]
    if isinstance(value, set | frozenset):
        return {plainly(part) for part in value}
    if isinstance(value, faust.Record):
        return {name: plainly(getattr(value, name)) for name in type(value)._options.fields}
    if isinstance(value, msgspec.Struct):
        return {name: plainly(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: plainly(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.StrEnum):
        return str(value)
    if isinstance(value, Decimal) and not value.is_finite():
        return f"decimal {value}"
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def written(codec: Codec, value: Any) -> bytes | None:
    try:
        return codec.encode(value)
    except CodecError:
        return None


@pytest.mark.parametrize("serializer", [None, "json|binary"])
@pytest.mark.parametrize("type_", TYPES, ids=str)
@given(data=st.data())
def test_a_value_is_read_back_or_refused(type_: Any, serializer: str | None, data: st.DataObject) -> None:
    codec, value = resolve(type_, serializer), data.draw(TYPES[type_])
    raw = written(codec, value)
    if raw is not None:
        assert plainly(codec.decode(raw)) == plainly(value)


@pytest.mark.parametrize("type_", [str, int, float, bytes, Decimal, UUID, bool])
@given(data=st.data())
def test_a_raw_scalar_is_read_back_or_refused(type_: Any, data: st.DataObject) -> None:
    codec, value = resolve(type_, "raw"), data.draw(TYPES[type_])
    raw = written(codec, value)
    if raw is not None:
        assert plainly(codec.decode(raw)) == plainly(value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Money, Money(5, 0.5, {"a": ["b"]}, [1, {"c": None}, -0.0])),
        (Money, Money(5, 3, {"a": ("b",)})),  # type: ignore[dict-item]
        (Row, {"count": 1}),
        (Row | None, {"count": 1, "note": "x"}),
        (dict, {Word.ONE: [1, (2, 3)]}),
        (None, Cart(at=datetime(2026, 1, 2), price=Decimal("1.50"), items=[Item(name="x", note=None)])),
        (Opened | Closed, Closed(timedelta(1), {Color.RED})),
        (Money, type("Coin", (Money,), {})(1)),
        (Decimal, Decimal("sNaN")),
        (float, 3),
        (dict[int, float], {1: 2.0, -3: 4}),
        (int, 2**70),
    ],
    ids=lambda value: getattr(value, "name", None) or "a value",
)
def test_what_a_type_allows_is_written(type_: Any, value: Any) -> None:
    codec = resolve(type_)
    assert plainly(codec.decode(codec.encode(value))) == plainly(value)


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (float, math.nan, "$ is nan, which JSON can't hold"),
        (float, 2**53 + 1, "$ is 9007199254740993 and would be read back as 9007199254740992.0"),
        (Money, Money(1, math.inf), "$.rate is inf, which JSON can't hold"),
        (Money, Money(1, None, {"a": ["\ud800"]}), "surrogates not allowed"),
        (Money, Money(2.5), "Expected `int`, got `float` - at `$.cents`"),  # type: ignore[arg-type]
        (Money, Money(1, extra={"a": [{1: 2}]}), "$.extra['a'][0][1] would be lost: it is read back as a dict"),
        (Money, Money(1, extra=UUID(int=1)), "$.extra is a UUID and would be read back as '00000000-"),
        (Money, Cash(1), "$.drawer would be lost: it is read back as a Money"),
        (Row, {"count": 1, "more": 2}, "$['more'] would be lost"),
        (dict[int, float], {3: math.nan}, "$[3] is nan"),
        (None, {1: "a", "1": "b"}, "$ has the key 1, and it would be read back as text: use text, or declare the type"),
        (None, {"a": [math.nan]}, "$['a'][0] is nan"),
        (None, {"a": datetime(2026, 1, 2)}, "$['a'] is a datetime and would be read back as '2026-01-02T00:00:00'"),
        (None, 2**64, "64-bit range"),
        (Item, Item(name="x", weight=-math.inf), "$.weight is -inf"),
        (Item, Item(name="x", counts={1: 2}), "$['counts'] has the key 1"),
    ],
    ids=lambda value: getattr(value, "name", None) or "a value",
)
def test_what_would_be_read_back_otherwise_is_refused(type_: Any, value: Any, text: str) -> None:
    with pytest.raises(CodecError, match="can't encode ") as caught:
        resolve(type_).encode(value)
    assert text in str(caught.value)


def test_what_is_written_for_others_need_only_be_json() -> None:
    codec = resolve(None, for_others=True)
    assert codec.encode({"at": datetime(2026, 1, 2), "who": Reading(UUID(int=1), Decimal(2)), "many": {1}}).startswith(
        b'{"at":"2026-01-02T'
    )
    for value in ({"a": math.nan}, {1: 2}, {"a": [{"b": {None: 1}}]}):
        with pytest.raises(CodecError, match=r"is nan|has the key"):
            codec.encode(value)


class Sale(msgspec.Struct, tag=True):
    cents: int
    lines: list[str] = []


@pytest.mark.parametrize("message", [Sale("5"), Sale(5, [6]), Sale(True), Sale(5, None)])  # type: ignore[arg-type,list-item]
@pytest.mark.parametrize("type_", [Sale, Sale | Closed, dict[str, Sale], list[Sale]])
def test_a_message_to_any_topic_that_this_program_could_not_read_is_refused(type_: Any, message: Sale) -> None:
    codec = resolve(type_, for_others=True)
    value = {"a": message} if type_ == dict[str, Sale] else [message] if type_ == list[Sale] else message
    with pytest.raises(CodecError, match=r"can't encode .*Expected `"):
        codec.encode(value)


class Undated(faust.Record):
    at: Optional[datetime] = None  # noqa: UP045  as above


class Basket(faust.Record):
    carts: list[Undated]


class Numbered(faust.Record, isodates=True):
    id: UUID


class Packed(faust.Record):
    raw: bytes = b""


@pytest.mark.parametrize(
    ("record", "field"),
    [(Undated, "Undated.at"), (Basket, "Undated.at"), (Numbered, "Numbered.id"), (Packed, "Packed.raw")],
)
def test_a_record_whose_fields_would_become_text_is_refused_as_a_stores_type(record: Any, field: str) -> None:
    app = App("records", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=rf"{field}, a \w+, would be read back as text"):
        app.store("carts", value_type=record)
    app.topic("carts", value_type=record)


class Loose(faust.Record):
    tags: Any = None
    color: Optional[Color] = None  # noqa: UP045  as above
    days: list[date] = []  # noqa: RUF012  Faust's models take it as the default


@pytest.mark.parametrize(
    "value",
    [
        Loose(tags={1}),
        Loose(tags=datetime(2026, 1, 2)),
        Loose(tags=b"a"),
        Loose(color=Color.RED),
        Loose(days=[date(2026, 1, 2)]),
    ],
    ids=lambda value: getattr(value, "name", None) or "a value",
)
def test_a_record_is_read_back_in_a_store_and_goes_to_topics_as_faust_writes_it(value: Any) -> None:
    with pytest.raises(CodecError, match=r"Loose: \$\.\w+(\[0\])? is an? \w+ and would be read back as"):
        resolve(Loose).encode(value)
    assert resolve(Loose, for_others=True).encode(value)
    assert resolve(Loose).encode(Loose(tags=[1, {"a": None}])).startswith(b'{"tags":[1,{"a":null}]')


def test_plain_data_with_the_mark_of_a_model_is_read_back_or_refused() -> None:
    with pytest.raises(CodecError, match="gone"):
        resolve(None).encode({"__faust": {"ns": "gone"}})


# --- in every place --------------------------------------------------------------------------------------------------

LOST = Money(1, math.nan)


class Give(msgspec.Struct, tag="give"):
    place: str


class Take(msgspec.Struct, tag="take"):
    money: Money


def everywhere() -> tuple[App, dict[str, Any]]:  # noqa: C901  a case for each place
    """Return an app that writes a value in every place, and its input and effect."""
    app = App("places", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    out = app.topic("out", key_type=str, value_type=Money)
    anything = app.topic("anything")
    typed, plain = app.store("typed", value_type=Money), app.store("plain")
    records = app.store("records", value_type=Item)
    shown = app.store("shown", value_type=Money, publish=app.topic("shown", key_type=str, value_type=Money))
    minutes = app.window_store("minutes", Tumbling(timedelta(minutes=1)), value_type=Money)
    means = app.store("means", aggregate=aggregates.mean())

    @app.effect()
    async def call(_: EffectCall, money: Money) -> Take:
        return Take(money)

    @app.effect()
    async def lose(_: EffectCall) -> Take:
        return Take(LOST)

    @app.actor(app.topic("wallets", key_type=str), timers=True, effects=[call, lose])
    class Wallet(Actor[Money]):
        def initial_state(self) -> Money:
            return Money(0)

        @receive
        async def give(self, message: Give) -> Money | None:
            if message.place == "state":
                self.state.rate = math.nan
            elif message.place == "type of a field":
                self.state.cents = 2.5  # type: ignore[assignment]
            elif message.place == "answer":
                return LOST
            elif message.place == "schedule":
                self.ctx.schedule(Take(LOST), after=timedelta(seconds=1))
            elif message.place == "effect":
                self.ctx.effect(call, LOST)
            elif message.place == "result":
                self.ctx.effect(lose)
            return None

        @receive
        async def take(self, message: Take) -> None:
            self.state = message.money

    @app.actor(orders, stores=[typed, plain, records, shown, minutes, means])
    async def order(ctx: Context, place: str) -> None:
        writes = {
            "set": lambda: typed.set(ctx.key, LOST),
            "put_if_absent": lambda: typed.put_if_absent(ctx.key, LOST),
            "compare_and_set": lambda: typed.compare_and_set(ctx.key, None, LOST),
            "no type": lambda: plain.set(ctx.key, {"a": [{1: "x", "1": "y"}]}),
            "record": lambda: records.set(ctx.key, Item(name="x", weight=math.inf)),
            "published": lambda: shown.set(ctx.key, LOST),
            "window": lambda: minutes.update(ctx.key, lambda _: LOST),
            "send": lambda: ctx.send(out, key="k", value=LOST),
            "send without a type": lambda: ctx.send(anything, key="k", value={"rate": math.nan}),
            "send by name": lambda: ctx.send("anything", key="k", value={"rate": math.inf}),
            "text by name": lambda: ctx.send("anything", key="k", value="\ud800"),
            "tell": lambda: ctx.tell("Wallet", "k", Take(LOST)),
            "aggregate": lambda: means.add(ctx.key, math.inf),
        }
        writes[place]()

    return app, {"orders": orders, "wallet": Wallet, "effects": {call: call.function, lose: lose.function}}


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("set", "$.rate is nan"),
        ("put_if_absent", "$.rate is nan"),
        ("compare_and_set", "$.rate is nan"),
        ("no type", "$['a'][0] has the key 1"),
        ("record", "$.weight is inf"),
        ("published", "$.rate is nan"),
        ("window", "$.rate is nan"),
        ("send", "$.rate is nan"),
        ("send without a type", "$['rate'] is nan"),
        ("send by name", "$['rate'] is inf"),
        ("text by name", "surrogates not allowed"),
        ("tell", "$.money.rate is nan"),
    ],
)
def test_a_function_actor_is_refused_what_it_could_not_read(place: str, what: str) -> None:
    app, parts = everywhere()
    with ActorTestDriver(app, effects=parts["effects"]) as driver:
        with pytest.raises(HandlerFailedError) as caught:
            driver.send(parts["orders"], key="ada", value=place)
        assert what in str(caught.value)
        assert "actor order" in str(caught.value)
        assert "'ada'" in str(caught.value)
        assert all(not list(driver.items(store)) for store in app.stores.values() if store.name in {"typed", "plain"})


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("state", "$.rate is nan"),
        ("type of a field", "Expected `int`, got `float` - at `$.cents`"),
        ("answer", "$.rate is nan"),
        ("schedule", "$.money.rate is nan"),
        ("effect", "money.rate is nan and would be read back as None"),
    ],
)
def test_a_class_actor_is_refused_what_it_could_not_read(place: str, what: str) -> None:
    app, parts = everywhere()
    with ActorTestDriver(app, effects=parts["effects"]) as driver:
        with pytest.raises(ActorsError) as caught:
            driver.ask(parts["wallet"], "ada", Give(place))
        assert what in str(caught.value)
        assert driver.get(parts["wallet"], "ada") is None


def test_an_effects_result_that_could_not_be_read_is_parked(caplog: pytest.LogCaptureFixture) -> None:
    app, parts = everywhere()
    with ActorTestDriver(app, effects=parts["effects"]) as driver:
        driver.ask(parts["wallet"], "ada", Give("result"))
        assert "$.money.rate is nan" in caplog.text
        assert driver.get(parts["wallet"], "ada") is None


def _joined(state: Any, value: Any) -> Any:
    return value if state is None else state + value


@pytest.mark.parametrize("windows", [None, Tumbling(timedelta(seconds=1)), Session(timedelta(seconds=1))], ids=repr)
@pytest.mark.parametrize(
    ("aggregate", "value", "text"),
    [
        (aggregates.max(), Decimal("1.5"), r"the state is a Decimal and would be read back as '1\.5'"),
        (aggregates.collect(3), UUID(int=1), r"the state\[0\] is a UUID"),
        (aggregates.collect(3), [Money(1)], r"the state\[0\]\[0\] is a Money and would be read back as a dict"),
        (aggregates.collect(3), {1}, r"the state\[0\] is a set and would be read back as a list"),
        (aggregates.Aggregate(0, _joined, _joined, int), 1.5, "not a state of this aggregate"),
        (aggregates.Aggregate(None, _joined, _joined), Decimal(1), "the state is a Decimal"),
        (aggregates.min(), math.nan, r"aggregates\.min\(\) of NaN"),
        (aggregates.max(Decimal), Decimal("sNaN"), r"aggregates\.max\(\) of NaN"),
        (aggregates.max(), [1, {"a": math.nan}], r"aggregates\.max\(\) of NaN"),
        (aggregates.top_n(2, by=lambda value: (1, value)), math.nan, r"aggregates\.top_n\(\) of NaN"),
    ],
    ids=lambda value: getattr(value, "name", None) or "a value",
)
def test_a_state_of_an_aggregate_is_read_back_or_refused(windows: Any, aggregate: Any, value: Any, text: str) -> None:
    app = App("states", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=int)
    store: Any = app.store("kept", aggregate=aggregate)
    if windows is not None:
        store = app.window_store("in-windows", windows, aggregate=aggregate)

    @app.actor(topic, stores=[store])
    async def keep(ctx: Context, _: int) -> None:
        store.add(ctx.key, value)

    with ActorTestDriver(app, partitions=1) as driver, pytest.raises(HandlerFailedError, match=text) as caught:
        driver.send(topic, key="a", value=1)
    assert caught.value.offset == 0


def test_an_initial_that_is_not_read_back_is_refused_at_the_declaration() -> None:
    app = App("states", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"initial=Decimal\('0'\) .* would be read back as '0'"):
        app.store("kept", aggregate=aggregates.Aggregate(Decimal(0), _joined))


def test_aggregates_keep_infinity_and_nan() -> None:
    app, parts = everywhere()
    with ActorTestDriver(app, effects=parts["effects"]) as driver:
        driver.send(parts["orders"], key="ada", value="aggregate")
        assert driver.get(app.stores["means"], "ada") == math.inf


def test_a_typed_dict_is_a_stores_type() -> None:
    app = App("rows", broker="kafka://127.0.0.1:1")
    orders, rows = app.topic("orders", key_type=str, value_type=Row), app.store("rows", value_type=Row)

    @app.actor(orders, stores=[rows])
    async def keep(ctx: Context, row: Row) -> None:
        rows[ctx.key] = row

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value=Row(count=1, note="x"))
        assert driver.get(rows, "ada") == {"count": 1, "note": "x"}
