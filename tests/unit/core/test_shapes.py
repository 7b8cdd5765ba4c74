"""Shapes of values: what a type looks like as JSON, and which changes of it keep older values whole."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import faust
import msgspec
import pytest

from actors._core.shapes import misfits
from actors.declare.values.shapes import shape_of


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    id: str
    lines: list[Line] = []
    note: str | None = None
    next: Order | None = None


@dataclass
class LineClass:
    sku: str
    count: int = 1


class LineDict(TypedDict):
    sku: str
    count: NotRequired[int]


class LineRecord(faust.Record):
    sku: str
    count: int = 1


class OrderRecord(faust.Record):
    first: LineRecord
    rest: list[LineRecord]


class Colour(enum.Enum):
    RED = "red"


class MoreColours(enum.Enum):
    RED = "red"
    BLUE = "blue"


LINE = {"object": {"sku": ["str", True], "count": ["int", False]}}


@pytest.mark.parametrize("type_", [Line, LineClass, LineDict, LineRecord])
def test_alike_types_have_one_shape(type_):
    assert shape_of(type_) == LINE


def test_shapes_go_into_nested_types_and_recursive_ones():
    lines = {"list": LINE}
    assert shape_of(Order) == {
        "object": {
            "id": ["str", True],
            "lines": [lines, False],
            "note": [{"union": ["none", "str"]}, False],
            "next": [{"union": ["none", {"up": 1}]}, False],
        }
    }
    assert shape_of(OrderRecord) == {"object": {"first": [LINE, True], "rest": [lines, True]}}
    assert shape_of(None) == "any"
    assert shape_of(dict[str, tuple[int, float]]) == {"map": ["str", {"row": [["int", True], ["float", True]]}]}
    assert shape_of(datetime.datetime) == "datetime"


def struct(**fields: Any) -> Any:
    return shape_of(
        msgspec.defstruct(
            "State", [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in fields.items()]
        )
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (struct(a=int), struct(a=int, b=(str, ""))),
        (struct(a=int), struct(a=(int, 0))),
        (struct(a=int), struct(a=int | None)),
        (struct(a=int | None), struct(a=int | str | None)),
        (struct(a=Colour), struct(a=MoreColours)),
        (struct(a=Literal["x"]), struct(a=Literal["x", "y"])),
        (struct(a=list[Line]), struct(a=list[LineClass])),
        (struct(a=int), struct(a=Any)),
        (shape_of(Line), "any"),
    ],
)
def test_a_shape_may_grow(old, new):
    assert misfits(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "texts"),
    [
        (struct(a=int, b=int), struct(a=int), ["field b (int) is missing"]),
        (struct(a=(int, 0)), struct(b=(int, 0)), ["field a (int) is missing"]),
        (struct(a=int), struct(a=str), ["field a was int and is str now"]),
        (struct(a=int | None), struct(a=int), ["field a can't be none any more"]),
        (struct(a=int), struct(a=int, b=str), ["field b (str) is new and has no default"]),
        (struct(a=(int, 0)), struct(a=int), ["field a has no default any more, and values may lack it"]),
        (struct(a=MoreColours), struct(a=Colour), ["field a can't be 'blue' any more"]),
        (
            struct(a=dict[str, list[Line]]),
            struct(a=dict[str, list[msgspec.defstruct("Line", [("sku", int), ("count", int, 1)])]]),
            ["field a{}[].sku was str and is int now"],
        ),
        (
            struct(a=Line | None),
            struct(a=msgspec.defstruct("Line", [("sku", str)]) | None),
            ["field a.count (int) is missing"],
        ),
        ("any", shape_of(Line), ["the value was any and is {count, sku} now"]),
    ],
)
def test_what_would_be_lost_is_named(old, new, texts):
    assert misfits(old, new) == texts


def test_a_default_factory_is_a_default():
    @dataclass
    class Old:
        a: int

    @dataclass
    class New:
        a: int
        b: list[int] = field(default_factory=list)

    assert misfits(shape_of(Old), shape_of(New)) == []
