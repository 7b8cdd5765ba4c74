"""Nexmark's Q9: the highest bid in the time of each auction, of equal ones the first; up to 2 s out of order."""

from datetime import timedelta

import msgspec

from actors import App, Context


class Auction(msgspec.Struct):
    seller: int
    expires_ms: int


app = App("winning-bids", broker="kafka://127.0.0.1:9092")
auctions = app.topic("auctions", key_type=int, value_type=Auction)
bids = app.topic("bids", key_type=int, value_type=dict[str, int])
sales = app.topic("sales", key_type=int, value_type=tuple[Auction, int, int])
offers = app.list_store("offers", key_type=int, value_type=tuple[int, int], ttl=timedelta(days=1))


@app.actor(auctions, bids, by={bids: lambda bid: bid["auction"]}, stores=[offers], timers=True)
async def open_auction(ctx: Context, auction: Auction) -> None:
    end = timedelta(milliseconds=auction.expires_ms - ctx.timestamp_ms + 2_001)
    ctx.schedule(sell, auction, ctx.timestamp_ms, after=end, stream_time=True)


@app.on(open_auction, bids)
async def offer(ctx: Context, bid: dict[str, int]) -> None:
    offers.at(ctx.key).append((bid["price"], -ctx.timestamp_ms))


@open_auction.timer
async def sell(ctx: Context, auction: Auction, begin_ms: int) -> None:
    for price, at_ms in sorted(bid for bid in offers.at(ctx.key) if begin_ms <= -bid[1] <= auction.expires_ms)[-1:]:
        ctx.send(sales, key=ctx.key, value=(auction, price, -at_ms))
