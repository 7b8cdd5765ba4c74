"""The pages for monitoring and orchestrators: what they say in each state of a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from actors import App, Context
from actors._faust.health import stopped_partitions, what_is_dead, what_is_missing
from actors._faust.metrics import WorkerCollector
from actors._faust.operations import mount_operations
from actors.testing import ActorTestDriver


class World:
    """An app whose handler fails for "bad", and whose service runs the driver's worker."""

    def __init__(self, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1", **options)
        self.topic = self.app.topic("in", key_type=str, value_type=str)

        @self.app.actor(self.topic)
        async def work(ctx: Context, value: str) -> None:
            if value == "bad":
                raise ValueError(value)

    def adopt(self, driver: ActorTestDriver) -> None:
        """Have the app's service look at the driver's worker as if it had started it."""
        self.app.actor_service._worker = driver._worker


async def asked(
    app: App, *paths: str, web_app: web.Application | None = None, token: str | None = None
) -> list[tuple[int, Any]]:
    """Give status and body of each page."""
    web_app = web.Application() if web_app is None else web_app
    mount_operations(app, web_app)
    mount_operations(app, web_app)
    found: list[tuple[int, Any]] = []
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with TestClient(TestServer(web_app)) as client:
        for path in paths:
            reply = await client.get(path, headers=headers)
            is_json = reply.content_type == "application/json"
            found.append((reply.status, await reply.json() if is_json else await reply.text()))
            if reply.status in (200, 503):
                assert reply.headers["Cache-Control"] == "no-store"
    return found


async def test_a_worker_that_starts_is_alive_and_not_ready():
    live, ready, health = await asked(World().app, "/health/live", "/health/ready", "/health")
    assert health == (503, {"status": "unavailable", "missing": ["the worker is starting"], "stopped": []})
    assert live == (200, {"status": "ok", "missing": []})
    assert ready == (503, {"status": "unavailable", "missing": ["the worker is starting"]})


def test_a_worker_is_ready_while_its_partitions_are_served():
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        assert what_is_missing(world.app) == []
        driver.post(world.topic, key="a", value="bad")
        driver.advance(1, settle=False)
        assert {task.state.value for task in world.app.actor_service.tasks} == {"running", "halted"}
        assert what_is_missing(world.app) == []


def test_stopped_partitions_are_named_without_keys():
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        driver.send(world.topic, key="secret", value="good")
        home = next(sent.partition for sent in driver.outputs(world.topic))
        assert stopped_partitions(world.app) == []
        driver.post(world.topic, key="secret", value="bad")
        driver.advance(1, settle=False)
        assert stopped_partitions(world.app) == [
            {"actor": "work", "topic": "in", "partition": home, "offset": 1, "error": "HandlerFailedError"}
        ]
        world.app.actor_service._worker.is_assigned = True
        found = asyncio.run(asked(world.app, "/health", "/health/ready"))
        assert found[0] == (200, {"status": "degraded", "missing": [], "stopped": stopped_partitions(world.app)})
        assert found[1] == (200, {"status": "ok", "missing": []})


def test_a_partition_that_is_taken_over_makes_its_worker_not_ready():
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        world.app.actor_service.tasks[1].look_again("a test wants it")
        driver.advance(0.001, settle=False)
        assert what_is_missing(world.app) == ["1 of 2 partitions: fencing"]
        driver.settle()
        driver.advance(5)
        assert what_is_missing(world.app) == []


def test_a_rebalance_makes_a_worker_not_ready():
    world = World()
    with ActorTestDriver(world.app) as driver:
        world.adopt(driver)
        worker = driver._worker
        assert worker is not None
        driver._run(worker.revoked())
        assert what_is_missing(world.app) == ["the group hasn't given out its partitions"]


async def test_a_dispatcher_that_ended_makes_a_worker_dead():
    app = World().app
    app.actor_service._dispatcher = asyncio.create_task(asyncio.sleep(0))
    assert what_is_dead(app) == []
    await app.actor_service._dispatcher
    live, ready = await asked(app, "/health/live", "/health/ready")
    assert live == (503, {"status": "unavailable", "missing": ["the dispatcher ended"]})
    assert ready == (503, {"status": "unavailable", "missing": ["the worker is ending"]})


async def test_metrics_are_there_before_the_worker_has_started():
    app = World().app
    collector = WorkerCollector(app)
    REGISTRY.register(collector)
    try:
        ((status, text),) = await asked(app, "/metrics")
    finally:
        REGISTRY.unregister(collector)
    samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    assert status == 200
    assert samples["faust_actors_worker_info"].labels["app"] == "shop"
    assert "faust_actors_worker_start_time_seconds" not in samples
    assert "python_info" in samples


class OfTheUser(Collector):
    """Notes in which thread it is asked."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def collect(self) -> Iterator[Metric]:
        self.threads.append(threading.current_thread().name)
        return iter(())


async def test_a_slow_collector_of_the_users_takes_no_thread_that_stores_need():
    collector = OfTheUser()
    REGISTRY.register(collector)
    try:
        collector.threads.clear()
        await asked(World().app, "/metrics", "/metrics")
    finally:
        REGISTRY.unregister(collector)
    assert collector.threads == ["metrics_0"] * 2


async def test_metrics_are_for_those_who_may_read_and_health_is_open():
    app, pages = World(query_tokens=["a-token-for-reading"]).app, ("/metrics", "/health/live", "/health/ready")
    assert [status for status, _ in await asked(app, *pages)] == [401, 200, 503]
    assert [status for status, _ in await asked(app, *pages, token="one-that-is-wrong")] == [401, 200, 503]
    assert [status for status, _ in await asked(app, *pages, token="a-token-for-reading")] == [200, 200, 503]


async def test_only_get_is_answered():
    web_app = web.Application()
    mount_operations(World().app, web_app)
    async with TestClient(TestServer(web_app)) as client:
        for path in ("/metrics", "/health/live", "/health/ready"):
            assert (await client.post(path)).status == 405


@pytest.mark.parametrize("path", ["/metrics", "/health/live"])
async def test_a_page_of_the_apps_own_stays(path: str):
    async def mine(_: web.Request) -> web.Response:
        return web.Response(text="mine", headers={"Cache-Control": "no-store"})

    web_app = web.Application()
    web_app.router.add_get(path, mine)
    assert await asked(World().app, path, web_app=web_app) == [(200, "mine")]
