"""Streams through the FastAPI router, without a broker: their texts, and who may follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from actors._core.partitioner import partition_for
from actors.ports import TopicPartition
from actors.testing.fakes.views import FakeTopicLogs
from actors.web.events.routes import Broadcasts
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.network import Conditions, Network
from tests.unit.web.messages.bank import READ, make_app

CHANGELOG, PARTITIONS = "bank--Account-changelog", 3


@contextmanager
def following(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestClient, SimKafka]]:
    from random import Random

    cluster = SimKafka("group", marker_s=lambda: 0.0)
    cluster.make_topic(CHANGELOG, PARTITIONS, is_compacted=True)

    async def connect(_: Any) -> FakeTopicLogs:
        return FakeTopicLogs(cluster, Network(Random(0), Conditions(latency_s=(0.0, 0.0))))

    monkeypatch.setattr(Broadcasts, "_connect", connect)
    api = FastAPI()
    api.include_router(make_app().router(), prefix="/v1")
    with TestClient(api) as client:
        yield client, cluster


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/stores/Account/events", {}, 401),
        ("/v1/stores/Account/a/b/events", {"Authorization": f"Bearer {READ}"}, 400),
        ("/v1/stores/nothing/events", {"Authorization": f"Bearer {READ}"}, 404),
        ("/v1/stores/Account/events?from=x", {"Authorization": f"Bearer {READ}"}, 400),
        ("/v1/stores/Account/ada/events?from=7:1", {"Authorization": f"Bearer {READ}"}, 400),
    ],
)
def test_what_cant_be_followed_is_refused(
    monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str], status: int
) -> None:
    with following(monkeypatch) as (client, _):
        assert client.get(path, headers=headers).status_code == status


def test_changes_behind_a_position_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    with following(monkeypatch) as (client, cluster):
        home = TopicPartition(CHANGELOG, partition_for(b"a/b", PARTITIONS))
        closing = Broadcasts.close

        async def stop_soon(follow: Any) -> None:
            await asyncio.sleep(0.5)
            await closing(follow)

        follow = Broadcasts.follow

        async def follow_for_a_while(self: Broadcasts, *args: Any, **options: Any) -> Any:
            for cents in range(3):
                cluster.produce(home, [(b"a/b", b'{"cents":%d,"deposits":1}' % cents, [])])
            stream = await follow(self, *args, **options)
            self.stopping = asyncio.create_task(stop_soon(self))
            return stream

        monkeypatch.setattr(Broadcasts, "follow", follow_for_a_while)
        reply = client.get(
            f"/v1/stores/Account/a%2Fb/events?from={home.partition}:1", headers={"Authorization": f"Bearer {READ}"}
        )
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        events = [block.split("\n") for block in reply.text.split("\n\n")[:-1]]
        kinds = [line.removeprefix("event: ") for block in events for line in block if line.startswith("event: ")]
        assert kinds == ["position", "change", "change", "closed"]
        assert [f'"cents":{cents}' in reply.text for cents in range(3)] == [False, True, True]
