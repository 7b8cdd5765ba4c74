"""What `faust feeds release` writes, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from actors import App, Context, Tumbling, aggregates
from actors._core.task.commit import CommitMark
from actors._core.task.feed_times import TimeMark
from actors._core.task.pauses import Release
from actors._faust.setup import Setup
from actors.admin import pausing
from actors.admin.operation import Caller
from actors.admin.pausing import ReleaseFeed
from actors.errors import ConfigurationError
from actors.ports import Committed, TopicPartition

MARK = CommitMark(3, 7, "ab", times=TimeMark(20, 30))


class Broker:
    """The topics `clicks`, `moved` and the registry, and what was committed of `clicks`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, metadata: str | None) -> None:
        self.written: list[Release] = []
        self._metadata = metadata

        @asynccontextmanager
        async def connect(*_: Any) -> AsyncIterator[Broker]:
            yield self

        async def write(_: Any, topic: str, release: Release) -> None:
            assert topic == "released-actors-owners"
            self.written.append(release)

        monkeypatch.setattr(pausing, "ControlPlane", SimpleNamespace(connect=connect))
        monkeypatch.setattr(pausing, "write_pause", write)

    async def topics(self, names: list[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(partitions=3) for name in names}

    async def committed(self, source: TopicPartition) -> Committed | None:
        assert source.topic == "clicks"
        return None if self._metadata is None else Committed(8, self._metadata)


def setup_of() -> Setup:
    app = App("released", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(clicks)
    async def forward(ctx: Context, text: str) -> None: ...

    moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])

    @app.actor(moved, stores=[tens])
    async def count(ctx: Context, _: str) -> None: ...

    @app.actor(app.topic("lone", key_type=str, value_type=str))
    async def lone(ctx: Context, _: str) -> None: ...

    return Setup(app)


async def released(actor: str, topic: str, partition: int) -> Any:
    """Release a feed; return its time as programs get it."""
    operation = ReleaseFeed(actor=actor, topic=topic, partition=partition)
    return (await operation.run(setup_of(), Caller("ann"))).content["time_ms"]


@pytest.mark.parametrize(
    ("metadata", "time_ms"),
    [(MARK.encode(), 30), ("3;7;ab", -1), ("of another program", -1), (None, -1)],
)
async def test_a_release_has_the_feeds_committed_time(
    monkeypatch: pytest.MonkeyPatch, metadata: str | None, time_ms: int
) -> None:
    broker = Broker(monkeypatch, metadata)
    assert await released("count", "clicks", 2) == (None if time_ms < 0 else time_ms)
    (release,) = broker.written
    assert (release.actor, release.topic, release.partition, release.by) == ("count", "clicks", 2, "ann")
    assert release.time_ms == time_ms


async def test_a_source_of_the_actors_own_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(monkeypatch, MARK.encode())
    assert await released("forward", "clicks", 0) == 20


@pytest.mark.parametrize(("actor", "feed", "text"), [
    ("counter", ("clicks", 0), "has no actor 'counter'"),
    ("count", ("moved", 0), "there is no feed 'moved'. Those of count: clicks"),
    ("count", ("clicks", 3), "actor count has no partition 3"),
    ("lone", ("lone", 0), "actor lone has one input, and its event time is that of its own records"),
])  # fmt: skip
async def test_what_is_no_feed_is_refused(
    monkeypatch: pytest.MonkeyPatch, actor: str, feed: tuple[str, int], text: str
) -> None:
    broker = Broker(monkeypatch, None)
    with pytest.raises(ConfigurationError, match=text):
        await released(actor, *feed)
    assert broker.written == []
