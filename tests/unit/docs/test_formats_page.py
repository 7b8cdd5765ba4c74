"""The programs on the page on formats."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from actors.formats.proto_text import messages_of
from actors.testing import ActorTestDriver
from tests.documents import block
from tests.unit.formats.served import messages


def test_the_shop_reads_and_writes_avro() -> None:
    names = block("docs/how-to/formats.md", "Formats: Avro, Protobuf and JSON Schema with a schema registry").run({})
    with ActorTestDriver(names["app"]) as driver:
        for item in ("hat", "coat"):
            driver.send(names["orders"], key="ada", value=names["Order"](item, 2))
        assert [sent.value for sent in driver.outputs(names["totals"])] == [names["Total"](2), names["Total"](4)]
        assert driver.get(names["ordered"], "ada") == names["Total"](4)


def test_the_shop_reads_and_writes_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    # The classes are of the page's own file, without protoc.
    lines = [
        " ".join((message.name.removeprefix("shop."), *(f"{name}:{kind}" for name, kind, _ in message.fields.values())))
        for message in messages_of(block("docs/how-to/formats.md", "Protobuf").code)
    ]
    assert lines == ["Order item:string count:int64", "Total count:int64"]
    classes: Any = SimpleNamespace(**messages("page_order.proto", "\n".join(lines), package="page"))
    monkeypatch.setitem(sys.modules, "order_pb2", classes)
    names = block("docs/how-to/formats.md", "Protobuf", 3).run({})
    with ActorTestDriver(names["app"]) as driver:
        for item in ("hat", "coat"):
            driver.send(names["orders"], key="ada", value=names["Order"](item=item, count=2))
        assert [sent.value.count for sent in driver.outputs(names["totals"])] == [2, 4]
        assert driver.get(names["ordered"], "ada") == names["Total"](count=4)


def test_a_state_has_a_format() -> None:
    names = block("docs/how-to/formats.md", "Stores").run({})
    with ActorTestDriver(names["app"]) as driver:
        for cents in (2, 3):
            driver.send("deposits", key="ada", value=names["Deposit"](cents))
        assert driver.get(names["Account"], "ada") == names["Balance"](5)


def test_registries() -> None:
    for names in (
        block("docs/how-to/formats.md", "Where schemas are").run({}),
        block("docs/how-to/formats.md", "Tests").run({}),
    ):
        assert names["app"].schema_registry is names["registry"]


def test_a_format_of_ones_own() -> None:
    names = block("docs/how-to/formats.md", "A format of your own").run({})
    with ActorTestDriver(names["app"]) as driver:
        driver.send(names["stock"], key="hat", value={"left": 3})
        assert [sent.value for sent in driver.outputs(names["stock"])] == [{"left": 3}]
        driver.send(names["stock"], key=b"hat", value=b"\xc1", raw=True)
        with pytest.raises(names["CodecError"], match="stock, value: "):
            driver.outputs(names["stock"])
