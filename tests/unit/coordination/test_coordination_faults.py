"""What clients believe and leave behind when clocks are set, calls are cancelled, and one owner asks twice."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from actors.coordination import (
    BusyError,
    CoordinationError,
    CoordinationTimeoutError,
    LeaseLostError,
    Sharing,
    locks,
)
from actors.coordination import messages as m
from actors.coordination.client.transport import AGAIN_S, SKEW_S, Outside
from actors.coordination.messages import ACTOR
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeClock
from tests.unit.coordination.test_coordination import APP, an_app
from tests.unit.coordination.test_coordination_client import client, run


@pytest.fixture
def driver():
    with ActorTestDriver(an_app(), partitions=2) as made:
        yield made


def client_by(driver: ActorTestDriver, clock: FakeClock, *, app: str = APP) -> Sharing:
    """A client with a clock of its own."""

    async def partitions() -> int:
        return 2

    return Sharing(Outside(driver._make_asks(), f"{app}-coordination", partitions, clock), 10.0)


async def believes_alone(second: Any, third: Sharing, ttl: float) -> None:
    """Who waited holds it, or knows that it doesn't, when somebody else is granted it."""
    assert second.is_held
    try:
        await third.acquire("x", ttl=ttl, timeout=50)
    except CoordinationTimeoutError:
        assert second.is_held
    else:
        assert not second.is_held, "two believe that they hold it"


def committed(driver: ActorTestDriver, name: str) -> list[dict[str, Any]]:
    """The states of a name, from the first on, as the changelog has them."""
    raw = name.encode()
    logs = driver._cluster.topic(f"{APP}--{ACTOR}-changelog").partitions
    found = [record for log in logs for record in log.history if record.key == raw and record.is_committed]
    return [msgspec.json.decode(record.value) for record in found if record.value]


async def until(condition: Any, for_s: float = 60.0) -> None:
    """Wait for something to be so, in the loop's time."""
    for _ in range(int(for_s * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never was")


class Deaf:
    """For the time of its block a client's answers are lost."""

    def __init__(self, who: Sharing) -> None:
        self._waiting = who._transport._asks._waiting

    def __enter__(self) -> None:
        self._deliver, self._waiting.deliver = self._waiting.deliver, lambda record: None

    def __exit__(self, *exception: object) -> None:
        self._waiting.deliver = self._deliver


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_while_somebody_waits_lengthens_no_lease(driver):
    one, two, three = (client_by(driver, driver._clock) for _ in range(3))

    async def work() -> None:
        first = await one.acquire("x", ttl=600)
        waiting = asyncio.create_task(two.acquire("x", ttl=9))
        await until(lambda: committed(driver, "x")[-1]["lock"]["waiters"])
        driver._clock.wall_offset_ms += 60_000
        await first.release()
        await believes_alone(await waiting, three, 9)

    run(driver, work)


def test_a_next_owner_whose_clock_is_ahead_lengthens_no_lease(driver):
    one, two, three = client(driver), client(driver), client(driver)

    async def work() -> None:
        first = await one.acquire("x", ttl=60)
        waiting = asyncio.create_task(two.acquire("x", ttl=3))
        await until(lambda: committed(driver, "x")[-1]["lock"]["waiters"])
        driver._kill()
        driver._disk.erase()
        driver._clock.wall_offset_ms += 5_000
        await driver._restart(settle=False)
        await first.release()
        await believes_alone(await waiting, three, 3)

    run(driver, work)


@pytest.mark.parametrize("behind_s", [2.5, 15.0, SKEW_S - 1])
def test_a_client_whose_clock_is_behind_is_answered_and_keeps_its_lease(driver, behind_s):
    clock = FakeClock()
    clock.wall_offset_ms = -int(behind_s * 1000)
    behind = client_by(driver, clock)

    async def work() -> None:
        async with behind.lock("x", ttl=3) as lease:
            await asyncio.sleep(30)
            lease.check()

    run(driver, work)


def test_a_client_whose_clock_is_far_behind_is_told_to_look_at_it(driver):
    clock = FakeClock()
    clock.wall_offset_ms = -3_600_000
    with pytest.raises(CoordinationTimeoutError, match="clock less than 300 s ahead of this machine's"):
        run(driver, lambda: client_by(driver, clock).look("x"))


def test_those_who_died_while_they_waited_hold_it_for_a_short_lease_each(driver):
    holder, last, dead = client(driver), client(driver), client(driver)
    dead._withdraw = lambda *_: None

    async def work() -> None:
        held = await holder.acquire("x", ttl=600)
        for number in range(5):
            waiting = asyncio.create_task(dead.acquire("x", ttl=600))
            await until(lambda number=number: len(committed(driver, "x")[-1]["lock"]["waiters"]) == number + 1)
            waiting.cancel()
        await asyncio.sleep(250)
        await held.release()
        begin_s = asyncio.get_running_loop().time()
        await last.acquire("x", ttl=600)
        assert asyncio.get_running_loop().time() - begin_s < 5 * locks.FIRST_LEASE_MS / 1000 + 10

    run(driver, work)


@pytest.mark.parametrize("is_in_time", [True, False])
def test_who_hears_too_late_of_its_grant_is_told_so(driver, is_in_time):
    holder, waiter = client(driver), client(driver)

    async def work() -> None:
        held = await holder.acquire("x", ttl=600)
        waiting = asyncio.create_task(waiter.acquire("x", ttl=60))
        await asyncio.sleep(101)
        with Deaf(waiter):
            await held.release()
            await asyncio.sleep(locks.FIRST_LEASE_MS / 1000 + (-AGAIN_S if is_in_time else 1))
        if is_in_time:
            assert (await waiting).left_s > 50
            return
        with pytest.raises(LeaseLostError, match="was over before its answer came"):
            await waiting
        await waiter._settle(60)
        assert (await holder.look("x")).holders == ()

    run(driver, work)


# --- claims ---------------------------------------------------------------------------------------------------------


def test_a_wait_that_times_out_ends_no_other_of_the_same_owner(driver):
    holder, one, two = client(driver), client(driver), client(driver)

    async def work() -> None:
        held = await holder.acquire("x", ttl=600)
        long = asyncio.create_task(two.acquire("x", ttl=10, owner="me", timeout=100))
        with pytest.raises(CoordinationTimeoutError):
            await one.acquire("x", ttl=10, owner="me", timeout=1)
        await one._settle(60)
        assert (await holder.look("x")).waiting == 1
        await held.release()
        assert (await long).is_held

    run(driver, work)


def test_a_reentrant_request_that_is_cancelled_after_its_grant_leaves_no_count(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        outer = await one.acquire("x", ttl=3600, owner="me")
        with Deaf(two):
            inner = asyncio.create_task(two.acquire("x", ttl=3600, owner="me"))
            await until(lambda: committed(driver, "x")[-1]["lock"]["holders"][0]["count"] == 2)
        inner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await inner
        await two._settle(60)
        await outer.renew()
        await outer.release()
        assert (await one.look("x")).holders == ()

    run(driver, work)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_barrier_counts_nobody_who_went_away(driver, is_over):
    one = client(driver)

    async def goes_away() -> None:
        async with asyncio.timeout(2 if is_over else None):
            await one.barrier("b", 2, timeout=600)

    async def work() -> None:
        for _ in range(2):
            waiting = asyncio.create_task(goes_away())
            await until(lambda: "b" in driver.items(ACTOR))
            if not is_over:
                waiting.cancel()
            with pytest.raises(TimeoutError if is_over else asyncio.CancelledError):
                await waiting
            await one._settle(60)
            assert driver.items(ACTOR) == {}
        # Who comes next may wait for another number.
        assert await asyncio.gather(*(one.barrier("b", 3) for _ in range(3))) == [1, 1, 1]

    run(driver, work)


def test_a_join_that_is_cancelled_is_withdrawn_and_ends_no_other_membership(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        with Deaf(one):
            joining = asyncio.create_task(one.join("g", "me", ttl=3600).__aenter__())
            await until(lambda: committed(driver, "g"))
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        await one._settle(60)
        assert await one.members("g") == ()
        old = await one.join("g", "me", "old", ttl=9).__aenter__()
        async with two.join("g", "me", "new", ttl=3600):
            # It was taken for dead, and finds out.
            await old.lost.wait()
            await old.release()
            assert [member.data for member in await one.members("g")] == ["new"]

    run(driver, work)


def test_one_leasing_is_one_block(driver):
    one = client(driver)

    async def work() -> None:
        lock, semaphore = one.lock("x", ttl=5, owner="me"), one.semaphore("s", 2, ttl=5)
        async with lock, semaphore:
            for again in (lock, semaphore):
                with pytest.raises(CoordinationError, match="in use by another block") as caught:
                    await again.__aenter__()
                assert caught.value.reason == "argument"
        async with lock as lease:
            assert lease.is_held
        await asyncio.sleep(60)
        assert (await one.look("x")).holders == (await one.look("s")).holders == ()
        async with one.lock("x", ttl=5):
            busy = one.lock("x", ttl=5, timeout=0)
            for _ in range(2):
                with pytest.raises(BusyError):
                    await busy.__aenter__()

    run(driver, work)


def test_a_cancelled_release_releases_and_ends_who_was_cancelled(driver):
    one = client(driver)

    async def work() -> None:
        lease = await one.acquire("x", ttl=3600)
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        await lease.release()
        assert (await one.look("x")).holders == ()

    run(driver, work)


# --- sessions -------------------------------------------------------------------------------------------------------


def test_a_session_that_is_closed_keeps_no_node_that_was_on_its_way(driver):
    one = client(driver)

    async def work() -> None:
        async with one.session(ttl=3600) as session:
            putting = asyncio.create_task(session.put("n", "data"))
            await asyncio.sleep(0)
        with pytest.raises(CoordinationError, match="its session was closed") as caught:
            await putting
        assert caught.value.reason == "closed"
        assert await one.get("n") is None
        with pytest.raises(CoordinationError, match="its session was closed"):
            await session.put("n", "data")

    run(driver, work)


def test_a_put_that_is_cancelled_is_withdrawn_and_the_sessions_earlier_one_is_not(driver):
    one = client(driver)

    async def work() -> None:
        async with one.session(ttl=3600) as session:
            for name in ("n", "other"):
                with Deaf(one):
                    putting = asyncio.create_task(session.put(name, "data"))
                    await until(lambda name=name: committed(driver, name))
                putting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await putting
                await one._settle(60)
                assert await one.get(name) is None
            await session.put("n", "kept")
            one._withdraw("n", m.Withdraw(claim="another"))
            await one._settle(60)
            assert (await one.get("n"))[0] == "kept"
            assert not session.lost.is_set()

    run(driver, work)


@pytest.mark.parametrize("is_released", [True, False])
def test_a_node_that_a_session_puts_again_is_the_later_leases(driver, is_released):
    one = client(driver)

    async def work() -> None:
        async with one.session(ttl=5) as session:
            first = await session.put("n", "a")
            second = await session.put("n", "b", version=1)
            if is_released:
                await first.release()
            await asyncio.sleep(60)
            assert await one.get("n") == ("b", 2)
            assert second.is_held
            assert not session.lost.is_set()
        await asyncio.sleep(60)
        assert await one.get("n") is None
        # It ended when it was replaced: nobody was told that it is lost.
        assert (first.is_held, first.lost.is_set()) == (False, False)

    run(driver, work)


def test_a_lease_that_was_asked_for_anew_is_lost_by_who_had_it_before(driver):
    one, two = client(driver), client(driver)
    owners = itertools.repeat("job-1")
    for who in (one, two):
        who._transport.new_owner = lambda name: next(owners)

    async def work() -> None:
        old = await one.acquire("x", ttl=60)
        new = await two.acquire("x", ttl=60)
        assert new.token == old.token
        with pytest.raises(LeaseLostError):
            await old.renew()
        await old.lost.wait()
        await old.release()
        assert [(held.token, held.count) for held in (await one.look("x")).holders] == [(new.token, 1)]
        await new.renew()
        await new.release()
        assert (await one.look("x")).holders == ()

    run(driver, work)
