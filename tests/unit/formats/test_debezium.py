"""Tables that follow a table of PostgreSQL, by the events that Debezium wrote for a real one."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest

from actors import App, Context
from actors.errors import ConfigurationError, RecordError
from actors.formats.columns import Column, converted
from actors.testing import ActorTestDriver, FakeRegistry

RECORDED = Path(__file__).parents[2] / "formats" / "debezium"
FORMATS = ("json", "json_schema", "avro")
SOURCE = "shop.public.customers"


class Customer(msgspec.Struct):
    id: int
    name: str
    email: str | None = None
    balance: Annotated[Decimal, msgspec.Meta(extra={"scale": 2})] = Decimal(0)
    born: date | None = None
    seen: datetime | None = None
    created: datetime | None = None
    tags: dict[str, Any] | None = None
    code: UUID | None = None
    active: bool | None = None
    score: float | None = None
    big: int | None = None
    note: str | None = None
    level: int = 7


class Order(msgspec.Struct):
    item: str


ADA = Customer(
    1,
    "Ada",
    "ada@example.org",
    Decimal("10.50"),
    date(1815, 12, 10),
    datetime(2026, 1, 2, 2, 4, 5, 678901, UTC),
    datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    {"a": [1, None]},
    UUID("123e4567-e89b-12d3-a456-426614174000"),
    True,
    0.1,
    9007199254740993,
    "ä€",
)


def recorded(name: str) -> tuple[list[tuple[bytes | None, bytes | None, list]], FakeRegistry]:
    """The records of a format in order, with the registry of their schemas."""
    content = json.loads((RECORDED / f"{name}.json").read_text())
    registry = FakeRegistry()
    ids = {int(id): registry.register(f"subject-{id}", json.dumps(schema)) for id, schema in content["schemas"].items()}

    def raw(data: Any) -> bytes | None:
        if data is None:
            return None
        if name != "avro":
            return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
        packed = bytes.fromhex(data)
        return b"\0" + struct.pack(">I", ids[int.from_bytes(packed[1:5])]) + packed[5:]

    records = [
        (
            raw(event["key"]),
            raw(event["value"]),
            [(header, value.encode()) for header, value in event["headers"].items()],
        )
        for event in content["events"]
    ]
    return records, registry


class Shop:
    """An app whose table follows a topic of Debezium."""

    def __init__(self, registry: FakeRegistry | None = None, **options: Any) -> None:
        settings = {name: options.pop(name) for name in ("consumer_auto_offset_reset",) if name in options}
        self.app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=registry, **settings)
        self.orders = self.app.topic("orders", key_type=int, value_type=Order)
        source = self.app.topic(SOURCE, key_type=int, value_type=options.pop("value_type", Customer))
        self.customers = self.app.table(source, name="customers", cdc="debezium")
        self.labels = self.app.topic("labels", key_type=int, value_type=str)
        stores = [self.app.store(name) for name in options.pop("stores", ())]
        self.app.actor(self.orders, stores=[*stores, self.customers], **options)(self.label)

    async def label(self, ctx: Context, order: Order) -> None:
        customer = self.customers.get(ctx.key)
        ctx.send(self.labels, key=ctx.key, value=f"{order.item} for {None if customer is None else customer.name}")

    def driver(self, partitions: int = 1) -> ActorTestDriver:
        return ActorTestDriver(self.app, partitions=partitions)


def rows(driver: ActorTestDriver, shop: Shop) -> dict[int, Customer]:
    return {row.id: row for key in range(1, 30) if (row := driver.get(shop.customers, key)) is not None}


def feed(driver: ActorTestDriver, records: Any, partition: int | None = None) -> None:
    for key, value, headers in records:
        driver.send(SOURCE, key=key, value=value, headers=headers, raw=True, partition=partition)


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_follows_every_kind_of_change(name: str) -> None:
    records, registry = recorded(name)
    shop = Shop(registry)
    with shop.driver() as driver:
        feed(driver, records[:2])
        assert rows(driver, shop) == {1: ADA, 2: Customer(2, "Bob")}
        feed(driver, records[2:4])  # an insert and an update
        assert rows(driver, shop)[3] == Customer(3, "Cy")
        assert rows(driver, shop)[1].balance == Decimal("11.50")
        feed(driver, records[4:7])  # another primary key
        assert rows(driver, shop).keys() == {1, 20, 3}
        feed(driver, records[7:9])  # a deletion and its tombstone
        assert rows(driver, shop).keys() == {1, 20}
        feed(driver, records[9:11])  # an update of a row whose large column isn't in it
        assert rows(driver, shop)[4].balance == Decimal("-0.01")
        assert len(rows(driver, shop)[4].note or "") == 80 * 32
        feed(driver, records[11:15])  # a new column, and whole rows before a change
        assert rows(driver, shop)[5] == Customer(5, "Eva", level=8)
        assert rows(driver, shop)[1].score == 2
        feed(driver, records[15:16])  # truncated
        assert rows(driver, shop) == {}
        feed(driver, records[16:])
        assert rows(driver, shop) == {6: Customer(6, "Flo")}
        driver.send(shop.orders, key=6, value=Order("hat"))
        assert [sent.value for sent in driver.outputs(shop.labels)] == ["hat for Flo"]


def event(op: str, key: int, lsn: int, name: str = "", **row: Any) -> tuple[bytes | None, bytes, list]:
    source = {"lsn": lsn, "ts_ms": 1_700_000_000_000 + lsn}
    after = {"id": key, "name": name, **row} if op in "rcu" else None
    raw_key = None if op == "t" else msgspec.json.encode({"id": key})
    return raw_key, msgspec.json.encode({"before": None, "after": after, "op": op, "source": source}), []


def tombstone(key: int) -> tuple[bytes, None, list]:
    return msgspec.json.encode({"id": key}), None, []


def names(driver: ActorTestDriver, shop: Shop) -> dict[int, str]:
    return {key: row.name for key, row in rows(driver, shop).items()}


def test_a_repetition_undoes_nothing() -> None:
    shop = Shop()
    changes = [event("c", 1, 10, "a"), event("u", 1, 20, "b"), event("d", 1, 30), tombstone(1), event("c", 1, 40, "c")]
    with shop.driver() as driver:
        feed(driver, changes)
        for repeated in changes:
            feed(driver, [repeated])
            assert names(driver, shop) == {1: "c"}
        feed(driver, [event("d", 1, 50), tombstone(1)])
        for repeated in changes:
            feed(driver, [repeated])
            assert names(driver, shop) == {}


def test_a_tombstone_whose_deletion_was_compacted_deletes() -> None:
    shop = Shop()
    with shop.driver() as driver:
        feed(driver, [event("c", 1, 10, "a"), tombstone(1)])
        assert names(driver, shop) == {}
        # What comes after it in the topic is the row of now, though it was written before.
        feed(driver, [event("c", 1, 10, "a")])
        assert names(driver, shop) == {1: "a"}


def test_a_transaction_that_was_open_during_the_snapshot_counts() -> None:
    shop = Shop()
    with shop.driver() as driver:
        feed(driver, [event("r", 1, 100, "old"), event("u", 1, 90, "new")])
        assert names(driver, shop) == {1: "new"}
        feed(driver, [event("r", 1, 80, "older")])
        assert names(driver, shop) == {1: "new"}


def test_a_truncation_reaches_all_partitions_whatever_comes_first() -> None:
    shop = Shop()
    with shop.driver(partitions=3) as driver:
        feed(driver, [event("c", key, key, "a") for key in range(1, 20)])
        assert len(rows(driver, shop)) == 19
        feed(driver, [event("t", 0, 50)], partition=2)
        assert rows(driver, shop) == {}
        # A slower partition has what was before it, and what is behind it.
        feed(driver, [event("c", 21, 49, "before"), event("c", 22, 51, "behind"), event("u", 3, 40, "before")])
        assert names(driver, shop) == {22: "behind"}


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_the_snapshot_is_read_though_the_table_came_later(reset: str) -> None:
    before = App("shop", broker="kafka://127.0.0.1:9092", consumer_auto_offset_reset=reset)
    before.topic(SOURCE, key_type=bytes, value_type=bytes)
    before.actor(before.topic("orders", key_type=int, value_type=Order), stores=[before.store("seen")], name="label")(
        before_nothing
    )
    shop = Shop(consumer_auto_offset_reset=reset, stores=["seen"])
    with ActorTestDriver(before, partitions=1) as driver:
        feed(driver, [event("r", 1, 5, "a")])
        driver.restart(shop.app)
        feed(driver, [event("r", 2, 5, "b")])
        assert names(driver, shop) == {1: "a", 2: "b"}


async def before_nothing(ctx: Context, order: Order) -> None: ...


def test_a_large_truncation_goes_by_pages() -> None:
    shop = Shop()
    with shop.driver() as driver:
        for key in range(1000, 1700):
            record_key, value, _ = event("c", key, 5, "a")
            driver.post(SOURCE, key=record_key, value=value, raw=True)
        driver.settle()
        assert driver.get(shop.customers, 1699) is not None
        feed(driver, [event("c", 1, 51, "stays"), event("t", 0, 50)])
        assert all(driver.get(shop.customers, key) is None for key in range(1000, 1700))
        assert names(driver, shop) == {1: "stays"}


def test_aggregates_and_joins_follow_a_truncation() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    people = app.table(app.topic(SOURCE, key_type=int, value_type=Customer), name="people", cdc="debezium")
    cities = app.table(app.topic("cities", key_type=int, value_type=str), name="cities")
    by_name = people.aggregate(
        "names", by="name", initial=0, add=lambda n, _: n + 1, remove=lambda n, _: n - 1, value_type=int
    )
    seen: list[Any] = []

    @app.join(people, cities, how="inner")
    async def living(ctx: Context, person: Customer | None, city: str | None) -> None:
        seen.append((ctx.key, person and person.name, city))

    with ActorTestDriver(app, partitions=2) as driver:
        for key in (1, 2):
            driver.send("cities", key=key, value="Paris")
        feed(driver, [event("c", 1, 1, "ada"), event("c", 2, 2, "ada"), event("c", 2, 2, "ada")])
        assert driver.get(by_name, "ada") == 2
        feed(driver, [event("t", 0, 9)])
        assert not driver.get(by_name, "ada")
    assert sorted(seen[:2]) == [(1, "ada", "Paris"), (2, "ada", "Paris")]
    assert sorted(seen[2:]) == [(1, None, None), (2, None, None)]


WRONG = {
    "no envelope": (b'{"id":1}', b'{"id":1,"name":"a"}', "no envelope of Debezium"),
    "no JSON": (b'{"id":1}', b"{", "malformed|truncated"),
    "no lsn": (b'{"id":1}', b'{"op":"c","after":{"id":1,"name":"a"},"source":{}}', "only changes of PostgreSQL"),
    "negative lsn": (b'{"id":1}', b'{"op":"c","after":{"id":1,"name":"a"},"source":{"lsn":-1}}', "source.lsn is -1"),
    "unknown op": (b'{"id":1}', b'{"op":"q","after":null,"source":{"lsn":1}}', "its op is 'q'"),
    "no row": (b'{"id":1}', b'{"op":"c","after":null,"source":{"lsn":1}}', "its after is None"),
    "no primary key": (None, event("c", 1, 1, "a")[1], "give the database's table a primary key"),
    "another key": (b'{"id":"x"}', event("c", 1, 1, "a")[1], "Expected `int`, got `str`"),
    "two columns": (b'{"id":1,"shop":2}', event("c", 1, 1, "a")[1], "Expected `int`, got `object`"),
    "a column lacks": (b'{"id":1}', b'{"op":"c","after":{"id":1},"source":{"lsn":1}}', "required field `name`"),
    "a date far away": (b'{"id":1}', event("c", 1, 1, "a", born=10**12)[1], "column born: 1000000000000"),
    "infinity": (b'{"id":1}', event("c", 1, 1, "a", created=2**63 - 1)[1], "column created"),
    "deep": (b'{"id":1}', b'{"op":' + b"[" * 100_000, "recursion"),
    "unknown schema": (b'{"id":1}', b"\0\0\0\0\x63abc", "99"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_change_goes_by_the_policy_of_the_actor(name: str) -> None:
    key, value, text = WRONG[name]
    shop = Shop(FakeRegistry(), on_error="skip")
    with shop.driver() as driver:
        feed(driver, [(key, value, []), event("c", 2, 2, "b")])
        assert names(driver, shop) == {2: "b"}
    stopping = Shop(FakeRegistry())
    with stopping.driver() as driver, pytest.raises(RecordError, match=f"{SOURCE}.*offset 0.*(?s:.)*({text})"):
        feed(driver, [(key, value, [])])


def test_a_table_that_was_renamed_goes_on_in_its_topic() -> None:
    shop = Shop()
    with shop.driver() as driver:
        feed(driver, [event("c", 1, 10, "a"), event("c", 2, 11, "b")])
        key, value, headers = event("u", 1, 20, "c")
        renamed = msgspec.json.decode(value or b"")
        renamed["source"]["table"] = "clients"
        feed(driver, [(key, msgspec.json.encode(renamed), headers), event("u", 1, 15, "before")])
        assert names(driver, shop) == {1: "c", 2: "b"}


def test_an_update_of_a_row_that_is_missing_needs_all_columns() -> None:
    shop = Shop()
    with shop.driver() as driver:
        feed(driver, [event("u", 1, 10, "a")])
        assert names(driver, shop) == {1: "a"}
        with pytest.raises(RecordError, match="column note as it was"):
            feed(driver, [event("u", 2, 20, "b", note="__debezium_unavailable_value")])


def test_keys_of_two_columns_and_rows_without_a_type() -> None:
    class Place(msgspec.Struct, frozen=True):
        shop: str
        id: int

    app = App("shop", broker="kafka://127.0.0.1:9092")
    orders = app.topic("orders", key_type=Place, value_type=Order)
    table = app.table(app.topic(SOURCE, key_type=Place), name="customers", cdc="debezium")
    seen: list[Any] = []

    @app.actor(orders, stores=[table])
    async def label(ctx: Context, order: Order) -> None:
        seen.append(table.get(ctx.key))

    with ActorTestDriver(app) as driver:
        value = b'{"op":"c","after":{"shop":"a","id":1,"born":3},"source":{"lsn":1}}'
        driver.send(SOURCE, key=b'{"shop":"a","id":1}', value=value, raw=True)
        driver.send(orders, key=Place("a", 1), value=Order("hat"))
    assert seen == [{"shop": "a", "id": 1, "born": 3}]


def test_a_table_without_a_type_of_keys_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    with pytest.raises(ConfigurationError, match="key_type"):
        app.table(app.topic(SOURCE, value_type=Customer), cdc="debezium")
    with pytest.raises(ConfigurationError, match="maxwell"):
        app.table(app.topic(SOURCE, key_type=int), cdc="maxwell")  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0, 2, 40, -3])
@pytest.mark.parametrize("number", [0, -1, 10**37 + 12_345, -(10**63) - 1])
def test_a_decimal_has_all_its_digits(number: int, scale: int) -> None:
    raw = number.to_bytes(28, signed=True)
    expected = Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
    column = Column("org.apache.kafka.connect.data.Decimal", scale)
    values, _ = converted({"n": raw}, {"n": column}, {})
    assert values["n"].as_tuple() == expected.as_tuple()
    variable = Column("io.debezium.data.VariableScaleDecimal")
    values, _ = converted({"n": {"value": raw, "scale": scale}}, {"n": variable}, {})
    assert values["n"].as_tuple() == expected.as_tuple()


@pytest.mark.parametrize("columns", [{}, {"span": Column("io.debezium.time.MicroDuration")}])
def test_an_interval_is_a_timedelta_or_microseconds(columns: Any) -> None:
    day = timedelta(days=1, microseconds=5)
    for hint, value in ((timedelta, day), (timedelta | None, day), (int, 86_400_000_005)):
        values, _ = converted({"span": 86_400_000_005}, columns, {"span": hint})
        assert values == {"span": value}


@pytest.mark.parametrize("scale", ["2", 2.5, None, 10**30])
def test_a_scale_that_is_none_is_named(scale: Any) -> None:
    variable = {"n": Column("io.debezium.data.VariableScaleDecimal")}
    with pytest.raises(ValueError, match=r"column n: .* is no io\.debezium\.data\.VariableScaleDecimal"):
        converted({"n": {"value": b"\1", "scale": scale}}, variable, {})
