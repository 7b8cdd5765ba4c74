"""Bids joined with their auctions until these end, and auctions without any (`faust -A examples.auction_bids worker`).

An auction says when it ends. Bids are keyed by their bidders, so they are read by their auction's key; whichever of the
two comes first waits for the other. When the end is past by the time of records, an auction without a bid is sent to a
topic of its own, once.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context

app = App("auction-bids", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Auction(msgspec.Struct):
    """An auction; times are Unix milliseconds."""

    item: str
    at_ms: int
    expires_ms: int


class Bid(msgspec.Struct):
    """A bid for an auction."""

    auction: str
    cents: int
    at_ms: int


class Offer(msgspec.Struct):
    """A bid that came in time, and what for."""

    item: str
    cents: int


auctions = app.topic("auctions", key_type=str, value_type=Auction, timestamp=lambda auction: auction.at_ms)
bids = app.topic("bids", key_type=str, value_type=Bid, timestamp=lambda bid: bid.at_ms)
offers = app.topic("offers", key_type=str, value_type=Offer)
unsold = app.topic("unsold-auctions", key_type=str, value_type=Auction)


@app.join(
    one=auctions,
    many=bids,
    by={bids: lambda bid: bid.auction},
    until=lambda auction: auction.expires_ms,
    how="left",
    grace=timedelta(seconds=5),
    retention=timedelta(hours=1),
)
async def collect_bids(ctx: Context, auction: Auction, bid: Bid | None) -> None:
    """Send each bid on as an offer, or the auction if it had none."""
    if bid is None:
        ctx.send(unsold, key=ctx.key, value=auction)
    else:
        ctx.send(offers, key=ctx.key, value=Offer(auction.item, bid.cents))
