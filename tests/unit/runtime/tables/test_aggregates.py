"""Aggregates over tables: groups follow the rows, whoever dies, and what can't be meant is refused."""

from __future__ import annotations

import collections
import math
import random
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from actors import (
    App,
    ConfigurationError,
    Context,
    HandlerFailedError,
    Store,
    Table,
    UndecodableRecordError,
    aggregates,
)
from actors._core.windows.changes import GROUP_OF, Change, encode_change
from actors.runtime.message import grouping
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000


class Order(msgspec.Struct):
    country: str | None
    cents: int


def add(held: dict[str, int], order: Order) -> dict[str, int]:
    return {"orders": held["orders"] + 1, "cents": held["cents"] + order.cents}


def remove(held: dict[str, int], order: Order) -> dict[str, int] | None:
    left = {"orders": held["orders"] - 1, "cents": held["cents"] - order.cents}
    return left if left["orders"] else None


class Shop:
    """A table of orders, and what each country has of them."""

    def __init__(self, *, history: timedelta | None = None, on_error: Any = "stop", **options: Any) -> None:
        value_type = options.pop("rows", Order)
        on_changes_error = options.pop("on_changes_error", "stop")
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=value_type)
        self.out = app.topic("out", key_type=str)
        self.changes = app.topic("shop--countries-orders-repartition", key_type=str, value_type=bytes)
        self.table: Table[str, Order] = app.table(self.orders, history=history)
        self.seen: list[tuple[str, Any, int]] = []
        of_own = {"add": add, "remove": remove, "initial": {"orders": 0, "cents": 0}, "value_type": dict[str, int]}
        self.countries: Store[str, Any] = self.table.aggregate(
            "countries",
            on_error=on_changes_error,
            **{"by": "country", "on_change": self.changed, **(options or of_own)},
        )

        @app.actor(self.orders, stores=[self.table], on_error=on_error)
        async def keep(ctx: Context, order: Order | None) -> None:
            pass

    async def changed(self, ctx: Context, value: Any) -> None:
        self.seen.append((ctx.key, value, ctx.timestamp_ms))
        ctx.send(self.out, key=ctx.key, value=value)


def groups_of(rows: dict[str, Order]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for order in rows.values():
        if order.country is not None:
            found[order.country] = add(found.get(order.country, {"orders": 0, "cents": 0}), order)
    return found


def some_order(rng: random.Random) -> Order | None:
    return None if rng.random() < 0.3 else Order(rng.choice(["de", "fr", "it", None]), rng.randint(-9, 99))


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("history", [None, timedelta(hours=1)])
def test_each_change_moves_its_row_once(keep_disk: bool, history: timedelta | None) -> None:
    rng, shop = random.Random(f"{keep_disk}{history}"), Shop(history=history)
    rows: dict[str, Order] = {}
    calls: collections.Counter[str] = collections.Counter()
    with ActorTestDriver(shop.app) as driver:
        for number in range(300):
            key, order = rng.choice("abcdefgh"), some_order(rng)
            driver.post(shop.orders, key=key, value=order, timestamp_ms=NOON_MS + number)
            before = rows.pop(key, None)
            if order is not None:
                rows[key] = order
            calls.update({one.country for one in (before, order) if one is not None and one.country is not None})
            if number % 60 == 50:
                driver.crash(keep_disk=keep_disk, settle=False)
        driver.settle()
        assert driver.items(shop.countries) == groups_of(rows)
        assert collections.Counter(one.key for one in driver.outputs(shop.out)) == calls
        assert len(calls) == 3


def test_a_row_leaves_its_group_and_comes_into_another_one_by_a_message_each() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for number, order in enumerate((Order("de", 5), Order("de", 7), Order("fr", 7), Order(None, 8), None)):
            driver.send(shop.orders, key="a", value=order, timestamp_ms=NOON_MS + number)
        raws = [one.value for one in driver.outputs(shop.changes)]
        de5, de7, fr7 = (msgspec.json.encode(order) for order in (Order("de", 5), Order("de", 7), Order("fr", 7)))
        assert raws == [encode_change(Change(b"a", new)) for new in (de5, de7, None, fr7, None)]
        assert shop.seen == [
            ("de", {"orders": 1, "cents": 5}, NOON_MS),
            ("de", {"orders": 1, "cents": 7}, NOON_MS + 1),
            ("de", None, NOON_MS + 2),
            ("fr", {"orders": 1, "cents": 7}, NOON_MS + 2),
            ("fr", None, NOON_MS + 3),
        ]
        assert driver.items(shop.countries) == {}


def test_an_update_that_comes_too_late_moves_nothing() -> None:
    shop = Shop(history=timedelta(hours=1))
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for country, at in (("de", 100), ("fr", 50), ("it", 100)):
            driver.send(shop.orders, key="a", value=Order(country, 1), timestamp_ms=NOON_MS + at)
        assert [one[:2] for one in shop.seen] == [
            ("de", {"orders": 1, "cents": 1}),
            ("de", None),
            ("it", {"orders": 1, "cents": 1}),
        ]


@pytest.mark.parametrize(
    ("aggregate", "of", "expected"),
    [
        (aggregates.count(), None, {"de": 1, "fr": 1}),
        (aggregates.sum(), "cents", {"de": 7, "fr": 9}),
        (aggregates.mean(), lambda order: order.cents / 2, {"de": 3.5, "fr": 4.5}),
    ],
)
def test_ready_made_aggregates_take_values_out_again(aggregate: Any, of: Any, expected: dict[str, Any]) -> None:
    shop = Shop(aggregate=aggregate, of=of)

    @shop.app.query("countries")
    def value(ctx: Context) -> Any:
        return shop.countries.get(ctx.key)

    with ActorTestDriver(shop.app) as driver:
        for key, order in (("a", Order("de", 5)), ("b", Order("de", 7)), ("a", Order("fr", 9))):
            driver.send(shop.orders, key=key, value=order)
        assert driver.items(shop.countries) == expected
        assert shop.seen[-1][:2] == ("fr", expected["fr"]) or shop.seen[-1][:2] == ("de", expected["de"])
        assert driver.query("countries", "value", "de") == expected["de"]


def test_a_function_may_change_what_it_is_given() -> None:
    def put(held: list[int], order: Order) -> list[int]:
        held.append(order.cents)
        return held

    def take(held: list[int], order: Order) -> list[int]:
        held.remove(order.cents)
        return held

    shop = Shop(add=put, remove=take, initial=[])
    with ActorTestDriver(shop.app) as driver:
        for key, order in (("a", Order("de", 5)), ("b", Order("fr", 7)), ("c", Order("de", 9)), ("a", None)):
            driver.send(shop.orders, key=key, value=order)
        assert driver.items(shop.countries) == {"de": [9], "fr": [7]}


@pytest.mark.parametrize("page_bytes", [1 << 20, 1])
def test_rows_that_were_there_before_are_taken_up_once(monkeypatch: pytest.MonkeyPatch, page_bytes: int) -> None:
    """Pages of them come with the following records, some of which change rows on either side of the page's end."""
    monkeypatch.setattr(grouping, "PAGE_ROWS", 3)
    monkeypatch.setattr(grouping, "PAGE_BYTES", page_bytes)
    rng, shop = random.Random(page_bytes), Shop()
    groupings, shop.table.groupings = shop.table.groupings, []
    rows: dict[str, Order] = {}

    def post(count: int) -> None:
        for number in range(count):
            key, order = f"k{rng.randint(0, 39)}", some_order(rng)
            rows.pop(key, None)
            if order is not None:
                rows[key] = order
            driver.post(shop.orders, key=key, value=order, timestamp_ms=NOON_MS + number)

    with ActorTestDriver(shop.app, partitions=2) as driver:
        post(100)
        driver.settle()
        assert driver.items(shop.countries) == {}
        shop.table.groupings = groupings
        driver.send(shop.orders, key="k0", value=None)
        rows.pop("k0", None)
        taken = sum(one["orders"] for one in driver.items(shop.countries).values())
        assert taken <= 3
        assert driver.items(shop.countries) != groups_of(rows)
        for _ in range(4):
            post(25)
            driver.crash(settle=False)
        driver.settle()
        assert driver.items(shop.countries) == groups_of(rows)


@pytest.mark.parametrize("then", ["skip", "park", "stop"])
def test_an_earlier_row_of_which_by_raises_is_no_error_of_other_rows(then: str) -> None:
    def country(order: Order) -> str | None:
        if order.cents == 13:
            raise ValueError("thirteen")
        return order.country

    shop = Shop(by=country, aggregate=aggregates.count(), on_error=then)
    groupings, shop.table.groupings = shop.table.groupings, []
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key, order in (("a", Order("de", 5)), ("b", Order("de", 13)), ("c", Order("fr", 7))):
            driver.send(shop.orders, key=key, value=order)
        shop.table.groupings = groupings
        if then == "stop":
            with pytest.raises(HandlerFailedError, match="for the row of key 'b': thirteen"):
                driver.send(shop.orders, key="d", value=Order("fr", 9))
            return
        driver.send(shop.orders, key="d", value=Order("fr", 9))
        assert driver.items(shop.countries) == {"de": 1, "fr": 2}
        driver.send(shop.orders, key="b", value=Order("de", 14))
        driver.send(shop.orders, key="b", value=None)
        driver.send(shop.orders, key="b", value=Order("fr", 15))
        assert driver.items(shop.countries) == {"de": 1, "fr": 3}
        assert driver.items(shop.table)["b"] == Order("fr", 15)


def test_a_group_that_isnt_known_stops_the_table() -> None:
    shop = Shop(by=lambda order: order.cents / 2, aggregate=aggregates.count())
    with ActorTestDriver(shop.app) as driver:
        with pytest.raises(HandlerFailedError) as caught:
            driver.send(shop.orders, key="a", value=Order("de", 5))
        assert "by= of aggregate countries gives 2.5 for the row of key 'a'" in str(caught.value)
        assert driver.items(shop.table) == {}


def test_a_row_of_which_by_raises_is_skipped_with_its_change() -> None:
    def fails(order: Order) -> str:
        if order.cents == 13:
            raise ValueError("unlucky")
        return "all"

    shop = Shop(by=fails, aggregate=aggregates.sum(), of="cents", on_error="skip")
    with ActorTestDriver(shop.app) as driver:
        for cents in (12, 13):
            driver.send(shop.orders, key="a", value=Order("de", cents))
        assert driver.items(shop.table) == {"a": Order("de", 12)}
        assert driver.items(shop.countries) == {"all": 12}
        driver.send(shop.orders, key="a", value=None)
        assert driver.items(shop.countries) == {"all": 0}


@pytest.mark.parametrize("raw", [b"\xff", encode_change(Change(b"b", b"no order"))])
def test_what_is_no_change_is_undecodable(raw: bytes) -> None:
    shop = Shop()
    with ActorTestDriver(shop.app, partitions=1) as driver:
        driver.send(shop.orders, key="a", value=Order("de", 5))
        with pytest.raises(UndecodableRecordError, match=r"shop--countries-orders-repartition\[0\] offset \d"):
            driver.send(shop.changes, key="de", value=raw)


def held_or(held: Any, value: Any) -> Any:
    return held or value


async def late(held: Any, value: Any) -> Any:
    return held


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "town"}, "there is no field 'town'"),
        ({"add": None}, "add= is missing, which returns what a group has when a row comes"),
        ({"remove": None}, "remove= is missing"),
        ({"remove": late}, "remove= is async: make it a plain function"),
        ({"add": lambda held: held}, "add= can't be called with 2 arguments"),
        ({"on_change": lambda ctx: None}, "on_change= can't be called with 2 arguments"),
        ({"value_type": int, "initial": "none"}, "initial='none' isn't of the type of its values, value_type="),
        ({"aggregate": aggregates.count()}, "add= is a part of aggregate=: leave one of the two out"),
        ({"aggregate": aggregates.max(), "add": None, "remove": None}, "can't take a value out again"),
        ({"aggregate": len, "add": None, "remove": None}, "give one of actors.aggregates"),
        ({"of": "town"}, "of= of topic orders: there is no field 'town'"),
        ({"name": "a/b"}, "names have up to 100 letters"),
        ({"name": "orders"}, "the app has a store of that name"),
        ({"name": "n" * 100}, "give it a shorter name"),
    ],
)
def test_aggregates_that_cant_be_meant(options: dict[str, Any], text: str) -> None:
    app = App("s" * 150 if "shorter" in text else "shop", broker="kafka://127.0.0.1:1")
    table: Table[str, Order] = app.table(app.topic("orders", key_type=str, value_type=Order))
    given = {"name": "countries", "by": "country", "add": held_or, "remove": held_or, **options}
    with pytest.raises(ConfigurationError, match=text):
        table.aggregate(**given)


def test_an_aggregate_behind_the_actor_of_its_table_is_refused() -> None:
    shop = Shop()
    with pytest.raises(ConfigurationError, match="actor keep has table orders already: declare the aggregate before"):
        shop.table.aggregate("more", by="country", aggregate=aggregates.count())


def test_a_table_that_no_actor_lists_is_read_for_its_aggregates() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order)
    table: Table[str, Order] = app.table(orders)
    countries = table.aggregate("countries", by="country", aggregate=aggregates.count())
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="o1", value=Order("no", 1))
        driver.send(orders, key="o2", value=Order("no", 1))
        assert driver.items(countries) == {"no": 2}
        driver.crash(keep_disk=False)
        driver.send(orders, key="o1")
        assert driver.items(countries) == {"no": 1}
    assert set(app.actors) == {"orders", "countries"}


def test_a_table_with_an_aggregate_takes_one_message_after_the_other() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    table: Table[str, Order] = app.table(app.topic("orders", key_type=str, value_type=Order))
    table.aggregate("countries", by="country", aggregate=aggregates.count())
    with pytest.raises(ConfigurationError, match=r"table orders has aggregates, .* leave one of the two out"):

        @app.actor(table.topic, stores=[table], concurrency=2)
        async def keep(ctx: Context, order: Order | None) -> None:
            pass


def refuse_thousand(held: int, order: Order) -> int:
    if order.cents == 1000:
        raise ValueError("a thousand")
    return held + order.cents


@pytest.mark.parametrize("then", ["skip", "park"])
@pytest.mark.parametrize("before", [(), (5,)])
def test_a_group_takes_out_what_it_has_of_a_row(then: Any, before: tuple[int, ...]) -> None:
    """Another value of the row was skipped, or parked and dropped, so that the group never got it."""
    own = {"add": refuse_thousand, "remove": lambda held, order: held - order.cents, "initial": 0, "value_type": int}
    shop = Shop(on_changes_error=then, **own)
    with ActorTestDriver(shop.app) as driver:
        driver.send(shop.orders, key="b", value=Order("de", 1))
        for cents in (*before, 1000):
            driver.send(shop.orders, key="a", value=Order("de", cents))
        assert driver.items(shop.countries) == {"de": 1 + sum(before)}
        if then == "park":
            driver.drop_parked("countries", "de")
        driver.send(shop.orders, key="a", value=Order("de", 10))
        assert driver.items(shop.countries) == {"de": 11}
        driver.crash(keep_disk=False)
        driver.send(shop.orders, key="a", value=Order("fr", 20))
        assert driver.items(shop.countries) == {"de": 1, "fr": 20}


@pytest.mark.parametrize("command", ["retry", "drop"])
def test_a_row_that_moved_while_its_group_was_parked(command: str) -> None:
    may_add = [True]

    def checked(held: int, order: Order) -> int:
        if not may_add[0]:
            raise ValueError("not yet")
        return held + order.cents

    own = {"add": checked, "remove": lambda held, order: held - order.cents, "initial": 0, "value_type": int}
    shop = Shop(on_changes_error="park", **own)
    with ActorTestDriver(shop.app) as driver:
        for country in ("de", "fr"):
            driver.send(shop.orders, key=country, value=Order(country, 100))
        may_add[0] = False
        for order in (Order("de", 1), Order("de", 2), Order("fr", 3), Order("de", 4)):
            driver.send(shop.orders, key="a", value=order)
        may_add[0] = True
        for country in ("de", "fr"):
            (driver.retry_parked if command == "retry" else driver.drop_parked)("countries", country)
        driver.send(shop.orders, key="a", value=Order("fr", 5))
        driver.send(shop.orders, key="b", value=Order("de", 6))
        assert driver.items(shop.countries) == {"de": 106, "fr": 105}


class Sale(msgspec.Struct):
    """What orders are after an upgrade that reads none of the earlier ones."""

    country: str
    cents: int
    currency: str


@pytest.mark.parametrize("then", ["stop", "skip", "park"])
@pytest.mark.parametrize("new", [Sale("de", 5, "EUR"), Sale("fr", 5, "EUR"), None])
def test_a_row_that_the_new_type_cant_read_leaves_its_group_when_it_changes(then: Any, new: Sale | None) -> None:
    before, after = (
        Shop(aggregate=aggregates.sum(), of="cents", rows=rows, on_error=then, on_changes_error=then)
        for rows in (Order, Sale)
    )
    with ActorTestDriver(before.app) as driver:
        for key, cents in (("a", 1), ("b", 2)):
            driver.send(before.orders, key=key, value=Order("de", cents))
        driver.restart(after.app)
        driver.send(after.orders, key="a", value=new)
        expected = {"de": 2} if new is None else {**{"de": 2}, new.country: 5 + 2 * (new.country == "de")}
        assert driver.items(after.countries) == expected


@pytest.mark.parametrize("then", ["skip", "park", "stop"])
def test_an_earlier_row_that_the_type_cant_read_is_left_out_until_it_changes(then: Any) -> None:
    shop = Shop(aggregate=aggregates.count(), rows=Sale, on_error=then)
    groupings, shop.table.groupings = shop.table.groupings, []
    before = Shop(aggregate=aggregates.count())
    before.table.groupings = []
    with ActorTestDriver(before.app, partitions=1) as driver:
        driver.send(before.orders, key="a", value=Order("de", 5))
        shop.table.groupings = groupings
        driver.restart(shop.app)
        if then == "stop":
            with pytest.raises(HandlerFailedError, match="the row of key 'a', which was there before: its value"):
                driver.send(shop.orders, key="b", value=Sale("fr", 9, "EUR"))
            return
        driver.send(shop.orders, key="b", value=Sale("fr", 9, "EUR"))
        assert driver.items(shop.countries) == {"fr": 1}
        for number, country in enumerate(("de", "it")):
            driver.send(shop.orders, key="a", value=Sale(country, number, "EUR"))
        assert driver.items(shop.countries) == {"fr": 1, "de": 0, "it": 1}


@pytest.mark.parametrize("then", ["stop", "skip"])
def test_a_group_that_cant_read_what_it_has_of_a_row_names_the_row(then: Any, caplog: pytest.LogCaptureFixture) -> None:
    own = {"add": lambda held, order: held + order.cents, "remove": lambda held, order: held - order.cents}
    before, after = (Shop(**own, initial=0, value_type=int, rows=rows, on_changes_error=then) for rows in (Order, Sale))
    text = "the value that its group has of row 'a' can't be taken out"
    with ActorTestDriver(before.app, partitions=1) as driver:
        driver.send(before.orders, key="a", value=Order("de", 1))
        driver.restart(after.app)
        if then == "stop":
            with pytest.raises(UndecodableRecordError, match=text):
                driver.send(after.orders, key="a", value=Sale("de", 2, "EUR"))
            return
        driver.send(after.orders, key="a", value=Sale("de", 2, "EUR"))
        driver.send(after.orders, key="b", value=Sale("de", 2, "EUR"))
        assert text in caplog.text
        assert driver.items(after.countries) == {"de": 3}


class Amount(msgspec.Struct):
    """A row with a number."""

    country: str
    cents: int | float


@pytest.mark.parametrize("aggregate", [aggregates.sum(), aggregates.mean()])
@pytest.mark.parametrize("large", [1e300, -1e18, 2**62, 1.7976931348623157e308])
def test_large_numbers_that_leave_take_nothing_with_them(aggregate: Any, large: Any) -> None:
    shop = Shop(aggregate=aggregate, of="cents", rows=Amount)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        # JSON can't hold the sum of two of the largest floats.
        others = "b" if math.isinf(large * 2.0) else "bcd"
        for key, cents in (("a", 0.1), *((other, large) for other in others), ("e", 1e-300), ("f", 0.2)):
            driver.send(shop.orders, key=key, value=Amount("de", cents))
        for key in others:
            driver.send(shop.orders, key=key, value=None)
        driver.send(shop.orders, key="e", value=None)
        total = math.fsum((0.1, 0.2))
        assert driver.items(shop.countries) == {"de": total if aggregate is aggregates.sum() else total / 2}


def test_sums_are_those_of_the_rows_that_are_there() -> None:
    rng = random.Random(15)
    sums = Shop(aggregate=aggregates.sum(), of="cents", rows=Amount)
    rows: dict[str, Amount] = {}
    with ActorTestDriver(sums.app) as driver:
        for _ in range(300):
            key = rng.choice("abcdefghij")
            number = rng.choice((rng.randint(-(2**62), 2**62), rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)))
            rows[key] = Amount(rng.choice(["de", "fr"]), number)
            driver.post(sums.orders, key=key, value=rows[key])
        driver.settle()
        for country, total in driver.items(sums.countries).items():
            exact = sum(Fraction(row.cents) for row in rows.values() if row.country == country)
            assert total == float(exact)


def test_sums_of_whole_numbers_are_whole() -> None:
    # JSON has no numbers beyond 64 bits, so no result is sent.
    shop = Shop(aggregate=aggregates.sum(), of="cents", rows=Amount, on_change=None)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key in "abcdef":
            driver.send(shop.orders, key=key, value=Amount("de", 2**62))
        assert driver.items(shop.countries) == {"de": 6 * 2**62}
        for key in "abcd":
            driver.send(shop.orders, key=key, value=None)
        driver.send(shop.orders, key="e", value=Amount("de", 1))
        assert [type(value) for value in driver.items(shop.countries).values()] == [int]
        assert driver.items(shop.countries) == {"de": 2**62 + 1}


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), Decimal("0.5"), "5"])
@pytest.mark.parametrize("aggregate", [aggregates.sum(), aggregates.mean()])
def test_what_cant_be_taken_out_of_a_sum_again_is_refused(aggregate: Any, number: Any) -> None:
    of = lambda order: number if order.cents == 13 else order.cents  # noqa: E731
    shop = Shop(aggregate=aggregate, of=of)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        driver.send(shop.orders, key="a", value=Order("de", 5))
        with pytest.raises(
            HandlerFailedError, match=f"aggregates.{aggregate.name}\\(\\) over a table or across keys adds finite ints"
        ):
            driver.send(shop.orders, key="b", value=Order("de", 13))
        assert driver.items(shop.countries) == {"de": 5}


@pytest.mark.parametrize("history", [None, timedelta(hours=1)])
def test_groups_are_what_they_took_however_many_changes_are_skipped(history: timedelta | None) -> None:
    def checked(held: int, order: Order) -> int:
        if order.cents % 3 == 0:
            raise ValueError("a third of all")
        return held + order.cents

    own = {"add": checked, "remove": lambda held, order: held - order.cents, "initial": 0, "value_type": int}
    rng, shop = random.Random(9), Shop(history=history, on_changes_error="skip", **own)
    groups: dict[str, dict[str, int]] = collections.defaultdict(dict)
    sent_to: dict[str, str | None] = {}
    with ActorTestDriver(shop.app) as driver:
        for number in range(300):
            key, order = rng.choice("abcdefgh"), some_order(rng)
            driver.post(shop.orders, key=key, value=order, timestamp_ms=NOON_MS + number)
            country = None if order is None else order.country
            former = sent_to.get(key)
            if former is not None and former != country:
                groups[former].pop(key, None)
            if order is not None and country is not None and order.cents % 3:
                groups[country][key] = order.cents
            sent_to[key] = country
            if number % 60 == 50:
                driver.crash(keep_disk=number % 120 == 50, settle=False)
        driver.settle()
        totals = {country: sum(rows.values()) for country, rows in groups.items()}
        assert driver.items(shop.countries) == totals
        assert any(len(rows) > 1 for rows in groups.values())
        kept = {(country, key) for country, rows in groups.items() for key in rows}
        assert len(driver.items(shop.app.stores["countries-rows"])) == len(kept)
        in_groups = [key for key, country in sent_to.items() if country is not None]
        taken = [key for key in driver.items(shop.app.stores["countries-taken"]) if key.startswith(GROUP_OF)]
        assert sorted(taken) == sorted(GROUP_OF + key.encode() for key in in_groups)


def test_a_group_that_ended_while_it_had_rows_goes_on_from_initial() -> None:
    own = {
        "add": lambda held, order: held + order.cents or None,
        "remove": lambda held, order: held - order.cents or None,
    }
    shop = Shop(**own, initial=0, value_type=int)
    with ActorTestDriver(shop.app) as driver:
        for key, cents in (("a", 5), ("b", -5)):
            driver.send(shop.orders, key=key, value=Order("de", cents))
        assert driver.items(shop.countries) == {}
        driver.send(shop.orders, key="a", value=None)
        assert driver.items(shop.countries) == {"de": -5}
        driver.send(shop.orders, key="b", value=Order("de", 7))
        assert driver.items(shop.countries) == {"de": 7}
