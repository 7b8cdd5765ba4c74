"""A key that an answer shows can be asked for again, in a URL and in a body, whatever its type."""

from __future__ import annotations

import base64
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import App
from actors.declare.values.codecs import CodecError
from actors.web.queries.coding import StoreCoding, json_bytes, json_key


class Place(msgspec.Struct, frozen=True):
    town: str
    number: int = 0
    share: float = 0.0


ODD = ["0", "-0", "1e3", "null", "true", "NaN", '"', "\\", "{}", "[1]", "\0", "%2F", "a/b", "..", "_count", "9" * 30]
TEXT = st.text(max_size=6) | st.sampled_from(ODD)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1e16, 1e22, 5e-324, math.inf, -math.inf])
KEYS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**70), 2**70),
    float: FLOATS,
    bytes: st.binary(max_size=6),
    UUID: st.uuids(),
    Decimal: st.decimals() | st.sampled_from([Decimal("1.50"), Decimal("-0"), Decimal("1E+3")]),
    Place: st.builds(Place, TEXT, st.integers(), FLOATS),
    list[str]: st.lists(TEXT, max_size=3),
    tuple[int, Place]: st.tuples(st.integers(), st.builds(Place, TEXT)),
    datetime: st.datetimes(timezones=st.just(UTC)) | st.datetimes(),
    date: st.dates(),
    dict[str, int]: st.dictionaries(TEXT, st.integers(-3, 3), max_size=2),
    int | str: st.integers() | TEXT,
}


@pytest.mark.parametrize("type_", KEYS, ids=str)
@given(data=st.data())
def test_a_key_that_is_shown_can_be_asked_for(type_: Any, data: st.DataObject) -> None:
    coding = StoreCoding(App("shop", broker="kafka://127.0.0.1:1").store("kept", key_type=type_, value_type=int))
    try:
        raw = coding.store.encode_key(data.draw(KEYS[type_]))
    except CodecError:
        return
    given_key = base64.b64encode(raw) if coding.default_encoding == "base64" else raw
    assert coding.key_of_url(given_key, None) == raw
    shown = json_key(msgspec.Raw(json_bytes(coding.plain_key(raw))))
    if isinstance(shown, dict) and "base64" in shown:
        assert coding.key_of_json(shown["base64"], "base64") == raw
    else:
        assert coding.key_of_json(shown, None) == raw
