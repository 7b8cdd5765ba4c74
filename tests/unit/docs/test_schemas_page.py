"""The program on the page on schemas reads what the one before it wrote."""

import msgspec

from actors import App
from actors.formats import Avro
from actors.runtime.message.unresolved import resolved_now
from actors.testing import ActorTestDriver, FakeRegistry
from tests.documents import block


def test_state_of_the_program_before_is_read_and_the_other_way_round() -> None:
    page = block("docs/how-to/schemas.md", "State: schemas and `state_version` together")
    names = page.run({})
    with ActorTestDriver(names["app"]) as driver:
        driver.send("deposits", key="ada", value=5)
        assert driver.get(names["accounts"], "ada") == names["Account"]("ada", 5, "EUR")

    class Account(msgspec.Struct):
        owner: str
        cents: int = 0

    names, registry = page.run({}), FakeRegistry()
    names["app"].schema_registry = registry
    before = App("bank", broker="kafka://127.0.0.1:9092", schema_registry=registry)
    former = before.store("accounts", format=Avro(Account))
    raw = resolved_now(lambda: former.encode_value(Account("bob", 7)))
    now = names["accounts"]
    assert resolved_now(lambda: now.decode_value(raw)) == names["Account"]("bob", 7, "EUR")
    raw = resolved_now(lambda: now.encode_value(names["Account"]("bob", 7, "SEK")))
    assert resolved_now(lambda: former.decode_value(raw)) == Account("bob", 7)
