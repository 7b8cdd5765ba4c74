"""Limits of effects: how many calls run at a time and begin within a time, for each tenant, also after a crash."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from actors import App, ConfigurationError, Context, EffectCall, Unknown
from actors.limits import MARGIN_MS, WAIT
from actors.testing import ActorTestDriver
from tests.unit.runtime.leaving import leave

TIMEOUT = timedelta(seconds=30)
LEASE_S = (WAIT + TIMEOUT).total_seconds()


class TooManyRequestsError(Exception):
    """What a client of an HTTP service raises for 429."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__("429")
        self.retry_after = retry_after


class Site:
    """An app whose effect is limited, and the service that it calls: each call takes `takes_s`, by tenant."""

    def __init__(self, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=str)
        self.takes_s: dict[str, float] = defaultdict(lambda: 1.0)
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[tuple[str, float]] = []
        self.refusals: dict[str, list[Any]] = {}
        self.done: Counter[str] = Counter()

        @app.effect(per=lambda tenant, order: tenant, timeout=TIMEOUT, **options)
        async def post(call: EffectCall, tenant: str, order: str) -> None: ...

        @app.actor(self.orders, effects=[post])
        async def place(ctx: Context, tenant: str) -> None:
            ctx.effect(post, tenant, ctx.key)

        self.post = post

    async def call(self, call: EffectCall, tenant: str, order: str) -> None:
        self.begun.append((tenant, asyncio.get_running_loop().time()))
        self.running[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.running[tenant])
        try:
            if self.refusals.get(tenant):
                raise TooManyRequestsError(self.refusals[tenant].pop())
            await asyncio.sleep(self.takes_s[tenant])
            self.done[order] += 1
        finally:
            self.running[tenant] -= 1

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, effects={self.post: self.call})

    def times(self, tenant: str) -> list[float]:
        return [at_s for of, at_s in self.begun if of == tenant]

    def post_all(self, driver: ActorTestDriver, tenant: str, count: int) -> None:
        for number in range(count):
            driver.post(self.orders, key=f"{tenant}-{number}", value=tenant)


def test_so_many_calls_of_each_tenant_run_at_a_time() -> None:
    site = Site(limit=3)
    with site.driver() as driver:
        for tenant in ("acme", "beta"):
            site.post_all(driver, tenant, 20)
        driver.settle()
    assert site.most == {"acme": 3, "beta": 3}
    assert set(site.done.values()) == {1}
    assert len(site.done) == 40


def test_a_tenant_with_many_calls_holds_up_no_other() -> None:
    site = Site(limit=2)
    with site.driver() as driver:
        site.post_all(driver, "acme", 300)
        driver.advance(1.0, settle=False)
        site.post_all(driver, "beta", 4)
        driver.advance(5.0, settle=False)
        assert len(site.times("beta")) == 4
        assert len(site.times("acme")) < 20


@pytest.mark.parametrize(("rate", "count", "period_s"), [("3/m", 3, 60), ("2/s", 2, 1)])
def test_so_many_calls_begin_within_the_time(rate: str, count: int, period_s: float) -> None:
    site = Site(rate=rate)
    with site.driver() as driver:
        site.post_all(driver, "acme", 2 * count + 1)
        site.post_all(driver, "beta", 1)
        driver.advance(2 * (period_s + 2), settle=False)
        driver.settle()
    times = site.times("acme")
    assert len(times) == 2 * count + 1
    for earlier, later in zip(times, times[count:], strict=False):
        assert period_s <= later - earlier <= period_s + MARGIN_MS / 1000 + 1.5
    assert len(site.times("beta")) == 1


def test_a_dead_workers_permits_come_back_when_they_are_over() -> None:
    site = Site(limit=1)
    with site.driver() as driver:
        site.takes_s["acme"] = 20.0
        site.post_all(driver, "acme", 1)
        driver.advance(1.0, settle=False)
        (first,) = site.times("acme")
        site.running.clear()
        driver.crash(settle=False)
        driver.advance(LEASE_S - 3, settle=False)
        assert site.times("acme") == [first], "the dead worker's call counts as running"
        driver.settle()
    assert len(site.times("acme")) == 2
    assert site.times("acme")[1] - first >= LEASE_S - 1


def test_a_call_that_never_returns_gives_its_permit_back_at_its_timeout() -> None:
    site = Site(limit=1, attempts=1)
    with site.driver() as driver:
        site.takes_s["acme"] = 1e9
        site.post_all(driver, "acme", 2)
        driver.advance(5.0, settle=False)
        site.takes_s["acme"] = 1.0
        driver.settle()
    first, second = site.times("acme")
    assert TIMEOUT.total_seconds() <= second - first < TIMEOUT.total_seconds() + 2


@pytest.mark.parametrize("retry_after", [120, "120", timedelta(minutes=2)])
def test_retry_after_holds_up_the_calls_of_the_tenant_alone(retry_after: Any) -> None:
    site = Site(limit=1)
    with site.driver() as driver:
        site.refusals["acme"] = [retry_after]
        site.post_all(driver, "acme", 3)
        site.post_all(driver, "beta", 3)
        driver.advance(240.0, settle=False)
        driver.settle()
    refused, *others = site.times("acme")
    assert min(others) - refused >= 120
    assert max(site.times("beta")) < 60
    assert set(site.done.values()) == {1}
    assert len(site.done) == 6


def test_retry_after_holds_for_a_call_without_limits() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders, times = app.topic("orders", key_type=str, value_type=str), list[float]()

    @app.effect()
    async def post(call: EffectCall) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise TooManyRequestsError(90)

    @app.actor(orders, effects=[post])
    async def place(ctx: Context, order: str) -> None:
        ctx.effect(post)

    with ActorTestDriver(app, effects={post: post}) as driver:
        driver.send(orders, key="ada", value="hat")
        driver.advance(100)
    assert times[1] - times[0] >= 90
    assert "permits" not in app.actors


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))])
def test_no_more_than_the_limit_run_whoever_is_killed(seed: int) -> None:
    site, random = Site(limit=2, rate="30/m"), Random(seed)
    with site.driver() as driver:
        for _ in range(6):
            for tenant in ("acme", "beta"):
                for _ in range(random.randint(0, 4)):
                    driver.post(site.orders, key=f"{tenant}-{random.random()}", value=tenant)
            site.takes_s["acme"] = random.choice((0.1, 2.0, 25.0))
            driver.advance(random.choice((0.02, 0.5, 3.0, 40.0)), settle=False)
            # The process's own calls end with it.
            site.running.clear()
            driver.crash(keep_disk=random.random() < 0.5, settle=False)
        for _ in range(20):
            driver.advance(60.0, settle=False)
        driver.settle()
    assert max(site.most.values()) <= 2
    for tenant in site.most:
        times = site.times(tenant)
        assert all(later - earlier >= 60 for earlier, later in zip(times, times[30:], strict=False))
    assert site.done.total() >= len(site.done)


def test_a_call_whose_tenant_cant_be_told_fails_as_a_call_does() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)

    @app.effect(limit=1, per=lambda order: order["tenant"], attempts=1)
    async def post(call: EffectCall, order: str) -> None: ...

    @app.actor(orders, effects=[post])
    async def place(ctx: Context, order: str) -> None:
        ctx.effect(post, order)

    with ActorTestDriver(app, effects={post: post}) as driver:
        driver.send(orders, key="ada", value="hat")
        (parked,) = driver.parked(place)
        assert "it got no permit: TypeError" in str(parked.error)


def test_a_call_that_is_never_repeated_waits_too() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders, running, most = app.topic("orders", key_type=str, value_type=str), [0], [0]

    @app.effect(limit=1, repeat="never")
    async def post(call: EffectCall) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(1)
        running[0] -= 1

    @app.actor(orders, effects=[post])
    async def place(ctx: Context, order: str) -> None:
        ctx.effect(post)

    with ActorTestDriver(app, effects={post: post}) as driver:
        for number in range(5):
            driver.post(orders, key=str(number), value="hat")
        driver.settle()
        assert driver.parked(place) == []
    assert most == [1]


class Payments:
    """An app whose effect is never repeated and has a limit, by tenant: each call takes 10 s."""

    def __init__(self) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=str)
        self.begun: dict[str, float] = {}
        self.ended: set[str] = set()
        self.unknown: set[str] = set()

        @app.effect(limit=1, repeat="never", per=lambda tenant: tenant, on_unknown="unclear")
        async def pay(call: EffectCall, tenant: str) -> None:
            key = str(call.decoded_key)
            assert key not in self.begun
            self.begun[key] = asyncio.get_running_loop().time()
            await asyncio.sleep(10)
            self.ended.add(key)

        @app.actor(self.orders, effects=[pay])
        async def place(ctx: Context, tenant: str) -> None:
            ctx.effect(pay, tenant)

        @place.timer
        async def unclear(ctx: Context, outcome: Unknown) -> None:
            self.unknown.add(ctx.key)

        self.pay = pay

    def driver(self, partitions: int = 3) -> ActorTestDriver:
        return ActorTestDriver(self.app, effects={self.pay: self.pay}, partitions=partitions)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_call_that_waits_for_its_permit_when_the_worker_ends_is_made_by_the_next(is_killed: bool) -> None:
    site = Payments()
    with site.driver() as driver:
        for number in range(10):
            driver.post(site.orders, key=str(number), value="shop")
        driver.advance(15, settle=False)
        begun = set(site.begun)
        assert len(begun) == 2
        driver.crash(settle=False) if is_killed else leave(driver, settle=False)
        driver.settle()
        assert driver.parked("place") == []
    # The call under way alone is unknown.
    assert site.unknown == begun - site.ended
    assert len(site.unknown) == 1
    assert len(site.begun) == 10


def test_a_stop_fails_no_call_that_waits_and_leaves_no_permit_to_nobody() -> None:
    site = Site(limit=1, attempts=1)
    with site.driver() as driver:
        site.post_all(driver, "shop", 10)
        driver.advance(2.5, settle=False)
        leave(driver, settle=False)
        driver.settle()
        assert driver.parked("place") == []
    assert len(site.done) == 10
    assert site.most == {"shop": 1}
    # The call that the stop cut short is made once more, and none waits for a permit to be over.
    assert max(site.times("shop")) < 15


def test_calls_of_a_tenant_that_are_never_repeated_hold_up_no_other_tenant() -> None:
    site = Payments()
    with site.driver(partitions=1) as driver:
        # More than a partition's 16 calls.
        for number in range(20):
            driver.post(site.orders, key=f"shop-{number}", value="shop")
        driver.advance(1, settle=False)
        driver.post(site.orders, key="bar", value="bar")
        driver.settle()
    assert site.begun["bar"] < 3
    assert not site.unknown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit=0: it is how many calls run at a time, from 1 to 1000"),
        ({"limit": 2000}, "limit=2000"),
        ({"limit": "many"}, "limit='many'"),
        ({"rate": "100"}, "rate='100': it is how many calls begin within a second, minute, hour or day"),
        ({"rate": "0/m"}, "rate='0/m'"),
        ({"rate": "5000/m"}, "rate=.5000/m.: .* and up to 1000"),
        ({"rate": "5/y"}, "rate='5/y'"),
        ({"per": lambda tenant: tenant}, "per= without limit= or rate= limits nothing"),
        ({"limit": 1, "per": "tenant"}, "per='tenant': it is a function of the effect's arguments"),
    ],
)
def test_limits_that_cant_be_meant(options: dict[str, Any], said: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=f"effect post: {said}"):

        @app.effect(**options)
        async def post(call: EffectCall) -> None: ...


def test_an_actor_called_permits_is_refused_beside_limits() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("orders", key_type=str, value_type=str))
    async def permits(ctx: Context, order: str) -> None: ...

    with pytest.raises(ConfigurationError, match="actor permits: the app has an actor of that name"):

        @app.effect(limit=1)
        async def post(call: EffectCall) -> None: ...
