"""The code of the page on tables does what the page says."""

from __future__ import annotations

from actors import App, Context
from actors.testing import ActorTestDriver
from tests.documents import block

NOON_MS = 1_700_049_600_000


def test_the_first_example_meets_the_row_of_its_time() -> None:
    names = block("docs/reference/tables.md", "Tables").run({})
    orders, labels, table = names["orders"], names["labels"], names["customers"]
    with ActorTestDriver(names["app"], partitions=1) as driver:
        for name, at_s in (("Ada", 0), ("Ada L.", 10)):
            driver.send(table.topic, key="ada", value=names["Customer"](name), timestamp_ms=NOON_MS + at_s * 1000)
        driver.send(orders, key="ada", value=names["Order"](5), timestamp_ms=NOON_MS + 9_999)
        driver.send(orders, key="bob", value=names["Order"](6), timestamp_ms=NOON_MS + 9_999)
        assert [(sent.key, sent.value) for sent in driver.outputs(labels)] == [("ada", "Ada: 5 cents")]


def test_the_join_sends_a_profile_and_its_tombstone() -> None:
    names = block("docs/reference/tables.md", "Joins of two tables").run({"App": App, "Context": Context})
    customers, addresses, profiles = names["customers"], names["addresses"], names["profiles"]
    with ActorTestDriver(names["app"], partitions=1) as driver:
        driver.send(addresses.topic, key="ada", value={"city": "Rome"})
        driver.send(customers.topic, key="ada", value={"name": "Ada"})
        driver.send(addresses.topic, key="ada", value=None)
        driver.send(customers.topic, key="ada", value=None)
        driver.send(customers.topic, key="ada", value=None)
        assert [sent.value for sent in driver.outputs(profiles)] == [
            {"name": "Ada", "address": {"city": "Rome"}},
            {"name": "Ada", "address": None},
            None,
        ]


def test_the_join_by_a_foreign_key_sends_an_invoice_and_its_tombstone() -> None:
    names = block("docs/reference/tables.md", "Joins by a foreign key").run({"App": App, "Context": Context})
    orders, customers, invoices = names["orders"], names["customers"], names["invoices"]
    with ActorTestDriver(names["app"], partitions=2) as driver:
        driver.send(orders.topic, key="a", value={"customer": "ada", "cents": 5})
        driver.send(customers.topic, key="ada", value={"name": "Ada"})
        driver.send(customers.topic, key="ada", value={"name": "Ada L."})
        driver.send(orders.topic, key="a", value={"customer": "bob", "cents": 5})
        assert [(sent.key, sent.value) for sent in driver.outputs(invoices)] == [
            ("a", {"cents": 5, "name": "Ada"}),
            ("a", {"cents": 5, "name": "Ada L."}),
            ("a", None),
        ]


def test_the_aggregates_follow_the_rows() -> None:
    names = block("docs/reference/tables.md", "Aggregates").run({})
    offers, stock, sellers, alerts = (names[name] for name in ("offers", "stock", "sellers", "alerts"))
    with ActorTestDriver(names["app"], partitions=2) as driver:
        for key, product, count in (("a", "pen", 20), ("b", "pen", 5), ("a", "ink", 20)):
            driver.send(offers.topic, key=key, value={"product": product, "count": count})
        assert driver.items(stock) == {"pen": 5, "ink": 20}
        assert driver.items(sellers) == {"pen": 1, "ink": 1}
        assert [(sent.key, sent.value) for sent in driver.outputs(alerts)] == [("pen", "5 left")]
        driver.send(offers.topic, key="a", value=None)
        assert driver.items(stock) == {"pen": 5, "ink": 0}
