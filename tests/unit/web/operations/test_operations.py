"""The pages for monitoring and orchestrators: what they say in each state of a worker."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from actors import App, Context
from actors._core.task.lifecycle import State
from actors._kafka.consume.silence import Silence
from actors.ports import Identity, TopicPartition
from actors.testing import ActorTestDriver
from actors.web.health import stopped_partitions, what_is_dead, what_is_missing
from actors.web.metrics import WorkerCollector
from actors.web.server import mount_operations


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
        self.app.actor_service.worker = driver._worker


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
    probes = {"live": True, "startup": False, "ready": False}
    assert health == (
        503,
        {"status": "unavailable", **probes, "missing": ["the worker is starting"], "stopped": [], "paused": []},
    )
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


@pytest.mark.parametrize(("off_s", "side"), [(3600, "ahead of"), (-600, "behind")])
def test_a_worker_whose_clock_is_wrong_by_more_than_the_margin_is_not_ready(
    off_s: int, side: str, monkeypatch: pytest.MonkeyPatch
):
    world = World()
    clock, now_ns = world.app.actor_clock, time.time_ns()
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        monkeypatch.setattr(clock, "_wall_ns", lambda: now_ns + 299 * 10**9)
        clock.heard(now_ns // 1_000_000, clock.boot_ms)
        assert what_is_missing(world.app) == []
        monkeypatch.setattr(clock, "_wall_ns", lambda: now_ns + off_s * 10**9)
        (missing,) = what_is_missing(world.app)
        assert missing.startswith(f"this machine's clock is {abs(off_s)} s {side} the brokers', more than")
        monkeypatch.setattr(clock, "_wall_ns", lambda: now_ns)
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
        world.app.actor_service.worker.is_assigned = True
        found = asyncio.run(asked(world.app, "/health", "/health/ready"))
        probes = {"live": True, "startup": True, "ready": True}
        stopped = stopped_partitions(world.app)
        assert found[0] == (200, {"status": "degraded", **probes, "missing": [], "stopped": stopped, "paused": []})
        assert found[1] == (200, {"status": "ok", "missing": []})


def test_a_partition_that_is_taken_over_makes_its_worker_not_ready():
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        world.app.actor_service.tasks[1].reinitialize("a test wants it")
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


# --- the table of docs/reference/metrics.md ---------------------------------------------------------------------------


def all_in_state(state: State, count: int = 2) -> Callable[[World], None]:
    """Put the first `count` tasks into a state."""

    def arrange(world: World) -> None:
        for task in world.app.actor_service.tasks[:count]:
            task.context.state = state

    return arrange


def assigned_nothing(world: World) -> None:
    """Have the group give out its partitions, none of them to this worker."""
    worker = world.app.actor_service.worker
    assert worker is not None
    worker._tasks.clear()
    worker.assigned(Identity("member", 2), [])


def not_let_in(world: World) -> None:
    """As before the first assignment."""
    worker = world.app.actor_service.worker
    assert worker is not None
    worker._tasks.clear()
    worker.is_assigned, worker.meters.rebalances = False, 0


def joining(world: World) -> None:
    """As after the begin of a rebalance."""
    worker = world.app.actor_service.worker
    assert worker is not None
    worker.joining()


def rebalancing(world: World) -> None:
    """As after the revocation of all partitions."""
    worker = world.app.actor_service.worker
    assert worker is not None
    worker._tasks.clear()
    worker.is_assigned = False


def not_started(world: World) -> None:
    """As while settings are checked."""
    world.app.actor_service.worker = None


def unheard(*whom: str | TopicPartition) -> Callable[[World], None]:
    """Let the session timeout pass since these were asked."""

    def arrange(world: World) -> None:
        now_s = [0.0]
        silence = Silence(lambda: now_s[0])
        silence._asked(whom)
        now_s[0] = float(world.app.conf.broker_session_timeout) + 0.1
        world.app.actor_service._source = SimpleNamespace(silence=silence)  # type: ignore[assignment]

    return arrange


def an_hour_ahead(world: World) -> None:
    """As after the machine's clock was set."""
    clock = world.app.actor_clock
    clock.heard(clock.wall_ms() - 3_600_000, clock.boot_ms)


def ending(world: World) -> None:
    """As while the worker stops."""
    world.app.actor_service._stopped.set()


def broken(world: World) -> None:
    """As after an error of the dispatcher."""
    world.app.actor_service._dispatcher = SimpleNamespace(done=lambda: True)  # type: ignore[assignment]


UNHEARD = "the group's coordinator, or the leader of an input partition,"

SITUATIONS: list[tuple[str, Callable[[World], object]]] = [
    ("checks settings and topics, or waits for the group to let it in", not_started),
    ("checks settings and topics, or waits for the group to let it in", not_let_in),
    ("takes partitions over, or restores them", all_in_state(State.RESTORING, 1)),
    ("the group rebalances", joining),
    ("gave up its partitions for a rebalance, or was forgotten by the group", rebalancing),
    ("runs all of its partitions, or has none because there are more workers than partitions", lambda _: None),
    ("runs all of its partitions, or has none because there are more workers than partitions", assigned_nothing),
    ("some partitions stand still (`halted`, `refused`)", all_in_state(State.HALTED, 1)),
    ("all of its partitions stand still", all_in_state(State.HALTED)),
    (f"{UNHEARD} hasn't answered for `broker_session_timeout`", unheard("group")),
    (f"{UNHEARD} hasn't answered for `broker_session_timeout`", unheard(TopicPartition("in", 1))),
    ("its machine's clock is wrong by more than `clock_skew_margin`", an_hour_ahead),
    ("is ending", ending),
    ("its dispatcher ended", broken),
]


def the_table() -> dict[str, list[int]]:
    """Give what the page says of each situation: live, startup, ready."""
    page = (Path(__file__).parents[4] / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (200|503) \| (200|503) \| (200|503) \|$", page, re.MULTILINE)
    return {situation: [int(status) for status in statuses] for situation, *statuses in rows}


def test_the_page_has_all_situations() -> None:
    assert list(the_table()) == list(dict.fromkeys(situation for situation, _ in SITUATIONS))


@pytest.mark.parametrize(("situation", "arrange"), SITUATIONS)
def test_each_situation_is_as_the_page_says(situation: str, arrange: Callable[[World], object]) -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        arrange(world)
        live, startup, ready = the_table()[situation]
        pages = ("/health/live", "/health/startup", "/health/ready", "/health")
        found = asyncio.run(asked(world.app, *pages))
    assert [status for status, _ in found] == [live, startup, ready, ready]
    assert bool(found[2][1]["missing"]) == (ready == 503)
    told = {name: found[3][1][name] for name in ("live", "startup", "ready")}
    assert told == {"live": live == 200, "startup": startup == 200, "ready": ready == 200}


def test_a_broker_may_be_away_for_a_session() -> None:
    world = World()
    now_s = [0.0]
    silence = Silence(lambda: now_s[0])
    with ActorTestDriver(world.app, partitions=2) as driver:
        world.adopt(driver)
        world.app.actor_service._source = SimpleNamespace(silence=silence)  # type: ignore[assignment]
        silence._asked(["group", TopicPartition("in", 0)])
        now_s[0] = float(world.app.conf.broker_session_timeout)
        assert what_is_missing(world.app) == []
        now_s[0] += 1
        assert what_is_missing(world.app) == [
            "the group's coordinator hasn't taken a heartbeat for 11 s",
            "1 of 2 partitions: the leader hasn't answered for 11 s",
        ]
        silence._answered(["group", TopicPartition("in", 0)])
        assert what_is_missing(world.app) == []


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
