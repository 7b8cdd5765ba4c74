"""Nexmark's Q6: the average price of the last ten auctions that each seller sold, from the sales of Q9."""

from statistics import mean

import msgspec

from actors import App, Context


class Auction(msgspec.Struct):
    seller: int
    expires_ms: int


app = App("average-prices", broker="kafka://127.0.0.1:9092")
sales = app.topic("sales", key_type=int, value_type=tuple[Auction, int, int])
averages = app.topic("averages", key_type=int, value_type=float)
newest = app.store("newest", key_type=int, value_type=list[tuple[int, int, int]])


@app.actor(sales, by=lambda sale: sale[0].seller, stores=[newest])
async def average(ctx: Context, sale: tuple[Auction, int, int]) -> None:
    auction, price, at_ms = sale
    sold = [*(newest.get(ctx.key) or []), (auction.expires_ms, at_ms, price)]
    last = newest[ctx.key] = sorted(sold)[-10:]
    ctx.send(averages, key=ctx.key, value=mean(price for _, _, price in last))
