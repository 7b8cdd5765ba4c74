"""A key has one form in bytes, so that it has one partition and one state."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import faust
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import Actor, App, ConfigurationError, Context, UndecodableRecordError, receive
from actors.declare.values.codecs import CodecError, one_form, resolve_key
from actors.declare.values.schemas import key_codec
from actors.errors import show_bytes
from actors.testing import ActorTestDriver


class Place(msgspec.Struct, frozen=True):
    shop: str
    shelf: float = 0


class Spot(faust.Record, include_metadata=False):
    shop: str
    parts: dict[str, int] = {}  # noqa: RUF012  Faust's models take it as the default


WIDE = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
FORMS: list[tuple[Any, Any, bytes, list[bytes]]] = [
    (str, "ada", b"ada", []),
    (bytes, b"\xff", b"\xff", []),
    (int, 7, b"7", [b"07", b"+7", b" 7", b"0_7", "\u0667".encode()]),
    (int, 0, b"0", [b"-0", b"00"]),
    (bool, True, b"true", [b"1", b" true", b'"true"']),
    (float, 3.0, b"3.0", [b"3", b"3.00", b"0.3e1"]),
    (float, 1e16, b"1e+16", [b"1e16", b"10000000000000000"]),
    (float, 0.0, b"0.0", [b"-0.0"]),
    (float, math.inf, b"inf", [b"infinity", b"1e999"]),
    (Decimal, Decimal("1.5"), b"1.5", [b"1.50", b"01.5", b"15E-1"]),
    (Decimal, Decimal(100), b"100", [b"1E+2", b"100.0"]),
    (Decimal, Decimal(0), b"0", [b"-0", b"0.0", b"0E+3"]),
    (UUID, UUID(WIDE), WIDE.lower().encode(), [WIDE.encode(), b"{%s}" % WIDE.lower().encode()]),
    (
        Place,
        Place("a", 3),
        b'{"shop":"a","shelf":3.0}',
        [
            b'{"shop": "a", "shelf": 3.0}',
            b'{"shelf":3.0,"shop":"a"}',
            b'{"shop":"\\u0061","shelf":3.0}',
            b'{"shop":"a","shelf":3}',
            b'{"shop":"a","shelf":3.0,"floor":1}',
        ],
    ),
    (Spot, Spot(shop="a", parts={"y": 1, "x": 2}), b'{"shop":"a","parts":{"x":2,"y":1}}', [b'{"shop": "a"}']),
    (dict, {"b": 1, "a": {"d": 1, "c": 2}}, b'{"a":{"c":2,"d":1},"b":1}', [b'{"b":1,"a":{"d":1,"c":2}}']),
    (dict[str, int], {"b": 1, "a": 2}, b'{"a":2,"b":1}', [b'{"b":1,"a":2}', b'{"a": 2, "b": 1}']),
    (list[int], [1, 2], b"[1,2]", [b"[1, 2]"]),
]


@pytest.mark.parametrize(("type_", "key", "form", "others"), FORMS, ids=repr)
def test_a_key_is_written_in_one_form_and_read_in_no_other(
    type_: Any, key: Any, form: bytes, others: list[bytes]
) -> None:
    codec = resolve_key(type_)
    assert codec.encode(key) == form
    assert one_form(codec)(form) == codec.decode(form) == key
    for other in others:
        with pytest.raises(CodecError):
            one_form(codec)(other)


@pytest.mark.parametrize(("type_", "key"), [(type_, key) for type_, key, *_ in FORMS], ids=repr)
@pytest.mark.parametrize("serializer", [None, "raw", "json"])
def test_a_topic_and_a_store_write_a_key_alike(type_: Any, key: Any, serializer: str | None) -> None:
    if serializer == "raw" and type_ in (Place, Spot, dict, dict[str, int], list[int]):
        return
    if serializer == "json" and key == math.inf:
        return
    app = App("keys", broker="kafka://127.0.0.1:1")
    topic = app.topic("orders", key_type=type_, key_serializer=serializer)
    store = app.store("orders-store", key_type=type_, key_serializer=serializer)
    raw = key_codec(app, topic.schema).encode(key)
    assert store.encode_key(key) == raw
    assert store.decode_key(raw) == key


def test_a_store_has_the_apps_serializer_of_keys() -> None:
    app = App("keys", broker="kafka://127.0.0.1:1", key_serializer="json")
    for type_, key, raw in (
        (UUID, UUID(int=1), b'"%s"' % str(UUID(int=1)).encode()),
        (str, "ada", b"ada"),
        (bytes, b"a", b"a"),
    ):
        store, topic = app.store(f"store-{type_.__name__}", key_type=type_), app.topic("orders", key_type=type_)
        assert store.encode_key(key) == raw == key_codec(app, topic.schema).encode(key)


EQUAL: dict[Any, st.SearchStrategy[tuple[Any, Any]]] = {
    float: st.integers(-(2**53), 2**53).map(lambda number: (number, float(number))) | st.just((0.0, -0.0)),
    Decimal: st.integers(-(10**30), 10**30).map(lambda number: (Decimal(f"{number}E-3"), Decimal(f"{number}00E-5"))),
    Place: st.integers(-99, 99).map(lambda number: (Place("a", number), Place("a", float(number)))),
    dict: st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=4).map(
        lambda key: (key, dict(reversed(key.items())))
    ),
    tuple[Decimal, dict[str, float]]: st.integers(-99, 99).map(
        lambda number: ((Decimal(f"{number}.50"), {"a": -0.0}), (Decimal(f"{number}.5"), {"a": 0.0}))
    ),
    dict[str, list[datetime]]: st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
        lambda at: ({"a": [at]}, {"a": [at.astimezone(timezone(timedelta(hours=2)))]})
    ),
    datetime: st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
        lambda at: (at, at.astimezone(timezone(timedelta(hours=-7))))
    ),
    list: st.just(([0.0, {"b": -0.0, "a": {"d": 1, "c": 2}}], [-0.0, {"a": {"c": 2, "d": 1}, "b": 0.0}])),
    Spot: st.just((Spot(shop="a", parts={"y": 0.0, "x": 1}), Spot(shop="a", parts={"x": 1, "y": -0.0}))),
    set[str]: st.sets(st.text(max_size=3), max_size=4).map(lambda key: (key, {*sorted(key, reverse=True)})),
}


@pytest.mark.parametrize("type_", EQUAL, ids=str)
@given(data=st.data())
def test_equal_keys_have_equal_bytes(type_: Any, data: st.DataObject) -> None:
    codec, (key, same) = resolve_key(type_), data.draw(EQUAL[type_])
    assert key == same
    assert codec.encode(key) == codec.encode(same)
    assert one_form(codec)(codec.encode(key)) == key


def test_keys_whose_entries_have_no_order_are_refused_at_the_declaration() -> None:
    with pytest.raises(ConfigurationError, match="have no order"):
        resolve_key(list[dict[int, str]])


@pytest.mark.parametrize("key", [math.nan, Decimal("NaN"), Decimal("sNaN"), Decimal("1E+999999999")], ids=repr)
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(CodecError, match="can't be a key"):
        resolve_key(type(key)).encode(key)
    with pytest.raises(CodecError):
        one_form(resolve_key(type(key)))(str(key).encode())


class Added(msgspec.Struct):
    number: int


class Total(msgspec.Struct):
    number: int = 0


def class_actor(app: App, key_type: Any) -> Any:
    orders = app.topic("orders", key_type=key_type)

    @app.actor(orders)
    class Sum(Actor[Total]):
        @receive
        async def added(self, message: Added) -> None:
            self.state.number += message.number

    return orders


def function_actor(app: App, key_type: Any) -> Any:
    store = app.store("sums", key_type=key_type, value_type=int)
    orders = app.topic("orders", key_type=key_type, value_type=Added)

    @app.actor(orders, stores=[store])
    async def add(ctx: Context, message: Added) -> None:
        store[ctx.key] = store.get(ctx.key, 0) + message.number

    return orders


@pytest.mark.parametrize("declare", [class_actor, function_actor])
@pytest.mark.parametrize(
    ("type_", "form", "other"),
    [(type_, form, others[0]) for type_, _, form, others in FORMS if others and type_ is not bool],
    ids=repr,
)
def test_a_key_in_another_spelling_is_refused_by_policy(
    declare: Callable[[App, Any], Any], type_: Any, form: bytes, other: bytes
) -> None:
    app = App("keys", broker="kafka://127.0.0.1:1")
    orders = declare(app, type_)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key=form, value=b'{"number":1}', raw=True)
        with pytest.raises(UndecodableRecordError) as caught:
            driver.send(orders, key=other, value=b'{"number":1}', raw=True)
        store = next(iter(app.stores.values()))
        assert [record.key for record in driver.changelog(store)] == [resolve_key(type_).decode(form)]
        if type_ is not Spot:
            for spelling in (form, other):
                assert show_bytes(spelling) in str(caught.value)


def test_an_actor_without_state_by_key_takes_keys_in_any_spelling() -> None:
    app, keys = App("keys", broker="kafka://127.0.0.1:1"), []
    orders = app.topic("orders", key_type=Place, value_type=Added)

    @app.actor(orders)
    async def pass_on(ctx: Context, _: Added) -> None:
        keys.append(ctx.key)

    with ActorTestDriver(app) as driver:
        for raw in (b'{"shop":"a"}', b'{"shelf": 0, "shop": "a"}'):
            driver.send(orders, key=raw, value=b'{"number":1}', raw=True)
    assert keys == [Place("a"), Place("a")]
