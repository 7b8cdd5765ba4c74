"""Shared maps and an app's views on the test driver."""

from dataclasses import dataclass
from typing import Any

import faust
import msgspec
import pytest

from actors import App, AskRejectedError, ConfigurationError, HandlerFailedError, Shared, UsageError, Versioned
from actors._faust.shared import CompareAndSet, Entry, Outcome, Put
from actors.testing import ActorTestDriver
from examples.shared_config import Job, Limits, answers, config, jobs, limits
from examples.shared_config import app as example


class Config(msgspec.Struct):
    pages: int
    names: list[str] = []


@dataclass
class Data:
    pages: int


class Record(faust.Record):
    pages: int


def an_app() -> App:
    return App("sharing", broker="kafka://127.0.0.1:1")


def written(driver: ActorTestDriver, shared: Shared[Any, Any], key: str, message: Any) -> tuple[bool, int, Any]:
    outcome: Outcome = driver.ask(shared.actor, key, message)
    now = shared.opened(outcome.now)
    return outcome.is_written, now.version, now.value


@pytest.mark.parametrize(
    ("value_type", "first", "second"),
    [
        (Config, Config(1), Config(2, ["x"])),
        (Data, Data(1), Data(2)),
        (Record, Record(pages=1), Record(pages=2)),
        (bytes, b"\xff1", b"\x002"),
        (str, "one", "two"),
        (int, 1, 2),
        (None, {"a": [1]}, ["b", None]),
    ],
)
def test_any_type_is_written_compared_and_read(value_type: Any, first: Any, second: Any):
    app = an_app()
    shared = app.shared("config", value_type=value_type)
    view = app.view(shared)
    with ActorTestDriver(app, partitions=3) as driver:
        seen: list[Any] = []
        view.on_change(lambda *change: seen.append(change))
        assert written(driver, shared, "k", shared.compare_and_set(None, first)) == (True, 1, first)
        assert view.get("k") == first
        assert written(driver, shared, "k", shared.compare_and_set(None, second)) == (False, 1, first)
        assert written(driver, shared, "k", shared.compare_and_set(second, second)) == (False, 1, first)
        ok, version, _ = written(driver, shared, "k", shared.compare_and_set(first, second))
        assert ok
        assert version > 1
        assert view.versioned("k") == Versioned(second, version)
        driver.crash(keep_disk=False)
        assert view.versioned("k") == Versioned(second, version)
        assert written(driver, shared, "k", shared.compare_and_set(second, None)) == (True, 0, None)
        assert "k" not in view
        assert view.versioned("k") == Versioned(None, 0)
        assert seen == [("k", None, first), ("k", first, second), ("k", second, None)]


def test_versions_grow_also_across_a_delete():
    app = an_app()
    shared = app.shared("config", value_type=int)
    with ActorTestDriver(app) as driver:
        versions = []
        for _ in range(3):
            for value in (1, 2):
                ok, version, _ = written(driver, shared, "k", shared.put(value))
                assert ok
                versions.append(version)
            assert not written(driver, shared, "k", shared.remove(version=version - 1))[0]
            assert written(driver, shared, "k", shared.remove(version=version)) == (True, 0, None)
        assert versions == sorted(set(versions))
        assert written(driver, shared, "k", shared.put(9, version=versions[-1])) == (False, 0, None)
        assert written(driver, shared, "k", shared.put(9, version=0))[0]


def test_what_isnt_of_the_maps_type_is_rejected_and_changes_nothing():
    app = an_app()
    shared = app.shared("config", value_type=Config)
    with ActorTestDriver(app) as driver:
        driver.ask(shared.actor, "k", shared.put(Config(1)))
        for message in (
            Put(msgspec.Raw(b'{"pages":"many"}')),
            CompareAndSet(msgspec.Raw(b'{"names":[],"pages":1}'), msgspec.Raw(b'{"pages":null}')),
        ):
            with pytest.raises(AskRejectedError, match="the value isn't of the map's type"):
                driver.ask(shared.actor, "k", message)
        with pytest.raises(ValueError, match="expected Config"):
            shared.put("x")
        assert driver.get(shared.actor, "k") == Entry(1, msgspec.Raw(b'{"pages":1,"names":[]}'))
        # The order of fields is nobody's business.
        reordered = CompareAndSet(msgspec.Raw(b'{"names":[],"pages":1}'), msgspec.Raw(b'{"pages":7}'))
        assert driver.ask(shared.actor, "k", reordered).is_written


def test_the_changelog_is_json_for_anybody():
    app = an_app()
    shared = app.shared("config", value_type=Config)
    raw = app.view(app.topic("sharing-config-changelog", key_type=str, value_type=None))
    with ActorTestDriver(app) as driver:
        driver.tell(shared.actor, "k", shared.put(Config(1)))
        assert raw.get("k") == {"version": 1, "value": {"pages": 1, "names": []}}


def test_handlers_read_views_and_write_by_tell():
    app = an_app()
    shared = app.shared("config", value_type=int)
    view = app.view(shared)
    doubles = app.topic("doubles", key_type=str, value_type=str)
    held = app.store("held", value_type=int)

    @app.actor(doubles, stores=[held])
    async def double(ctx, how):
        if how == "publish":
            await view.publish(ctx.key, 1)
        held.set(ctx.key, view.get(ctx.key, 0))
        ctx.tell(shared.actor, ctx.key, shared.put(2 * view.get(ctx.key, 5)))

    copy = app.view(held)
    with ActorTestDriver(app, partitions=2) as driver:
        for _ in range(3):
            driver.send(doubles, key="k", value="go")
        assert view.get("k") == 40
        assert copy.get("k") == 20
        driver.crash()
        assert dict(view.items()) == {"k": 40}
        with pytest.raises(HandlerFailedError, match=r"isn't a part of its commit: use\s+ctx.tell"):
            driver.send(doubles, key="k", value="publish")


def test_views_of_class_actors_and_what_has_no_view():
    app = an_app()
    shared = app.shared("config", value_type=int)
    states = app.view(shared.actor)
    with ActorTestDriver(app) as driver:
        driver.tell(shared.actor, "k", shared.put(3))
        assert states.get("k") == Entry(1, msgspec.Raw(b"3"))

    @app.actor(app.topic("in", key_type=str, value_type=str))
    def stateless(ctx, value): ...

    with pytest.raises(UsageError, match="has no state of its own"):
        app.view(stateless)
    with pytest.raises(UsageError, match="is no actor of this app"):
        app.view("nobody")
    with pytest.raises(ConfigurationError, match="actor config: the app has an actor of that name"):
        app.shared("config")
    with pytest.raises(ConfigurationError, match="names have up to 100 letters"):
        app.shared("con fig")


def test_the_example_refuses_what_is_over_the_limit():
    with ActorTestDriver(example, partitions=2) as driver:
        driver.send(jobs, key="1", value=Job("p7", 3))
        driver.ask(config.actor, "p7", config.put(Limits(10)))
        driver.send(jobs, key="2", value=Job("p7", 10))
        driver.send(jobs, key="3", value=Job("p7", 11))
        assert limits.get("p7") == Limits(10)
        driver.crash(keep_disk=False)
        driver.send(jobs, key="4", value=Job("p7", 11))
        found = {sent.key: sent.value for sent in driver.outputs(answers)}
        assert found == {"1": "no printer p7", "2": "printed", "3": "more than 10 pages", "4": "more than 10 pages"}


@pytest.mark.parametrize("expected", [Config(1), Config(1, [])])
def test_compare_and_set_takes_a_value_that_was_written_before_a_field_was_added(expected: Any):
    app = an_app()
    shared = app.shared("config", value_type=Config)
    with ActorTestDriver(app) as driver:
        driver.ask(shared.actor, "k", Put(msgspec.Raw(b'{"pages":1}')))
        assert written(driver, shared, "k", shared.compare_and_set(Config(2), Config(3)))[0] is False
        assert written(driver, shared, "k", shared.compare_and_set(expected, Config(3)))[::2] == (True, Config(3))
