"""A store's bytes as JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import faust
import pytest

from actors import Actor, App, Context, UsageError, receive
from actors._core.windows.join_rows import Kept, encode_chunk
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES
from stores._core.windows import SIDE_AT


class Order(faust.Record):
    item: str
    count: int


@dataclass
class Balance:
    cents: int


@dataclass
class Deposit:
    cents: int


def new_app() -> App:
    return App("unit", broker="kafka://127.0.0.1:1")


@pytest.mark.parametrize(
    ("key_type", "value_type", "key", "value", "texts"),
    [
        (str, Order, "a", Order(item="ä", count=2), ('"a"', {"item": "ä", "count": 2})),
        (int, None, 7, {"x": [1]}, ("7", {"x": [1]})),
        (bytes, bytes, b"k", b"\xff", ('"k"', {"base64": "/w=="})),
    ],
)
def test_keys_and_values(key_type: Any, value_type: Any, key: Any, value: Any, texts: tuple[str, Any]) -> None:
    app = new_app()
    store = app.store("s", key_type=key_type, value_type=value_type)
    decoder = app.decoder("s")
    assert decoder.changelog == "unit--s-changelog"
    assert decoder.key_json(store.encode_key(key)) == texts[0]
    shown = json.loads(decoder.value_json(store.encode_value(value)))
    shown.pop("__faust", None) if isinstance(shown, dict) else None
    assert shown == texts[1]


def test_the_states_of_a_class_actor() -> None:
    app = new_app()

    @app.actor(app.topic("accounts", key_type=str))
    class Account(Actor[Balance]):
        @receive
        async def deposit(self, message: Deposit) -> None: ...

    store = app.stores["Account"]
    decoder = app.decoder("Account")
    assert decoder.key_json(store.encode_key("ada")) == '"ada"'
    assert json.loads(decoder.value_json(store.encode_value(Balance(3)))) == {"cents": 3}


def test_bytes_that_are_no_value() -> None:
    app = new_app()
    app.store("s", value_type=Order)
    with pytest.raises(ValueError, match="not a valid Order"):
        app.decoder("s").value_json(b"junk")
    with pytest.raises(ValueError, match="not a valid str"):
        app.decoder("s").key_json(b"\xff")


def test_no_such_store() -> None:
    app = new_app()
    app.store("one")
    with pytest.raises(UsageError, match="'two' is no store of this app, which has: one"):
        app.decoder("two")


def test_the_records_of_a_join_are_those_of_their_sides() -> None:
    app = new_app()
    orders, numbers = app.topic("orders", key_type=str, value_type=Balance), app.topic("numbers", key_type=str)

    @app.join(orders, numbers, within=timedelta(seconds=1), name="pairs")
    async def paired(ctx: Context, order: Balance, number: int) -> None: ...

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value=Balance(3), timestamp_ms=1_000)
        driver.send(numbers, key="a", value=[7], timestamp_ms=1_500)
        (files,) = (one for one in driver._disk.files() if one.store == "pairs")
        rows = {key: raw[METADATA_BYTES:] for key, raw in files.data.items()}
    decoder = app.decoder("pairs")
    shown = {decoder.key_json(key): json.loads(decoder.value_json(raw, key)) for key, raw in rows.items()}
    assert shown == {
        '["left", "a", 0]': [[1_000, {"cents": 3}]],
        '["right", "a", 0]': [[1_500, [7]]],
        '["progress"]': {"stream_ms": 1_500},
    }
    (key,) = (key for key in rows if key[:1] == b"j" and rows[key] and b"cents" in rows[key])
    assert json.loads(decoder.value_json(rows[key])) == [1_000]
    for damaged in (b"k", key[:SIDE_AT] + b"\x02" + key[SIDE_AT + 1 :], b"x"):
        with pytest.raises(ValueError, match="not the row of a join's records"):
            decoder.value_json(rows[key], damaged)
    with pytest.raises(ValueError, match="not a valid Balance"):
        decoder.value_json(encode_chunk([Kept(1, b"junk")]), key)
