"""Repartition topics: how many partitions they get, and that only what tasks have committed is deleted from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from actors import App
from actors._core.task.lifecycle import State
from actors._faust import inputs
from actors._kafka.admin.control import TopicInfo
from actors.coordination import coordination
from actors.errors import ConfigurationError
from actors.ports import TopicPartition

TOPIC = "repartition"


class Brokers:
    """Topics whose deletions are noted; `error` is raised by the first one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.info = TopicInfo(TOPIC, uuid4(), 3)
        self.deleted: list[Mapping[TopicPartition, int]] = []
        self._error = error

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        return dict.fromkeys(names, self.info)

    async def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.deleted.append(offsets)


def a_task(partition: int, committed: int | None, state: State = State.RUNNING) -> Any:
    sources = [TopicPartition("orders", partition), TopicPartition(TOPIC, partition)]
    meters = SimpleNamespace(committed_offsets={"orders": 99, TOPIC: committed})
    return SimpleNamespace(state=state, sources=sources, meters=meters)


async def purged(monkeypatch: pytest.MonkeyPatch, brokers: Brokers, tasks: list[Any], made: TopicInfo) -> None:
    monkeypatch.setattr(inputs, "PURGE_S", 0)
    purging = asyncio.create_task(inputs.purge(brokers, {TOPIC: made}, tasks))  # type: ignore[arg-type]
    for _ in range(50):
        await asyncio.sleep(0)
    purging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await purging


async def test_what_running_tasks_have_committed_is_deleted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    tasks = [a_task(0, 5), a_task(1, 7, State.HALTED), a_task(2, None)]
    await purged(monkeypatch, brokers, tasks, brokers.info)
    assert brokers.deleted == [{TopicPartition(TOPIC, 0): 5}]


async def test_of_a_topic_that_was_made_again_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    await purged(monkeypatch, brokers, [a_task(0, 5)], TopicInfo(TOPIC, uuid4(), 3))
    assert not any(brokers.deleted)


async def test_a_refusal_is_told_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers(ConfigurationError("TopicAuthorizationFailedError"))
    await purged(monkeypatch, brokers, [a_task(0, 5)], brokers.info)
    assert f"what is handled of {TOPIC} can't be deleted" in caplog.text
    assert brokers.deleted == [{TopicPartition(TOPIC, 0): 5}]


def test_all_inputs_of_an_actor_by_new_keys_have_the_partitions_of_one_topic() -> None:
    app = App("shop", store="memory://")
    three, five, direct = app.topic("three"), app.topic("five"), app.topic("direct")
    app.actor(three, five, by={three: "x", five: "x"}, name="both")(lambda ctx, value: None)
    app.actor(five, direct, by={five: "x"}, name="one")(lambda ctx, value: None)
    assert inputs.repartitions(app) == {
        "shop--both-three-repartition": "three",
        "shop--both-five-repartition": "three",
        "shop--one-five-repartition": "direct",
    }


def test_another_version_of_the_app_has_topics_of_its_own() -> None:
    """They would have the records of the former one too, and its workers would delete what it has handled."""
    app = App("shop", broker="kafka://127.0.0.1:1", version=2)
    app.actor(app.topic("orders"), by="x", name="one")(lambda ctx, value: None)
    coordination(app)
    made = [*inputs.repartitions(app), *app.made_topics]
    assert len(made) == 3
    assert all(topic.startswith(app.conf.id) for topic in made), made


def test_a_version_that_comes_after_the_actors_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    app.config_from_object({"version": 2})
    with pytest.raises(ConfigurationError, match=r"version=2 .*: write App\('shop', version=2\)"):
        _ = app.conf
