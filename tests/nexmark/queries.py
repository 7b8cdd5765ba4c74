"""Nexmark's queries as programs: `QUERIES[name]` declares one on the topics of a `Nexmark`.

Every query sends rows to `nexmark.rows`; those that have a result for each key, which changes, return the store that
has it in the end. A window has a grace of `nexmark.grace`, by default as much as events are out of order within a
partition; that of a second stage needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from actors import App, Context, Hopping, Session, Tumbling, Window, aggregates
from tests.nexmark.events import DISORDER_MS, Auction, Bid, Person

GRACE = timedelta(milliseconds=DISORDER_MS)


class Nexmark:
    """The topics of a query: persons and auctions by their ids, bids by their bidders."""

    def __init__(self, name: str, *, prefix: str = "", grace: timedelta = GRACE, **options: Any) -> None:
        self.prefix = prefix
        self.grace = grace
        self.app = App(f"{prefix}nexmark-{name}", **{"broker": "kafka://127.0.0.1:9092"} | options)
        self.persons = self.topic("persons", key_type=int, value_type=Person)
        self.auctions = self.topic("auctions", key_type=int, value_type=Auction)
        self.bids = self.topic("bids", key_type=int, value_type=Bid)
        self.rows = self.topic("rows", key_type=str, value_type=list)

    def topic(self, name: str, **options: Any) -> Any:
        return self.app.topic(f"{self.prefix}{name}", **options)


def q0(nexmark: Nexmark) -> None:
    """Pass through: all bids."""

    @nexmark.app.actor(nexmark.bids)
    async def pass_on(ctx: Context, bid: Bid) -> None:
        ctx.send(nexmark.rows, value=[bid.auction, bid.bidder, bid.price, bid.at_ms])


def q1(nexmark: Nexmark) -> None:
    """Currency conversion."""

    @nexmark.app.actor(nexmark.bids)
    async def convert(ctx: Context, bid: Bid) -> None:
        ctx.send(nexmark.rows, value=[bid.auction, bid.bidder, bid.price * 908, bid.at_ms])


def q2(nexmark: Nexmark) -> None:
    """Selection: bids of some auctions."""

    @nexmark.app.actor(nexmark.bids)
    async def select(ctx: Context, bid: Bid) -> None:
        if bid.auction % 123 == 0:
            ctx.send(nexmark.rows, value=[bid.auction, bid.price])


def q3(nexmark: Nexmark) -> None:
    """Local items: the auctions of a category whose sellers are in some states."""

    @nexmark.app.join(
        one=nexmark.persons, many=nexmark.auctions, by={nexmark.auctions: "seller"}, retention=timedelta(days=1)
    )
    async def offer(ctx: Context, person: Person, auction: Auction) -> None:
        if auction.category == 10 and person.state in {"OR", "ID", "CA"}:
            ctx.send(nexmark.rows, value=[person.name, person.city, person.state, auction.id])


class Sale(msgspec.Struct):
    auction: Auction
    bid: Bid


def _sell(nexmark: Nexmark, on_sale: Callable[[Context, Sale], None]) -> Any:
    """Declare an actor that calls a function for each auction that has expired with a bid in its time."""
    offers = nexmark.topic("offers", key_type=int, value_type=Sale, writers=["offer"])
    best = nexmark.app.store(
        "best", key_type=int, aggregate=_top(Sale, by=lambda sale: (sale.bid.price, -sale.bid.at_ms))
    )

    @nexmark.app.join(
        one=nexmark.auctions,
        many=nexmark.bids,
        by={nexmark.bids: "auction"},
        until=lambda auction: auction.expires_ms + 1,
        grace=nexmark.grace,
    )
    async def offer(ctx: Context, auction: Auction, bid: Bid) -> None:
        if auction.at_ms <= bid.at_ms:
            ctx.send(offers, key=ctx.key, value=Sale(auction, bid))

    @nexmark.app.actor(offers, stores=[best], timers=True)
    async def sell(ctx: Context, sale: Sale) -> None:
        if ctx.timer is not None:
            on_sale(ctx, best.get(ctx.key)[0])
            return
        end = datetime.fromtimestamp(sale.auction.expires_ms / 1000, UTC) + timedelta(milliseconds=1)
        ctx.schedule(sale, at=end, stream_time=True, name="sell")
        best.add(ctx.key, sale)

    return sell


def q4(nexmark: Nexmark) -> Any:
    """Average price of the sold auctions of each category."""
    sold = nexmark.topic("sold", key_type=int, value_type=Sale, writers=["sell"])
    sales = nexmark.app.table(sold)

    async def send(ctx: Context, average: float) -> None:
        ctx.send(nexmark.rows, key=str(ctx.key), value=[ctx.key, average])

    averages = sales.aggregate(
        "averages",
        by=lambda sale: sale.auction.category,
        key_type=int,
        aggregate=aggregates.mean(),
        of=_price,
        on_change=send,
    )

    @nexmark.app.actor(sold, stores=[sales])
    async def follow(ctx: Context, sale: Sale) -> None: ...

    _sell(nexmark, lambda ctx, sale: ctx.send(sold, key=ctx.key, value=sale))
    return averages


def _price(sale: Sale) -> int:
    return sale.bid.price


class Bids(msgspec.Struct, order=True):
    count: int
    auction: int


def q5(nexmark: Nexmark) -> None:
    """Hot items: the auction with the most bids of each hopping window, of equal ones the first."""
    counts = nexmark.app.window_store(
        "counts", Hopping(timedelta(seconds=10), timedelta(seconds=2)), key_type=int, grace=nexmark.grace,
        aggregate=aggregates.count(),
    )  # fmt: skip

    @nexmark.app.actor(nexmark.bids, by="auction", stores=[counts])
    async def count(ctx: Context, bid: Bid) -> None:
        counts.add(ctx.key, 1)

    hottest = counts.across(
        key=lambda auction: "all",
        of=lambda auction, number: Bids(number, auction),
        aggregate=_top(Bids, by=lambda bids: (bids.count, -bids.auction)),
    )

    @hottest.on_close
    async def hot(ctx: Context, window: Window, top: list[Bids]) -> None:
        ctx.send(nexmark.rows, value=[window.end_ms, top[0].auction, top[0].count])


def _top(value_type: Any, by: Callable[[Any], Any]) -> aggregates.Aggregate:
    return aggregates.top_n(1, by=by, value_type=value_type)


def q6(nexmark: Nexmark) -> Any:
    """Average price of the last ten sold auctions of each seller, by when they expired."""
    sold = nexmark.topic("sold", key_type=int, value_type=Sale, writers=["sell"])
    last = nexmark.app.store("last", key_type=int, aggregate=aggregates.Aggregate(
        initial=[], add=lambda sales, sale: sorted([*sales, sale])[-10:], state_type=list[tuple[int, int, int]],
        result=lambda sales: sum(price for _, _, price in sales) / len(sales), name="last-ten",
    ))  # fmt: skip

    @nexmark.app.actor(sold, stores=[last])
    async def average(ctx: Context, sale: Sale) -> None:
        last.add(ctx.key, (sale.auction.expires_ms, sale.auction.id, sale.bid.price))

    _sell(nexmark, lambda ctx, sale: ctx.send(sold, key=sale.auction.seller, value=sale))
    return last


def q7(nexmark: Nexmark) -> None:
    """Highest bid of each 10 s, of equal ones the first."""
    highest = nexmark.app.window_store(
        "highest", Tumbling(seconds=10), grace=nexmark.grace, aggregate=_top(Bid, by=lambda bid: (bid.price, -bid.id))
    )

    @nexmark.app.actor(nexmark.bids, by=lambda bid: "all", stores=[highest])
    async def compare(ctx: Context, bid: Bid) -> None:
        highest.add(ctx.key, bid)

    @highest.on_close
    async def send(ctx: Context, window: Window, top: list[Bid]) -> None:
        ctx.send(nexmark.rows, value=[window.start_ms, top[0].auction, top[0].bidder, top[0].price])


def q8(nexmark: Nexmark) -> None:
    """New users: who came and opened an auction in the same 10 s."""
    users = nexmark.app.window_store(
        "users", Tumbling(seconds=10), key_type=int, grace=nexmark.grace, value_type=list[str]
    )

    @nexmark.app.actor(nexmark.persons, nexmark.auctions, by={nexmark.auctions: "seller"}, stores=[users])
    async def register(ctx: Context, person: Person) -> None:
        users.update(ctx.key, lambda names: [person.name, *names[1:]], initial=["", ""])

    @nexmark.app.on(register, nexmark.auctions)
    async def open_auction(ctx: Context, auction: Auction) -> None:
        users.update(ctx.key, lambda names: [names[0], "opened"], initial=["", ""])

    @users.on_close
    async def send(ctx: Context, window: Window, names: list[str]) -> None:
        if all(names):
            ctx.send(nexmark.rows, value=[ctx.key, names[0], window.start_ms])


def q9(nexmark: Nexmark) -> None:
    """Winning bids: the highest one in the time of each auction."""

    def send(ctx: Context, sale: Sale) -> None:
        ctx.send(nexmark.rows, value=[sale.auction.id, sale.bid.id, sale.bid.price, sale.bid.at_ms])

    _sell(nexmark, send)


def q11(nexmark: Nexmark) -> None:
    """User sessions: bids of each bidder without a pause of more than 10 s."""
    sessions = nexmark.app.window_store(
        "sessions", Session(timedelta(seconds=10)), key_type=int, grace=nexmark.grace, aggregate=aggregates.count()
    )

    @nexmark.app.actor(nexmark.bids, stores=[sessions])
    async def bid(ctx: Context, bid: Bid) -> None:
        sessions.add(ctx.key, 1)

    @sessions.on_close
    async def send(ctx: Context, window: Window, count: int) -> None:
        ctx.send(nexmark.rows, value=[ctx.key, count, window.start_ms, window.end_ms])


def q12(nexmark: Nexmark) -> None:
    """Bids of each bidder in each 10 s of the clock."""
    counts = nexmark.app.store("counts", key_type=int, value_type=int)

    @nexmark.app.actor(nexmark.bids, stores=[counts], timers=True)
    async def count(ctx: Context, bid: Bid) -> None:
        number = counts.get(ctx.key, 0)
        if ctx.timer is not None:
            counts.delete(ctx.key)
            ctx.send(nexmark.rows, value=[ctx.key, number])
            return
        if not number:
            ctx.schedule(bid, after=timedelta(seconds=10), name="window")
        counts.set(ctx.key, number + 1)


def q13(nexmark: Nexmark) -> None:
    """Bids with what a bounded side input says of their auctions."""
    names = nexmark.app.view(nexmark.topic("names", key_type=int, value_type=str))

    @nexmark.app.actor(nexmark.bids)
    async def name(ctx: Context, bid: Bid) -> None:
        row = names.get(bid.auction % 1_000)
        if row is not None:
            ctx.send(nexmark.rows, value=[bid.auction, bid.bidder, bid.price, row])


def q14(nexmark: Nexmark) -> None:
    """Calculation: a filter, the time of the day and a count of letters."""

    @nexmark.app.actor(nexmark.bids)
    async def calculate(ctx: Context, bid: Bid) -> None:
        if 1_000_000 < bid.price * 0.908 < 50_000_000:
            hour = datetime.fromtimestamp(bid.at_ms / 1000, UTC).hour
            part = "day" if 8 <= hour <= 18 else "night" if hour <= 6 or hour >= 20 else "other"
            ctx.send(nexmark.rows, value=[bid.auction, bid.price, part, bid.extra.count("c")])


def _statistics(nexmark: Nexmark, by: Any) -> None:
    """Send per day and group: bids, those below 10,000 and a million, different bidders and auctions."""
    days, bidders, auctions = (
        nexmark.app.window_store(name, Tumbling(days=1), grace=nexmark.grace, aggregate=aggregate)
        for name, aggregate in (
            ("days", _sums(3)),
            ("bidders", aggregates.count_distinct()),
            ("auctions", aggregates.count_distinct()),
        )
    )

    @nexmark.app.actor(nexmark.bids, by=by, stores=[days, bidders, auctions])
    async def count(ctx: Context, bid: Bid) -> None:
        days.add(ctx.key, [1, int(bid.price < 10_000), int(bid.price < 1_000_000)])
        bidders.add(ctx.key, bid.bidder)
        auctions.add(ctx.key, bid.auction)

    @days.on_close
    async def send(ctx: Context, window: Window, sums: list[int]) -> None:
        numbers = (store.get(ctx.key, window) for store in (bidders, auctions))
        ctx.send(nexmark.rows, value=[ctx.key, window.start_ms, *sums, *numbers])


def _sums(count: int) -> aggregates.Aggregate:
    return aggregates.Aggregate(
        initial=[0] * count,
        add=lambda sums, values: [a + b for a, b in zip(sums, values, strict=True)],
        name="sums",
    )


def q15(nexmark: Nexmark) -> None:
    """Statistics of each day."""
    _statistics(nexmark, lambda bid: "all")


def q16(nexmark: Nexmark) -> None:
    """Statistics of each day and channel."""
    _statistics(nexmark, "channel")


def q17(nexmark: Nexmark) -> None:
    """Statistics of each day and auction: bids, those below 10,000, the least, the highest and the sum."""
    prices = aggregates.Aggregate(
        initial=None,
        add=lambda row, price: (1, int(price < 10_000), price, price, price) if row is None else (
            row[0] + 1, row[1] + int(price < 10_000), min(row[2], price), max(row[3], price), row[4] + price),
        state_type=tuple[int, int, int, int, int] | None, name="prices",
    )  # fmt: skip
    days = nexmark.app.window_store("days", Tumbling(days=1), key_type=int, grace=nexmark.grace, aggregate=prices)

    @nexmark.app.actor(nexmark.bids, by="auction", stores=[days])
    async def count(ctx: Context, bid: Bid) -> None:
        days.add(ctx.key, bid.price)

    @days.on_close
    async def send(ctx: Context, window: Window, row: tuple[int, ...]) -> None:
        ctx.send(nexmark.rows, value=[ctx.key, window.start_ms, *row])


def q18(nexmark: Nexmark) -> Any:
    """The last bid of each bidder on each auction, of equal times the one with the larger id."""
    last = nexmark.app.store("last", key_type=str, aggregate=_top(Bid, by=lambda bid: (bid.at_ms, bid.id)))

    @nexmark.app.actor(nexmark.bids, by=lambda bid: f"{bid.bidder}/{bid.auction}", stores=[last])
    async def keep(ctx: Context, bid: Bid) -> None:
        if last.add(ctx.key, bid) == [bid]:
            ctx.send(nexmark.rows, key=ctx.key, value=[ctx.key, bid.id, 1])

    return last


def q19(nexmark: Nexmark) -> Any:
    """The ten highest bids of each auction."""
    tops = nexmark.app.store("tops", key_type=int, aggregate=aggregates.top_n(
        10, by=lambda bid: (bid.price, -bid.id), value_type=Bid))  # fmt: skip

    @nexmark.app.actor(nexmark.bids, by="auction", stores=[tops])
    async def keep(ctx: Context, bid: Bid) -> None:
        tops.add(ctx.key, bid)

    return tops


def q20(nexmark: Nexmark) -> None:
    """Bids with their auctions, of one category."""

    @nexmark.app.join(
        one=nexmark.auctions, many=nexmark.bids, by={nexmark.bids: "auction"}, retention=timedelta(days=1)
    )
    async def show(ctx: Context, auction: Auction, bid: Bid) -> None:
        if auction.category == 10:
            ctx.send(nexmark.rows, value=[auction.id, auction.item, bid.bidder, bid.price])


def q22(nexmark: Nexmark) -> None:
    """The directories of each bid's URL."""

    @nexmark.app.actor(nexmark.bids)
    async def split(ctx: Context, bid: Bid) -> None:
        ctx.send(nexmark.rows, value=[bid.id, *bid.url.split("/")[3:6]])


QUERIES = {f"q{number}": globals()[f"q{number}"] for number in range(23) if number not in {10, 21}}
