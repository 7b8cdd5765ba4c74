"""A holder that was stopped past its lease is refused by what the lock protects."""

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

from actors.coordination import Fence, FencedSqlite, Lease, StaleTokenError
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeClock
from examples.fenced_ledger import RESOURCE, lines, write
from tests.unit.coordination.test_coordination import an_app
from tests.unit.coordination.test_coordination_client import client, run
from tests.unit.coordination.test_coordination_faults import client_by


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


class StoppedClock(FakeClock):
    """A clock that doesn't move, and whose wall time is anything."""

    @staticmethod
    def monotonic() -> float:
        return 0.0


@pytest.mark.parametrize("seed", range(4))
def test_tokens_order_the_writes_of_holders_whatever_all_clocks_say(tmp_path, seed):
    random, tokens, stale, path = Random(seed), [], 0, tmp_path / "ledger.db"
    with FencedSqlite.open(path, RESOURCE) as ledger, ActorTestDriver(an_app(), partitions=2) as driver:

        async def hold(number: int) -> Lease:
            """Take the lock by a clock by which it is held for ever."""
            clock = StoppedClock()
            clock.wall_offset_ms = random.choice((0, 60_000, -60_000))
            lease = await client_by(driver, clock).acquire(RESOURCE, ttl=5, timeout=60)
            lease._renewing.cancel()
            write(ledger, lease.token, f"{number}")
            return lease

        async def work() -> None:
            nonlocal stale
            held: list[Lease] = []
            for number in range(8):
                held.append(await hold(number))
                tokens.append(held[-1].token)
                # The service's clock is set while the lease runs, and once it begins anew on another disk.
                driver._clock.wall_offset_ms = random.choice((0, 200_000, -200_000))
                if number == 4:
                    driver._kill()
                    driver._disk.erase()
                    await driver._restart(settle=False)
                for before in held[:-1]:
                    assert before.is_held
                    with pytest.raises(StaleTokenError):
                        write(ledger, before.token, "too late")
                    stale += 1
                await asyncio.sleep(random.choice((0.0, 1.0)))

        run(driver, work)
        assert [line for _, line in lines(ledger)] == [f"{number}" for number in range(8)]
    assert tokens == sorted(set(tokens))
    assert stale == 28
