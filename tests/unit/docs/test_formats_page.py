"""The programs on the page on formats."""

import pytest

from actors.testing import ActorTestDriver
from tests.documents import block


def test_the_shop_reads_and_writes_avro() -> None:
    names = block("docs/how-to/formats.md", "Formats: Avro, Protobuf and JSON Schema with a schema registry").run({})
    with ActorTestDriver(names["app"]) as driver:
        for item in ("hat", "coat"):
            driver.send(names["orders"], key="ada", value=names["Order"](item, 2))
        assert [sent.value for sent in driver.outputs(names["totals"])] == [names["Total"](2), names["Total"](4)]
        assert driver.get(names["ordered"], "ada") == names["Total"](4)


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
