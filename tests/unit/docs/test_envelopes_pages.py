"""The programs on the pages on CloudEvents, Debezium and headers."""

from uuid import UUID

from actors.testing import ActorTestDriver
from tests.documents import block


def test_an_invoice_for_each_order() -> None:
    names = block("docs/how-to/cloudevents.md", "CloudEvents").run({})
    event, order, invoice = (names[name] for name in ("CloudEvent", "Order", "Invoice"))
    with ActorTestDriver(names["app"]) as driver:
        driver.send(names["orders"], key="ada", value=event(id="7", source="/web", type="order", data=order("hat")))
        (sent,) = driver.outputs(names["invoices"])
    assert (sent.value.subject, sent.value.data) == ("7", invoice("hat", 500))


def test_a_table_follows_debezium() -> None:
    names = block("docs/how-to/debezium.md", "Debezium: follow a table of PostgreSQL").run({})
    block("docs/how-to/debezium.md", "Tests").run(names)


def test_a_tenant_is_passed_on() -> None:
    names = block("docs/how-to/headers.md", "Pass headers on").run({})
    with ActorTestDriver(names["app"]) as driver:
        driver.send(names["orders"], key="ada", value="hat", headers={"tenant": b"acme", "other": b"x"})
        assert [sent.headers for sent in driver.outputs(names["labels"])] == [[("tenant", b"acme")]]


def test_headers_are_read_as_types() -> None:
    names = block("docs/how-to/headers.md", "Read a header").run({})
    headers = {"tenant": b"acme", "request-id": str(UUID(int=1)).encode()}
    with ActorTestDriver(names["app"]) as driver:
        driver.send("orders", key="ada", value="hat", headers=headers)
