"""What a worker compares with the registry of its app before it uses a changelog."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import uuid
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from actors import App, ConfigurationError, Context, NewerVersionError
from actors._core.task.takeover import LogBounds
from actors._faust.setup import Setup
from actors._faust.startup import registry
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord
from actors._kafka.connection import broker_errors
from actors.declare.values.shapes import ValueType
from actors.errors import LostChangelogError


def recorded(store: str) -> StoreRecord:
    """Return the record of a store of app `shop` with the changelog that has the id 1."""
    return StoreRecord(
        store=store,
        changelog=f"shop--{store}-changelog",
        at_ms=1,
        topic_id="1",
        partitions=1,
        version=1,
        shapes=[],
        former={},
        came_after=[],
        contents="values",
        windows="",
        is_given_up=False,
    )


class Brokers:
    """The registry and the topics of apps, in memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.records: dict[str, list[Any]] = {}
        self.hidden: set[str] = set()
        self.reads: list[str] = []
        self._numbers = itertools.count(1)
        patch.setattr(registry, "write_stores", self.write_stores)

    def make(self, name: str) -> TopicInfo:
        self.records.setdefault(name, [])
        return self.topics.setdefault(name, TopicInfo(name, uuid.UUID(int=next(self._numbers)), 1))

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        log = self.records[topic]
        log.append(SimpleNamespace(offset=len(log), key=key, value=value))

    async def write_stores(self, connection: Any, topic: str, records: Any) -> None:
        for store, record in records.items():
            self.append(topic, b"store:" + store.encode(), msgspec.json.encode(record))

    async def existing(self, names: Any) -> dict[str, TopicInfo]:
        wanted = list(names)
        with broker_errors("topics"):
            if hidden := self.hidden.intersection(wanted):
                raise TopicAuthorizationFailedError(*hidden)
        return {name: self.topics[name] for name in wanted if name in self.topics}

    async def bounds(self, source: Any) -> LogBounds:
        return LogBounds(0, len(self.records[source.topic]))

    async def read(self, source: Any, start: int, end: int) -> Any:
        self.reads.append(source.topic)
        yield self.records[source.topic][start:end], end

    def worker(self, name: str, store: str, value_type: Any = int, **options: Any) -> StoreRegistry:
        """The start of a worker of an app that has one actor with one store."""
        app = App(name, broker="kafka://127.0.0.1:1", **options)

        @app.actor(app.topic(f"{name}--in"), name="counter", stores=[app.store(store, value_type=value_type)])
        def count(ctx: Context, value: Any) -> None:
            """Count nothing."""

        setup: Any = Setup(app)
        self.make(setup.owners_topic)
        brokers: Any = self
        return StoreRegistry(
            setup, brokers, brokers, KafkaOwners(setup.owners_topic, brokers), SimpleNamespace(wall_ms=lambda: 5)
        )

    async def start(self, worker: StoreRegistry) -> None:
        await worker.check()
        await worker.confirm({name: self.make(name) for name in worker._changelogs.values()})


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


async def test_a_topic_that_is_replaced_during_a_start_ends_it(brokers: Brokers) -> None:
    worker = brokers.worker("shop", "orders")
    await brokers.start(worker)
    await worker.check()
    del brokers.topics["shop--orders-changelog"]
    with pytest.raises(ConfigurationError, match="start the worker again"):
        await worker.confirm({name: brokers.make(name) for name in worker._changelogs.values()})
    await brokers.start(brokers.worker("shop", "orders", lost_changelog="rebuild"))


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_changelog_that_was_deleted_is_not_replaced_unasked(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    monkeypatch.setattr(registry, "SEEN_S", 0.0)
    await brokers.start(brokers.worker("shop", "orders"))
    former = brokers.topics.pop("shop--orders-changelog")
    if is_made_again:
        brokers.make("shop--orders-changelog")
    before = list(brokers.records["shop-actors-owners"])
    for _ in range(2):
        with pytest.raises(LostChangelogError, match='lost_changelog="restore"') as refused:
            await brokers.start(brokers.worker("shop", "orders"))
        assert str(former.topic_id) in str(refused.value)
        assert ("shop--orders-changelog" in brokers.topics) is is_made_again, "a start that is refused makes no topic"
    assert brokers.records["shop-actors-owners"] == before

    # A start with a choice that dies before it has confirmed leaves the refusal as it is.
    await brokers.worker("shop", "orders", lost_changelog="restore").check()
    brokers.make("shop--orders-changelog")
    with pytest.raises(LostChangelogError, match=str(former.topic_id)):
        await brokers.start(brokers.worker("shop", "orders"))
    chosen = brokers.worker("shop", "orders", lost_changelog="restore")
    await brokers.start(chosen)
    assert chosen._setup.recorded["orders"].topic_id == str(brokers.topics["shop--orders-changelog"].topic_id)
    await brokers.start(brokers.worker("shop", "orders"))


async def test_a_store_is_not_written_back_to_a_changelog_of_another_number_of_partitions(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SEEN_S", 0.0)
    brokers.make("shop--in")
    await brokers.start(brokers.worker("shop", "orders"))
    former = brokers.topics.pop("shop--orders-changelog")
    brokers.topics["shop--in"] = dataclasses.replace(brokers.topics["shop--in"], partitions=3)
    for lost in ("restore", "restore_older"):
        with pytest.raises(
            ConfigurationError, match=r"was partitioned for 1, and topic shop--in, .* has 3: keys"
        ) as no:
            await brokers.start(brokers.worker("shop", "orders", lost_changelog=lost))
        assert "Re-create the input with 1 partitions" in str(no.value)
        assert "shop--orders-changelog" not in brokers.topics, "a start that is refused makes no topic"
    brokers.topics["shop--in"] = dataclasses.replace(brokers.topics["shop--in"], partitions=1)
    await brokers.start(brokers.worker("shop", "orders", lost_changelog="restore"))
    # Without the state, another number is as good.
    del brokers.topics["shop--orders-changelog"]
    brokers.topics["shop--in"] = dataclasses.replace(brokers.topics["shop--in"], partitions=3)
    brokers.topics["shop--orders-changelog"] = dataclasses.replace(former, partitions=3)
    emptied = brokers.worker("shop", "orders", lost_changelog="rebuild")
    await brokers.start(emptied)
    assert emptied._setup.recorded["orders"].partitions == 3


async def test_two_apps_whose_names_would_make_one_have_two_changelogs(brokers: Brokers) -> None:
    for app, store in (("shop", "eu-orders"), ("shop-eu", "orders")):
        await brokers.start(brokers.worker(app, store))
    assert {"shop--eu-orders-changelog", "shop-eu--orders-changelog"} <= brokers.topics.keys()


async def test_a_usual_start_writes_nothing(brokers: Brokers) -> None:
    await brokers.start(brokers.worker("shop-eu", "orders"))
    before = list(brokers.records["shop-eu-actors-owners"])
    brokers.reads.clear()
    await brokers.start(brokers.worker("shop-eu", "orders"))
    assert brokers.records["shop-eu-actors-owners"] == before
    assert set(brokers.reads) == {"shop-eu-actors-owners"}


async def test_a_changelogs_name_is_the_apps_own_and_nobody_elses(brokers: Brokers) -> None:
    for named, match in (
        ({"orders": "mine"}, "has to begin with shop--, .* write {'orders': 'shop--mine'}"),
        ({"orders": "shop-eu--orders-changelog"}, "has to begin with shop--"),
        ({"order": "shop-x"}, "has no store of that name"),
        ({"orders": "shop--in"}, "is another topic of this app too"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            await brokers.worker("shop", "orders", changelogs=named).check()


class Small(msgspec.Struct):
    a: int = 0


class Large(msgspec.Struct):
    a: int = 0
    b: int = 0


class Other(msgspec.Struct):
    c: int = 0


async def test_shapes_may_grow_older_programs_start_and_others_are_refused(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    for value_type in (Small, Large):
        await brokers.start(brokers.worker("shop", "orders", value_type))
    assert "newer program" not in caplog.text
    await brokers.start(brokers.worker("shop", "orders", Small))
    warning = "a newer program has run on this state. Compared with it: field b (int) is missing"
    assert caplog.text.count(warning) == 1
    with pytest.raises(ConfigurationError, match="Set version to 2 and give upgrades a function for 1"):
        await brokers.start(brokers.worker("shop", "orders", Other))
    # A changelog that begins empty has none of the old values. One to which they are written back has.
    del brokers.topics["shop--orders-changelog"]
    with pytest.raises(ConfigurationError, match="Set version to 2"):
        await brokers.start(brokers.worker("shop", "orders", Other, lost_changelog="restore"))
    del brokers.topics["shop--orders-changelog"]
    await brokers.start(brokers.worker("shop", "orders", Other, lost_changelog="rebuild"))


async def test_a_topic_that_is_not_seen_for_a_moment_keeps_its_shapes(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LOOK_S", 0.0)
    await brokers.start(brokers.worker("shop", "orders", Small))
    seen = brokers.topics.pop("shop--orders-changelog")
    claim = asyncio.create_task(brokers.worker("shop", "orders", Large).check())
    await asyncio.sleep(0)
    brokers.topics["shop--orders-changelog"] = seen
    await claim
    # An operator's choice is taken at once: the topic is missing, or nearly.
    del brokers.topics["shop--orders-changelog"]
    start = brokers.worker("shop", "orders", Other, lost_changelog="rebuild")
    await start.check()
    brokers.topics["shop--orders-changelog"] = seen
    with pytest.raises(ConfigurationError, match="Set version to 2"):
        await start.confirm({"shop--orders-changelog": seen})
    with pytest.raises(ConfigurationError, match="Set version to 2"):
        await brokers.start(brokers.worker("shop", "orders", Other))
    await brokers.start(brokers.worker("shop", "orders", Large))


async def test_a_raised_version_begins_anew_and_a_lower_one_starts_with_a_warning(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    def worker(value_type: Any, version: int) -> StoreRegistry:
        start = brokers.worker("shop", "orders", value_type)
        start._app.value_types["orders"] = ValueType(value_type, version)
        return start

    await brokers.start(worker(Small, 1))
    await brokers.start(worker(Other, 2))
    before = list(brokers.records["shop-actors-owners"])
    await brokers.start(worker(Small, 1))
    assert caplog.text.count("a newer program has written values of version 2, this one knows up to 1") == 1
    rolled_back = worker(Small, 1)
    await brokers.start(rolled_back)
    refuse = rolled_back._app.stores["orders"].refuse_newer
    assert refuse is not None, "a write looks at the value that it would replace"
    with pytest.raises(NewerVersionError):
        refuse(b"\0v\0\2{}")
    assert brokers.records["shop-actors-owners"] == before
    with pytest.raises(ConfigurationError, match="Set version to 3"):
        await brokers.start(worker(Large, 2))
    # A program that is made from the one that was rolled back: values of its version are still there.
    with pytest.raises(ConfigurationError, match="Set version to 2"):
        await brokers.start(worker(Other, 1))
    await brokers.start(worker(Large, 1))


async def test_topics_of_features_that_the_app_never_had_need_not_be_visible(brokers: Brokers) -> None:
    brokers.hidden = {f"shop--counter-{kind}-changelog" for kind in ("timers", "effects", "parked")}
    await brokers.start(brokers.worker("shop", "orders"))


async def test_a_changelog_that_the_app_has_recorded_has_to_be_visible(brokers: Brokers) -> None:
    for gone in ("counter-timers", "former"):
        record = recorded(gone)
        brokers.make("shop-actors-owners")
        await brokers.write_stores(None, "shop-actors-owners", {gone: record})
        brokers.hidden = {record.changelog}
        with pytest.raises(ConfigurationError, match=f"faust state forget {gone}"):
            await brokers.start(brokers.worker("shop", "orders"))
        brokers.records["shop-actors-owners"].clear()
