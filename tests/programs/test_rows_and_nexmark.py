"""Whole programs of rows below a key and of Nexmark's sales: what they do, whoever crashes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from actors import EffectCall
from actors.testing import ActorTestDriver
from tests.nexmark.events import Events, generate
from tests.nexmark.oracle import Oracle
from tests.programs import average_prices, conversation, winning_bids

COUNT = 2_000


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_conversation_keeps_all_lines_and_its_model_sees_twenty(keep_disk: bool) -> None:
    prompts = list[list[str]]()

    async def reply(call: EffectCall, newest: list[str]) -> str:
        prompts.append(newest)
        return f"re {newest[-1]}"

    said = [f"line {number}" for number in range(30)]
    lines = [line for text in said for line in (text, f"re {text}")]
    with ActorTestDriver(conversation.app, effects={conversation.ask_model: reply}) as driver:
        for number, text in enumerate(said):
            driver.post(conversation.questions, key="ada", value=text)
            driver.advance(0.001 * number, settle=False)
            driver.crash(keep_disk=keep_disk)
        assert driver.get(conversation.lines, "ada") == lines
        assert driver.query(conversation.ask, "page", "ada") == lines[-20:]
        assert driver.query(conversation.ask, "page", "ada", start=-2) == lines[-2:]
        assert [record.value for record in driver.outputs(conversation.answers)] == lines[1::2]
    assert prompts[-1] == lines[-21:-1]


@pytest.fixture(scope="module")
def events() -> Events:
    return generate(COUNT)


def sold(events: Events, crashes: Random) -> list[tuple[winning_bids.Auction, int, int, int]]:
    """Return (auction, price, time, key) of each sale."""
    with ActorTestDriver(winning_bids.app, partitions=2) as driver:
        driver.backlog(
            {
                winning_bids.auctions: [
                    (auction.id, winning_bids.Auction(auction.seller, auction.expires_ms), auction.at_ms)
                    for auction in events.auctions
                ],
                winning_bids.bids: [
                    (bid.bidder, {"auction": bid.auction, "price": bid.price}, bid.at_ms) for bid in events.bids
                ],
            },
            settle=False,
        )
        for _ in range(3):
            driver.advance(crashes.random(), settle=False)
            driver.crash(keep_disk=crashes.random() < 0.5, settle=False)
        driver.settle()
        return [(*record.value, record.key) for record in driver.outputs(winning_bids.sales)]


def test_sales_and_average_prices_are_those_of_sql(events: Events, tmp_path: Path) -> None:
    oracle, sales = Oracle(events, tmp_path), sold(events, Random(1))
    winners = [(id, price, at_ms) for id, _, price, at_ms in oracle.rows("q9")]
    assert len(winners) > 50
    assert sorted((key, price, at_ms) for _, price, at_ms, key in sales) == winners
    with ActorTestDriver(average_prices.app) as driver:
        for auction, price, at_ms, key in sales:
            value = (average_prices.Auction(auction.seller, auction.expires_ms), price, at_ms)
            driver.post(average_prices.sales, key=key, value=value)
        driver.advance(0.01, settle=False)
        driver.crash(keep_disk=False)
        averages = {record.key: record.value for record in driver.outputs(average_prices.averages)}
    assert averages == pytest.approx(dict(oracle.rows("q6")))
