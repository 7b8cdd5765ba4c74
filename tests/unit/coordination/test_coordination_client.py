"""The client of the lock service in virtual time, its questions carried by the fake network."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from actors import App
from actors.coordination import (
    ConflictError,
    Coordination,
    CoordinationError,
    CoordinationTimeoutError,
    LeaseLostError,
    LockMismatchError,
    Sharing,
    TtlError,
    UnknownLockError,
    coordination,
)
from actors.coordination.client.transport import Outside
from actors.coordination.messages import ACTOR
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeClock
from tests.documents import block
from tests.sim.fakes.network import with_faults

APP = "locks"


@pytest.fixture
def driver():
    app = App(APP, broker="kafka://127.0.0.1:1")
    coordination(app)
    with with_faults(ActorTestDriver(app, partitions=2)) as made:
        yield made


def client(driver: ActorTestDriver, call_timeout: float = 10.0, *, app: str = APP) -> Sharing:
    async def partitions() -> int:
        return 2

    asks = driver._make_asks()
    return Sharing(Outside(asks, f"{app}-coordination", partitions, FakeClock()), call_timeout)


def run(driver: ActorTestDriver, work: Callable[[], Awaitable[Any]]) -> Any:
    return driver._run(asyncio.wait_for(work(), 10_000))


def test_the_example_of_the_page(capsys):
    names = block("docs/reference/api/coordination.md", "Example").run({})
    assert names["app"].actors.keys() == {ACTOR}
    with ActorTestDriver(names["app"], partitions=2) as driver:
        view = run(driver, lambda: names["print_alone"](client(driver), "a letter"))
        [holder] = view.holders
        assert capsys.readouterr().out == f"a letter {holder.token}\n"
        node = run(driver, lambda: client(driver).get("printers/7"))
    assert node is None, "the session has ended"


def test_a_lock_is_held_renewed_and_given_on(driver):
    one, two = client(driver), client(driver)
    seen: list[tuple[str, int]] = []

    async def holds(who: Sharing, name: str, for_s: float) -> None:
        async with who.lock("printer", ttl=3) as lease:
            seen.append((name, lease.token))
            await asyncio.sleep(for_s)
            assert lease.is_held
            assert not lease.lost.is_set()
            lease.check()

    async def work() -> None:
        first = asyncio.create_task(holds(one, "one", 20))
        await asyncio.sleep(1)
        assert await two.try_lock("printer", ttl=3) is None
        await asyncio.gather(first, holds(two, "two", 1))
        lease = await two.try_lock("printer", ttl=3)
        seen.append(("again", lease.token))
        await lease.release()
        await lease.release()

    run(driver, work)
    assert [name for name, _ in seen] == ["one", "two", "again"]
    assert len({token for _, token in seen}) == 3
    assert sorted(seen, key=lambda found: found[1]) == seen


def test_a_lock_outlives_the_worker_that_granted_it(driver):
    holder = client(driver)

    async def begin() -> Any:
        return await holder.acquire("x", ttl=600)

    lease = run(driver, begin)
    driver.crash(keep_disk=False, settle=False)

    async def end() -> None:
        await lease.renew()
        assert lease.is_held
        await lease.release()
        assert (await holder.look("x")).holders == ()

    run(driver, end)


def test_a_lease_is_lost_when_nobody_answers_and_the_client_knows_first(driver):
    holder = client(driver)

    async def work() -> None:
        begin_s = holder._transport.clock.monotonic()
        async with holder.lock("x", ttl=9) as lease:
            driver._network.cut_off.add("")
            await lease.lost.wait()
            assert holder._transport.clock.monotonic() - begin_s < 9.5
            assert "no renewal was answered within its 9 s" in lease.why
            assert not lease.is_held
            with pytest.raises(LeaseLostError, match="acquire it again"):
                lease.check()

    with pytest.raises(LeaseLostError, match="was lost before the block ended"):
        run(driver, work)


def test_a_block_that_raises_keeps_its_own_error_though_the_lease_is_lost(driver):
    holder = client(driver)

    async def work() -> None:
        async with holder.lock("x", ttl=5) as lease:
            await holder.break_lock("x")
            await lease.lost.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(driver, work)


def test_a_holder_that_was_held_up_learns_it_from_its_clock_and_from_the_refusal(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        first = await one.acquire("x", ttl=5)
        # The process stands still: nothing is renewed.
        first._renewing.cancel()
        second = await two.acquire("x", ttl=5)
        assert second.token > first.token
        assert not first.is_held
        first._until_s += 100
        with pytest.raises(CoordinationError) as caught:
            await first.renew()
        assert caught.value.reason == "expired"
        await second.release()

    run(driver, work)


def test_a_wait_has_an_end_and_leaves_nothing(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        async with one.lock("x", ttl=30):
            with pytest.raises(CoordinationTimeoutError, match="nobody let go in time"):
                await two.acquire("x", ttl=30, timeout=timedelta(seconds=5))
            waiting = asyncio.create_task(two.acquire("x", ttl=30))
            await asyncio.sleep(1)
            assert (await one.look("x")).waiting == 1
            waiting.cancel()
            await asyncio.sleep(1)
            assert (await one.look("x")).waiting == 0

    run(driver, work)


def test_a_request_that_is_lost_on_its_way_is_asked_again_and_handled_once(driver):
    holder = client(driver)

    async def work() -> None:
        driver._network.planned["", "ListOffsets"] = "lost"
        driver._network.planned["", "Produce"] = "answer lost"
        async with holder.lock("x", ttl=60) as lease:
            assert driver._network.planned == {}
            assert (await holder.look("x")).holders[0].count == 1
            assert lease.left_s > 30

    run(driver, work)


def test_nobody_there_is_a_timeout_that_says_what_to_look_at(driver):
    asker = client(driver, call_timeout=2.0)

    async def work() -> None:
        driver._network.cut_off.add("")
        with pytest.raises(CoordinationTimeoutError, match=r"Look 'x': no answer within 2 s.*Is a worker"):
            await asker.look("x")

    run(driver, work)


def test_reentrant_readers_writers_and_semaphores(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        async with one.lock("x", ttl=30, owner="me") as outer:
            async with two.lock("x", ttl=30, owner="me") as inner:
                assert inner.token == outer.token
            assert (await one.look("x")).holders[0].count == 1
        async with one.lock("x", shared=True), two.lock("x", shared=True):
            assert await one.try_lock("x") is None
        async with one.semaphore("s", 3, permits=2), two.semaphore("s", 3):
            assert await one.try_lock("s", limit=3) is None
            with pytest.raises(LockMismatchError):
                await one.try_lock("s", limit=4)

    run(driver, work)


@pytest.mark.parametrize("ttl", [0, -1, 0.1, 1e9])
def test_times_to_live_that_cannot_be(driver, ttl):
    with pytest.raises(TtlError, match="ttl"):
        run(driver, lambda: client(driver).acquire("x", ttl=ttl))


def test_breaking_what_nobody_holds(driver):
    with pytest.raises(UnknownLockError, match="breaking 'x': nobody ever held it: look at the name"):
        run(driver, lambda: client(driver).break_lock("x"))


def test_leaders_follow_each_other_and_are_seen(driver):
    one, two, watcher = client(driver), client(driver), client(driver)
    seen: list[str] = []

    async def watch() -> None:
        async for view in watcher.watch("chief"):
            name = view.holders[0].data if view.holders else ""
            seen.append(name)

    async def work() -> None:
        watching = asyncio.create_task(watch())
        await asyncio.sleep(1)
        async with one.campaign("chief", "one"):
            after = asyncio.create_task(two.campaign("chief", "two").__aenter__())
            await asyncio.sleep(100)
            assert (await two.leader("chief")).data == "one"
        lease = await after
        assert (await one.leader("chief")).token == lease.token
        await lease.release()
        await asyncio.sleep(1)
        watching.cancel()

    run(driver, work)
    assert seen == ["", "one", "two", ""]


def test_nodes_sessions_groups_and_barriers(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        assert await one.get("config") is None
        version = await one.put("config", "a", version=0)
        with pytest.raises(ConflictError, match="read it again"):
            await two.put("config", "b", version=0)
        assert await two.put("config", "b", version=version) == version + 1
        assert await one.get("config") == ("b", version + 1)
        await one.delete("config")
        assert await two.get("config") is None
        async with one.session(ttl=5) as session:
            await session.put("here", "one")
            await asyncio.sleep(30)
            assert (await two.get("here"))[0] == "one"
            with pytest.raises(ConflictError):
                async with two.session() as other:
                    await other.put("here", "two")
        assert await two.get("here") is None
        async with one.join("group", "a", ttl=5), two.join("group", "b", "data", ttl=5):
            await asyncio.sleep(30)
            assert [(member.name, member.data) for member in await one.members("group")] == [("a", ""), ("b", "data")]
        assert await one.members("group") == ()
        assert await asyncio.gather(one.barrier("b", 2), two.barrier("b", 2)) == [1, 1]
        with pytest.raises(CoordinationTimeoutError):
            await one.barrier("b", 2, timeout=1)

    run(driver, work)


def test_a_session_that_is_lost_says_so(driver):
    one, two = client(driver), client(driver)

    async def work() -> None:
        async with one.session(ttl=5) as session:
            await session.put("here", "one")
            await two.delete("here")
            await asyncio.wait_for(session.lost.wait(), 5)

    run(driver, work)


@pytest.mark.parametrize(("ttl", "is_held_still"), [(3600, True), (3, False)])
def test_handlers_use_the_same_calls_and_a_message_that_is_handled_again_has_its_lock_or_a_new_one(ttl, is_held_still):
    app = App(APP, broker="kafka://127.0.0.1:1")
    coordination(app)
    seen: list[tuple[str, int]] = []

    @app.actor(app.topic("jobs", key_type=str, value_type=str), concurrency=4)
    async def job(ctx, what) -> None:
        async with Coordination.inside(ctx).lock("printer", ttl=ttl) as lease:
            seen.append((ctx.key, lease.token))
            await asyncio.sleep(20 if what == "slow" else 1)

    with ActorTestDriver(app) as driver:
        topic = app.definition_of(job).topic
        driver.post(topic, key="a", value="slow")
        driver.advance(5, settle=False)
        assert [key for key, _ in seen] == ["a"]
        driver.post(topic, key="b", value="quick")
        driver.crash(down_s=10)
        assert sorted(key for key, _ in seen) == ["a", "a", "b"]
        assert driver.get(ACTOR, "printer").lock.holders == ()
        tokens = [token for key, token in seen if key == "a"]
        assert (tokens[0] == tokens[1]) is is_held_still
        assert tokens == sorted(tokens)
