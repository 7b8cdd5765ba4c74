"""A holder that was stopped past its lease is refused by what the lock protects."""

import asyncio

import pytest

from actors.testing import ActorTestDriver
from examples.fenced_ledger import FencedLedger, StaleTokenError
from tests.core.test_coordination import an_app
from tests.core.test_coordination_client import client, run


def test_a_holder_that_slept_through_its_lease_writes_nothing_any_more(tmp_path):
    ledger = FencedLedger(tmp_path / "ledger.db")
    with ActorTestDriver(an_app(), partitions=2) as driver:
        one, two = client(driver), client(driver)

        async def work() -> None:
            first = await one.acquire("ledger", ttl=5)
            ledger.write(first.token, "one")
            # It stands still: nothing is renewed, and it notices nothing.
            first._renewing.cancel()
            second = await two.acquire("ledger", ttl=5)
            ledger.write(second.token, "two")
            with pytest.raises(StaleTokenError, match="acquire the lock anew"):
                ledger.write(first.token, "one again")
            ledger.write(second.token, "two again")
            await second.release()
            third = await one.acquire("ledger", ttl=5)
            ledger.write(third.token, "one anew")
            await third.release()
            await asyncio.sleep(0)

        run(driver, work)
    assert [line for _, line in ledger.lines()] == ["one", "two", "two again", "one anew"]
    ledger.close()
