"""Values whose equality leaves fields out: what is lost of these fields is refused at the write all the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import faust
import msgspec
import pytest

from actors import aggregates
from actors.declare.values.codecs import CodecError, resolve
from tests.unit.app.test_read_back import plainly


@dataclasses.dataclass
class Marked:
    name: str
    note: Any = dataclasses.field(default=None, compare=False)


class Alike(msgspec.Struct):
    name: str
    note: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self.name == other.name


class Twin(NamedTuple):
    name: str
    note: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and other[0] == self[0]


@dataclasses.dataclass
class Holder:
    marked: dict[str, list[Marked]]


class Same(faust.Record, include_metadata=False):
    name: str
    note: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("note", [UUID(int=1), {"a": {1: 2}}], ids=str)
@pytest.mark.parametrize("serializer", [None, "json|binary"])
@pytest.mark.parametrize(
    ("type_", "make"),
    [
        (Marked, Marked),
        (Alike, Alike),
        (Twin, Twin),
        (Same, lambda name, note: Same(name=name, note=note)),
        (list[Marked], lambda *parts: [Marked(*parts)]),
        (dict[str, Alike | None], lambda *parts: {"x": Alike(*parts)}),
        (Holder, lambda *parts: Holder({"x": [Marked(*parts)]})),
    ],
    ids=["dataclass", "struct", "tuple", "record", "list", "dict", "nested"],
)
def test_a_value_that_its_equality_leaves_out_is_refused_too(
    type_: Any, make: Callable[..., Any], serializer: str | None, note: Any
) -> None:
    codec = resolve(type_, serializer)
    with pytest.raises(CodecError, match=r"note|\$\[1\]"):
        codec.encode(make("a", note))
    value = make("a", "plain")
    assert plainly(codec.decode(codec.encode(value))) == plainly(value)


def test_a_state_of_an_aggregate_that_its_equality_leaves_out_is_refused_too() -> None:
    aggregate = aggregates.Aggregate(Marked(""), lambda state, value: state, state_type=Marked)
    with pytest.raises(ValueError, match=r"the state\.note"):
        aggregate.encoder()(Marked("a", UUID(int=1)))
