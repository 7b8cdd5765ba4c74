"""A store's bytes as JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import faust
import pytest

from actors import Actor, App, UsageError, receive


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
    assert decoder.changelog == "unit-s-changelog"
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
