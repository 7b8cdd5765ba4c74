"""A holder that was stopped past its lease is refused by what the lock protects."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from actors.coordination import Fence, FencedSqlite, StaleTokenError
from actors.testing import ActorTestDriver
from examples.fenced_ledger import RESOURCE, lines, write
from tests.core.test_coordination import an_app
from tests.core.test_coordination_client import client, run


def sleep_through_a_lease(path: Path) -> list[str]:
    """One holder stands still past its lease, another one writes, the first one goes on: give what was written."""
    with FencedSqlite.open(path, RESOURCE) as ledger, ActorTestDriver(an_app(), partitions=2) as driver:
        one, two = client(driver), client(driver)

        async def work() -> None:
            first = await one.acquire(RESOURCE, ttl=5)
            write(ledger, first.token, "one")
            # It stands still: nothing is renewed, and it notices nothing.
            first._renewing.cancel()
            second = await two.acquire(RESOURCE, ttl=5)
            write(ledger, second.token, "two")
            with contextlib.suppress(StaleTokenError):
                write(ledger, first.token, "one again")
            write(ledger, second.token, "two again")
            await second.release()
            third = await one.acquire(RESOURCE, ttl=5)
            write(ledger, third.token, "one anew")
            await third.release()
            await asyncio.sleep(0)

        run(driver, work)
        return [line for _, line in lines(ledger)]


def test_a_holder_that_slept_through_its_lease_writes_nothing_any_more(tmp_path):
    assert sleep_through_a_lease(tmp_path / "ledger.db") == ["one", "two", "two again", "one anew"]


def test_without_the_fence_its_write_gets_in(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Fence, "check", lambda *_: None)
    assert "one again" in sleep_through_a_lease(tmp_path / "ledger.db")
