"""The examples on the test driver. Each has a test on a real broker too."""

import random
from collections import Counter

import pytest

from actors import AskRejectedError, EffectCall
from actors.testing import ActorTestDriver
from examples import order_payments
from examples.auction_bids import Auction, Bid, auctions, bids, collect_bids, offers, unsold
from examples.auction_bids import app as auction_app
from examples.bank_accounts import Account, Balance, Deposit, Show, Transfer, Withdraw, outcomes, transfers
from examples.bank_accounts import app as bank
from examples.cart_reminders import Checkout, Put, Shopper, reminders
from examples.cart_reminders import app as cart_app
from examples.cart_reminders import orders as cart_orders
from examples.click_sessions import Visit as ClickVisit
from examples.click_sessions import app as click_app
from examples.click_sessions import clicks, sessions
from examples.click_sessions import visits as click_visits
from examples.enriched_orders import Customer, EnrichedOrder, customers, enriched, unknown
from examples.enriched_orders import Order as CustomersOrder
from examples.enriched_orders import app as enriched_app
from examples.enriched_orders import orders as customers_orders
from examples.failed_logins import Alert, Login, alerts, logins
from examples.failed_logins import app as login_app
from examples.order_saga import Place, Process, Stock, Supply, charge, results
from examples.order_saga import app as saga
from examples.rate_limiter import Bucket, Take
from examples.rate_limiter import app as limits
from examples.read_model import Parcel, Scan, Status, statuses
from examples.read_model import app as parcels
from examples.run_commands import RunCommand, commands, runs
from examples.run_commands import app as dispatcher
from examples.sales_per_minute import Sale, Total, count_sale, late_sales, minutes, sales, totals
from examples.sales_per_minute import app as sales_app
from examples.sessions import Visit, pages, visits
from examples.sessions import app as shop
from examples.top_pages import Top, View, Views, count_view, tops, views
from examples.top_pages import app as pages_app
from examples.unpaid_orders import Order as PlacedOrder
from examples.unpaid_orders import Payment, check_payment, orders, paid_orders, payments, unpaid_orders
from examples.unpaid_orders import app as unpaid_app
from examples.webhooks import Endpoint, Event, post
from examples.webhooks import app as webhooks
from tests.documents import ROOT, block, program


def test_run_commands_runs_each_once():
    with ActorTestDriver(dispatcher, partitions=2) as driver:
        for number in (1, 2, 1, 3, 2):
            driver.send(commands, key=f"run-{number}", value=RunCommand(command="run", args=[str(number)]))
        driver.crash(keep_disk=False)
        driver.send(commands, key="run-1", value=RunCommand(command="run", args=["1"]))
        assert sorted(sent.key for sent in driver.outputs(runs)) == ["run-1", "run-2", "run-3"]


@pytest.mark.nightly
def test_a_repeat_after_the_time_to_live_runs_again():
    with ActorTestDriver(dispatcher, partitions=1) as driver:
        command = RunCommand(command="run", args=[])
        driver.send(commands, key="run", value=command)
        driver.advance(6 * 24 * 3600)
        driver.send(commands, key="run", value=command)
        assert len(driver.outputs(runs)) == 1
        driver.advance(25 * 3600)
        driver.send(commands, key="run", value=command)
        assert len(driver.outputs(runs)) == 1


def test_bank_accounts_keep_all_the_money():
    with ActorTestDriver(bank, partitions=3) as driver:
        names = [f"account-{number}" for number in range(6)]
        for name in names:
            driver.tell(Account, name, Deposit(100))
        order = random.Random(1)
        for number in range(60):
            sender, receiver = order.sample(names, 2)
            driver.post(transfers, key=f"t{number}", value=Transfer(sender, receiver, order.randint(1, 90)))
            if number % 20 == 10:
                driver.advance(0.001, settle=False)
                driver.crash()
        driver.settle()
        found = {sent.key: sent.value.outcome for sent in driver.outputs(outcomes)}
        assert found.keys() == {f"t{number}" for number in range(60)}
        assert {"done", "refused"} <= {outcome if outcome == "done" else "refused" for outcome in found.values()}
        balances = driver.items(Account)
        assert sum(balance.cents for balance in balances.values()) == 600
        assert all(balance.cents >= 0 for balance in balances.values())
        assert driver.ask(Account, "account-0", Show()) == balances["account-0"]


def test_a_withdrawal_that_isnt_covered_is_refused():
    with ActorTestDriver(bank) as driver:
        driver.tell(Account, "ada", Deposit(5))
        assert driver.ask(Account, "ada", Withdraw(2)) == 3
        with pytest.raises(AskRejectedError, match="ada has 3 cents, not 4"):
            driver.ask(Account, "ada", Withdraw(4))
        assert driver.get(Account, "ada") == Balance(3)


def test_carts_are_reminded_of_twice_unless_they_are_paid():
    with ActorTestDriver(cart_app, partitions=2) as driver:
        for shopper, thing in (("ada", "hat"), ("bob", "shoes"), ("ada", "scarf")):
            driver.tell(Shopper, shopper, Put(thing))
        driver.advance(1800)
        driver.tell(Shopper, "bob", Checkout())
        assert [(sent.key, sent.value.things) for sent in driver.outputs(cart_orders)] == [("bob", ["shoes"])]
        driver.crash(keep_disk=False)
        driver.advance(1700)
        assert driver.outputs(reminders) == []
        driver.advance(200)
        assert [sent.value for sent in driver.outputs(reminders)] == ["hat, scarf still in your cart"]
        driver.advance(12 * 3600)
        driver.crash()
        driver.advance(12 * 3600)
        assert [sent.key for sent in driver.outputs(reminders)] == ["ada"]
        driver.advance(48 * 3600)
        assert driver.outputs(reminders) == []


def test_a_client_has_so_many_calls_and_later_more():
    with ActorTestDriver(limits) as driver:
        answers = [driver.ask(Bucket, "ada", Take(at_s=1_000.0)) for _ in range(6)]
        assert [answer.is_allowed for answer in answers] == [True] * 5 + [False]
        assert answers[-1].retry_after_s == 1.0
        assert driver.ask(Bucket, "bob", Take(5, at_s=1_000.0)).is_allowed
        assert not driver.ask(Bucket, "ada", Take(3, at_s=1_002.0)).is_allowed
        assert driver.ask(Bucket, "ada", Take(2, at_s=1_002.0)).is_allowed


def test_webhooks_arrive_in_order_with_one_key_each():
    calls: list[tuple[str, str, int]] = []

    async def post_flaky(call: EffectCall, url: str, body: str) -> int:
        calls.append((body, call.idempotency_key, call.attempt))
        if body == "two" and call.attempt < 3:
            raise ConnectionError("refused")
        return 200

    with ActorTestDriver(webhooks, effects={post: post_flaky}) as driver:
        for body in ("one", "two", "three"):
            driver.tell(Endpoint, "http://a", Event(body))
        driver.advance(1.5)
        driver.advance(2.5)
        assert [(body, attempt) for body, _, attempt in calls] == [
            ("one", 1),
            ("two", 1),
            ("two", 2),
            ("two", 3),
            ("three", 1),
        ]
        assert len({key for body, key, _ in calls if body == "two"}) == 1
        assert driver.get(Endpoint, "http://a").delivered == 3


@pytest.mark.parametrize(
    ("count", "card", "result", "free"),
    [(2, "ok", "confirmed", 3), (9, "ok", "out of stock", 5), (2, "empty-1", "payment refused", 5)],
)
def test_orders_come_to_an_end(count: int, card: str, result: str, free: int):
    with ActorTestDriver(saga, partitions=2, effects={charge: charge}) as driver:
        driver.tell(Stock, "hat", Supply(5))
        driver.tell(Process, "o1", Place("hat", count, card))
        driver.crash()
        driver.advance(1)
        assert [(sent.key, sent.value) for sent in driver.outputs(results)] == [("o1", result)]
        assert driver.get(Stock, "hat").free == free
        driver.advance(3600)
        assert driver.outputs(results) == []


def test_an_order_that_can_not_be_paid_gives_its_things_back():
    def refuse(call: EffectCall, card: str, count: int) -> bool:
        raise ConnectionError("no payment service")

    with ActorTestDriver(saga, partitions=2, effects={charge: refuse}) as driver:
        driver.tell(Stock, "hat", Supply(5))
        driver.tell(Process, "o1", Place("hat", 2, "ok"))
        driver.advance(60)
        assert [(sent.key, sent.value) for sent in driver.outputs(results)] == [("o1", "payment failed")]
        assert driver.get(Stock, "hat").free == 5


def test_sessions_give_each_visit_out_once():
    with ActorTestDriver(shop, partitions=2) as driver:
        for visitor, page in (("ada", "home"), ("bob", "home"), ("ada", "shoes")):
            driver.send(pages, key=visitor, value=page)
        driver.advance(1_200)
        driver.send(pages, key="ada", value="hats")
        driver.advance(700)
        driver.crash(keep_disk=False)
        driver.advance(1_900)
        driver.send(pages, key="ada", value="home")
        assert [(sent.key, sent.value) for sent in sorted(driver.outputs(visits), key=lambda sent: sent.key)] == [
            ("ada", Visit(["home", "shoes", "hats"])),
            ("bob", Visit(["home"])),
        ]
        driver.advance(2_000)
        assert [sent.value for sent in driver.outputs(visits)] == [Visit(["home"])]


def test_readers_are_told_of_parcels_until_they_have_arrived():
    with ActorTestDriver(parcels, partitions=2) as driver:
        for place in ("Rome", "Oslo"):
            driver.tell(Parcel, "p1", Scan(place))
        driver.crash(keep_disk=False)
        assert [sent.value for sent in driver.outputs(statuses)] == [Status("Rome", 1), Status("Oslo", 2)]
        driver.tell(Parcel, "p1", Scan("home", has_arrived=True))
        assert [(sent.key, sent.value) for sent in driver.outputs(statuses)] == [("p1", None)]


def test_the_page_has_the_example() -> None:
    shown = block("docs/reference/inputs.md", "Several inputs").code
    example = (ROOT / "examples" / "order_payments.py").read_text()
    assert program(shown) == program(example)
    assert program(shown.replace("+=", "=")) != program(example)


def test_orders_meet_their_payments_whichever_comes_first() -> None:
    orders, payments, accounts = order_payments.orders, order_payments.payments, order_payments.accounts
    order, payment, account = order_payments.Order, order_payments.Payment, order_payments.Account
    with ActorTestDriver(order_payments.app, partitions=2) as driver:
        driver.send(orders, key="o1", value=order(100))
        driver.send(payments, key="o2", value=payment(70))
        driver.send(payments, key="o1", value=payment(60))
        driver.crash(keep_disk=False)
        assert driver.items(accounts) == {"o1": account(100, 60), "o2": account(None, 70)}
        driver.send(orders, key="o2", value=order(50))
        driver.send(payments, key="o1", value=payment(40))
        sent = {output.key: output.value for output in driver.outputs(order_payments.settled)}
        assert sent == {"o1": account(100, 100), "o2": account(50, 70)}
        assert driver.items(accounts) == {}


MINUTE_MS = 60_000
NOON_MS = 1_700_049_600_000


def test_sales_per_minute_are_sent_once_and_late_ones_go_elsewhere():
    with ActorTestDriver(sales_app, partitions=1) as driver:

        def sell(shop: str, cents: int, at_s: float) -> None:
            driver.send(sales, key=shop, value=Sale(cents, NOON_MS + int(at_s * 1000)))

        sell("berlin", 100, 5)
        sell("paris", 70, 59.999)
        sell("berlin", 5, 61)
        # In grace: the minute is over, and still takes what belongs to it.
        sell("berlin", 20, 50)
        assert driver.outputs(totals) == []
        sell("berlin", 1, 89.999)
        assert driver.outputs(totals) == []
        driver.crash(keep_disk=False)
        sell("berlin", 1, 90)
        first = {sent.key: sent.value for sent in driver.outputs(totals)}
        assert first == {"berlin": Total(NOON_MS, 120), "paris": Total(NOON_MS, 70)}
        sell("berlin", 999, 59)
        assert [(sent.value.cents, sent.timestamp_ms) for sent in driver.outputs(late_sales)] == [
            (999, NOON_MS + 59_000)
        ]
        assert list(driver.windows(minutes, "berlin").values()) == [120, 7]
        driver.advance_stream_time(count_sale, NOON_MS + 3 * MINUTE_MS)
        assert [sent.value for sent in driver.outputs(totals)] == [Total(NOON_MS + MINUTE_MS, 7)]


@pytest.mark.parametrize("order", range(3))
def test_the_most_viewed_pages_are_those_of_all_partitions(order: int) -> None:
    chosen = random.Random(order)
    records = [
        (f"visitor-{number % 7}", View(f"page-{chosen.choice('aabbbcdef')}"), NOON_MS + number * 1_000)
        for number in range(150)
    ]
    with ActorTestDriver(pages_app, partitions=3) as driver:
        driver.backlog({views: records}, order=order)
        driver.close_windows()
        assert driver.late(count_view) == {"page-minutes": 0}
        counts = [Counter(view.page for _, view, at_ms in records[at : at + 60]) for at in (0, 60, 120)]
        best = [sorted((Views(count, page) for page, count in one.items()), reverse=True)[:3] for one in counts]
        assert [sent.value for sent in driver.outputs(tops)] == [
            Top(NOON_MS + number * MINUTE_MS, pages) for number, pages in enumerate(best)
        ]


def test_orders_are_joined_with_payments_and_unpaid_ones_are_sent_once():
    with ActorTestDriver(unpaid_app, partitions=2) as driver:

        def at(minutes: float) -> int:
            return NOON_MS + int(minutes * MINUTE_MS)

        for key in ("paid", "unpaid", "early"):
            driver.send(orders, key=key, value=PlacedOrder(500, at(0)))
        driver.send(payments, key="p1", value=Payment("early", 100, at(-15)))
        driver.send(payments, key="p2", value=Payment("paid", 500, at(15)))
        driver.send(payments, key="p3", value=Payment("unpaid", 500, at(15) + 1))
        sent = {(one.key, one.value.cents, one.timestamp_ms) for one in driver.outputs(paid_orders)}
        assert sent == {("paid", 500, at(15)), ("early", 100, at(0))}
        assert driver.outputs(unpaid_orders) == []
        driver.advance_stream_time(check_payment, at(16))
        assert driver.outputs(unpaid_orders) == []
        driver.crash(keep_disk=False)
        driver.advance_stream_time(check_payment, at(16) + 1)
        for keep_disk in (True, False):
            driver.crash(keep_disk=keep_disk)
        assert [(one.key, one.value, one.timestamp_ms) for one in driver.outputs(unpaid_orders)] == [
            ("unpaid", PlacedOrder(500, at(0)), at(0))
        ]


@pytest.mark.parametrize(
    "count", [pytest.param(500, id="500"), pytest.param(20_000, id="20000", marks=pytest.mark.nightly)]
)
def test_all_orders_of_a_backlog_are_paid(count: int):
    keys = {f"order-{number}": NOON_MS + number * 1000 for number in range(count)}
    with ActorTestDriver(unpaid_app) as driver:
        driver.backlog(
            {
                orders: [(key, PlacedOrder(500, at_ms), at_ms) for key, at_ms in keys.items()],
                payments: [
                    (f"payment-{key}", Payment(key, 500, at_ms + MINUTE_MS), at_ms + MINUTE_MS)
                    for key, at_ms in keys.items()
                ],
            },
            order=1,
        )
        driver.close_windows()
        paid = Counter(one.key for one in driver.outputs(paid_orders))
        assert paid == Counter(keys.keys())
        assert driver.outputs(unpaid_orders) == []
        assert driver.late(check_payment) == {"check_payment": 0}


@pytest.mark.parametrize("order", range(3))
def test_bids_of_a_backlog_find_their_auctions(order: int):
    """Every third auction has no bid, and each other one a bid before it, one in its time and one at its end."""
    count, ends_ms = 100, 10 * MINUTE_MS
    lots, offered = [], []
    for number in range(count):
        at_ms = NOON_MS + number * MINUTE_MS
        lots.append((f"a{number}", Auction(f"item {number}", at_ms, at_ms + ends_ms), at_ms))
        for cents, after_ms in [] if number % 3 == 0 else [(1, -MINUTE_MS), (2, ends_ms - 1), (3, ends_ms)]:
            offered.append((f"bidder{cents}", Bid(f"a{number}", cents, at_ms + after_ms), at_ms + after_ms))
    offered.sort(key=lambda row: row[2])
    with ActorTestDriver(auction_app, partitions=4) as driver:
        driver.backlog({bids: offered, auctions: lots}, order=order)
        driver.close_windows()
        sent = [(one.value.item, one.value.cents) for one in driver.outputs(offers)]
        assert sorted(sent) == sorted((f"item {n}", cents) for n in range(count) if n % 3 for cents in (1, 2))
        assert sorted(one.key for one in driver.outputs(unsold)) == sorted(f"a{n}" for n in range(0, count, 3))
        assert driver.late(collect_bids) == {"collect_bids": count - len(range(0, count, 3))}


def test_click_sessions_merge_and_are_sent_once():
    with ActorTestDriver(click_app, partitions=1) as driver:

        def click(page: str, minute: float, visitor: str = "ada") -> None:
            driver.send(clicks, key=visitor, value=page, timestamp_ms=NOON_MS + int(minute * MINUTE_MS))

        click("home", 0)
        click("cart", 34)
        assert len(driver.windows(sessions, "ada")) == 2
        click("shoes", 20)
        assert list(driver.windows(sessions, "ada").values()) == [["home", "cart", "shoes"]]
        click("home", 69, "alan")
        assert driver.outputs(click_visits) == []
        click("shoes", 69.001, "alan")
        (sent,) = driver.outputs(click_visits)
        assert sent.key == "ada"
        assert sent.value == ClickVisit(NOON_MS, NOON_MS + 34 * MINUTE_MS, ["home", "cart", "shoes"])


def test_failed_logins_alert_once_for_three_within_ten_minutes():
    with ActorTestDriver(login_app, partitions=1) as driver:

        def fail(minute: float, account: str = "ada", *, succeeded: bool = False) -> list[Alert]:
            at_ms = NOON_MS + int(minute * MINUTE_MS)
            driver.send(logins, key=account, value=Login(succeeded), timestamp_ms=at_ms)
            return [sent.value for sent in driver.outputs(alerts)]

        assert fail(0) == fail(9) == fail(9.1, "alan") == fail(9.5, succeeded=True) == []
        # The first one is ten minutes and a moment ago.
        assert fail(10.001) == []
        assert fail(10.5) == [Alert(3, NOON_MS + MINUTE_MS // 2, NOON_MS + 10 * MINUTE_MS + MINUTE_MS // 2)]
        assert fail(11) == []
        driver.crash()
        assert fail(20.6) == []
        assert [alert.failures for alert in fail(20.7)] == [3]
        assert fail(20.9) == []


def test_orders_get_their_customer_as_of_their_time():
    with ActorTestDriver(enriched_app, partitions=2) as driver:

        def change(minute: int, city: str | None) -> None:
            value = None if city is None else Customer("Ada", city)
            driver.send(customers.topic, key="ada", value=value, timestamp_ms=NOON_MS + minute * MINUTE_MS)

        def order(minute: int, cents: int) -> None:
            at_ms = NOON_MS + minute * MINUTE_MS
            driver.send(customers_orders, key=f"o{cents}", value=CustomersOrder("ada", cents), timestamp_ms=at_ms)

        change(0, "Rome")
        order(1, 1)
        change(10, "Oslo")
        order(9, 2)
        order(10, 3)
        driver.crash(keep_disk=False)
        change(20, None)
        order(19, 4)
        order(20, 5)
        assert [(sent.key, sent.value) for sent in driver.outputs(enriched)] == [
            ("ada", EnrichedOrder(cents, "Ada", city)) for cents, city in enumerate(("Rome", "Rome", "Oslo", "Oslo"), 1)
        ]
        assert [sent.value.cents for sent in driver.outputs(unknown)] == [5]
