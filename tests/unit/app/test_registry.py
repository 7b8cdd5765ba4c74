"""What a worker compares with the registries of its app and of others before it uses a changelog."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import uuid
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from actors import App, ConfigurationError, Context, NewerVersionError
from actors._core.task.claims import possible_owners, store_of
from actors._core.task.takeover import LogBounds
from actors._faust.setup import Setup
from actors._faust.startup import registry
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord
from actors._kafka.connection import broker_errors
from actors.admin import adopt
from actors.declare.values.shapes import ValueType
from actors.errors import BrokerUnavailableError, LostChangelogError

OWNER = b'{"actor":"counter","partition":0,"epoch":1,"worker":"w","address":"","at_ms":1}'


def claim_of(store: str) -> StoreRecord:
    return StoreRecord(store=store, changelog="shop-eu-orders-changelog", at_ms=1)


class Brokers:
    """Registries and topics of several apps, in memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.records: dict[str, list[Any]] = {}
        self.unread: dict[str, Exception] = {}
        self.hidden: set[str] = set()
        self.random: Random | None = None
        self.before_write: Callable[[], Awaitable[None]] | None = None
        self.reads: list[str] = []
        self._numbers = itertools.count(1)
        for module in (registry, adopt):
            patch.setattr(module, "write_stores", self.write_stores)

    def make(self, name: str) -> TopicInfo:
        self.records.setdefault(name, [])
        return self.topics.setdefault(name, TopicInfo(name, uuid.UUID(int=next(self._numbers)), 1))

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        log = self.records[topic]
        log.append(SimpleNamespace(offset=len(log), key=key, value=value))

    async def pause(self) -> None:
        """Let other starts go on, for a while that the seed says."""
        for _ in range(0 if self.random is None else self.random.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)

    async def write_stores(self, connection: Any, topic: str, records: Any) -> None:
        act, self.before_write = self.before_write, None
        if act is not None:
            await act()
        await self.pause()
        for store, record in records.items():
            self.append(topic, b"store:" + store.encode(), msgspec.json.encode(record))

    async def existing(self, names: Any) -> dict[str, TopicInfo]:
        await self.pause()
        wanted = list(names)
        with broker_errors("topics"):
            if hidden := self.hidden.intersection(wanted):
                raise TopicAuthorizationFailedError(*hidden)
        return {name: self.topics[name] for name in wanted if name in self.topics}

    async def bounds(self, source: Any) -> LogBounds:
        await self.pause()
        with broker_errors(source.topic):
            if source.topic in self.unread:
                raise self.unread[source.topic]
        return LogBounds(0, len(self.records[source.topic]))

    async def read(self, source: Any, start: int, end: int) -> Any:
        self.reads.append(source.topic)
        yield self.records[source.topic][start:end], end

    def worker(self, name: str, store: str, value_type: Any = int, **options: Any) -> StoreRegistry:
        """The start of a worker of an app that has one actor with one store."""
        app = App(name, broker="kafka://127.0.0.1:1", **options)

        @app.actor(app.topic(f"{name}-in"), name="counter", stores=[app.store(store, value_type=value_type)])
        def count(ctx: Context, value: Any) -> None:
            """Count nothing."""

        setup: Any = Setup(app)
        self.make(setup.owners_topic)
        brokers: Any = self
        return StoreRegistry(
            setup, brokers, brokers, KafkaOwners(setup.owners_topic, brokers), SimpleNamespace(wall_ms=lambda: 5)
        )

    async def start(self, worker: StoreRegistry, delay: int = 0) -> None:
        for _ in range(delay):
            await asyncio.sleep(0)
        await worker.claim()
        await self.pause()
        await worker.confirm({name: self.make(name) for name in worker._changelogs.values()})


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_a_changelog_may_be_that_of_each_app_whose_name_it_begins_with():
    assert possible_owners("shop-eu-orders-changelog", "shop-eu") == ["shop", "shop-eu-orders"]
    assert store_of("shop-eu-orders-changelog", "shop") == "eu-orders"
    assert store_of("shop-eu-orders-changelog", "shop-eu-orders") is None
    assert store_of("shop-x", "shop") is None


@pytest.mark.parametrize("order", [("shop", "shop-eu"), ("shop-eu", "shop")])
async def test_the_second_app_is_refused_and_leaves_no_claim(brokers: Brokers, order: tuple[str, str]) -> None:
    stores = {"shop": "eu-orders", "shop-eu": "orders"}
    first, second = order
    await brokers.start(brokers.worker(first, stores[first]))
    with pytest.raises(ConfigurationError, match=f"of app {second}, and of store {stores[first]} of app {first}"):
        await brokers.start(brokers.worker(second, stores[second]))
    await brokers.start(brokers.worker(first, stores[first]))
    # Its topic deleted, a claim counts for nothing.
    del brokers.topics["shop-eu-orders-changelog"]
    await brokers.start(brokers.worker(second, stores[second]))
    with pytest.raises(ConfigurationError, match="Each would restore the other's state"):
        await brokers.start(brokers.worker(first, stores[first]))


@pytest.mark.parametrize("seed", range(60))
async def test_of_two_apps_whose_workers_start_at_once_only_one_uses_the_changelog(brokers: Brokers, seed: int) -> None:
    brokers.random = Random(seed)
    stores = {"shop": "eu-orders", "shop-eu": "orders"}
    workers = [(name, brokers.worker(name, store)) for name, store in stores.items() for _ in range(3)]
    starts = [brokers.start(worker, delay=brokers.random.randrange(12)) for _, worker in workers]
    results = await asyncio.gather(*starts, return_exceptions=True)
    assert all(result is None or isinstance(result, ConfigurationError) for result in results)
    started = {name for (name, _), result in zip(workers, results, strict=True) if result is None}
    assert len(started) <= 1
    brokers.random = None
    owner, other = sorted(stores, key=lambda name: name not in started)
    own = {stores[other]: f"{other}-own-changelog"}
    await brokers.start(brokers.worker(other, stores[other], changelogs=own))
    await brokers.start(brokers.worker(owner, stores[owner]))


async def test_an_app_that_starts_while_another_one_claims_sees_its_topic(brokers: Brokers) -> None:
    late, early = brokers.worker("shop", "eu-orders"), brokers.worker("shop-eu", "orders")
    brokers.before_write = lambda: brokers.start(early)
    with pytest.raises(ConfigurationError, match="store orders of app shop-eu, which uses it"):
        await brokers.start(late)


async def test_a_claim_or_a_topic_that_is_removed_during_a_start_ends_it(brokers: Brokers) -> None:
    worker = brokers.worker("shop", "orders")
    await worker.claim()
    brokers.append("shop-actors-owners", b"store:orders", None)
    with pytest.raises(ConfigurationError, match=r"topic shop-orders-changelog, or .* start the worker again"):
        await worker.confirm({name: brokers.make(name) for name in worker._changelogs.values()})
    await brokers.start(worker)
    await worker.claim()
    del brokers.topics["shop-orders-changelog"]
    with pytest.raises(ConfigurationError, match="start the worker again"):
        await worker.confirm({name: brokers.make(name) for name in worker._changelogs.values()})
    await brokers.start(brokers.worker("shop", "orders", lost_changelog="rebuild"))


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_changelog_that_was_deleted_is_not_replaced_unasked(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    monkeypatch.setattr(registry, "SEEN_S", 0.0)
    await brokers.start(brokers.worker("shop", "orders"))
    former = brokers.topics.pop("shop-orders-changelog")
    if is_made_again:
        brokers.make("shop-orders-changelog")
    before = list(brokers.records["shop-actors-owners"])
    for _ in range(2):
        with pytest.raises(LostChangelogError, match='lost_changelog="restore"') as refused:
            await brokers.start(brokers.worker("shop", "orders"))
        assert str(former.topic_id) in str(refused.value)
        assert ("shop-orders-changelog" in brokers.topics) is is_made_again, "a start that is refused makes no topic"
    assert brokers.records["shop-actors-owners"] == before

    # A start with a choice that dies before it has confirmed leaves the refusal as it is.
    await brokers.worker("shop", "orders", lost_changelog="restore").claim()
    brokers.make("shop-orders-changelog")
    with pytest.raises(LostChangelogError, match=str(former.topic_id)):
        await brokers.start(brokers.worker("shop", "orders"))
    chosen = brokers.worker("shop", "orders", lost_changelog="restore")
    await brokers.start(chosen)
    assert chosen._setup.recorded["orders"].former_id == str(former.topic_id)
    later = brokers.worker("shop", "orders")
    await brokers.start(later)
    assert later._setup.recorded["orders"].former_id == str(former.topic_id)


async def test_a_store_is_not_written_back_to_a_changelog_of_another_number_of_partitions(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SEEN_S", 0.0)
    brokers.make("shop-in")
    await brokers.start(brokers.worker("shop", "orders"))
    former = brokers.topics.pop("shop-orders-changelog")
    brokers.topics["shop-in"] = dataclasses.replace(brokers.topics["shop-in"], partitions=3)
    for lost in ("restore", "restore_older"):
        with pytest.raises(ConfigurationError, match=r"was partitioned for 1, and topic shop-in, .* has 3: keys") as no:
            await brokers.start(brokers.worker("shop", "orders", lost_changelog=lost))
        assert "Re-create the input with 1 partitions" in str(no.value)
        assert "shop-orders-changelog" not in brokers.topics, "a start that is refused makes no topic"
    brokers.topics["shop-in"] = dataclasses.replace(brokers.topics["shop-in"], partitions=1)
    await brokers.start(brokers.worker("shop", "orders", lost_changelog="restore"))
    # Without the state, another number is as good.
    del brokers.topics["shop-orders-changelog"]
    brokers.topics["shop-in"] = dataclasses.replace(brokers.topics["shop-in"], partitions=3)
    brokers.topics["shop-orders-changelog"] = dataclasses.replace(former, partitions=3)
    emptied = brokers.worker("shop", "orders", lost_changelog="rebuild")
    await brokers.start(emptied)
    assert emptied._setup.recorded["orders"].partitions == 3


async def test_a_claim_of_an_app_that_died_while_it_started_counts(brokers: Brokers) -> None:
    await brokers.worker("shop", "eu-orders").claim()
    with pytest.raises(ConfigurationError, match="app shop, which claimed it and hasn't finished its start"):
        await brokers.worker("shop-eu", "orders").claim()
    await brokers.start(brokers.worker("shop", "eu-orders"))


async def test_two_apps_that_claimed_at_once_are_refused_until_one_has_another_changelog(brokers: Brokers) -> None:
    for name, store in (("shop", "eu-orders"), ("shop-eu", "orders")):
        brokers.make(f"{name}-actors-owners")
        await brokers.worker(name, store)._write({store: claim_of(store)})
    for name, store in (("shop", "eu-orders"), ("shop-eu", "orders")):
        with pytest.raises(ConfigurationError, match=r"hasn't finished its start .*delete topic shop.*-actors-owners"):
            await brokers.start(brokers.worker(name, store))
    await brokers.start(brokers.worker("shop-eu", "orders", changelogs={"orders": "shop-eu-own-changelog"}))
    await brokers.start(brokers.worker("shop", "eu-orders"))


async def test_a_usual_start_reads_no_other_registry_and_writes_nothing(brokers: Brokers) -> None:
    brokers.make("shop-actors-owners")
    await brokers.start(brokers.worker("shop-eu", "orders"))
    before = list(brokers.records["shop-eu-actors-owners"])
    brokers.reads.clear()
    await brokers.start(brokers.worker("shop-eu", "orders"))
    assert brokers.records["shop-eu-actors-owners"] == before
    assert set(brokers.reads) == {"shop-eu-actors-owners"}


async def test_a_registry_without_stores_warns_or_refuses(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    changelog = "shop-eu-orders-changelog"
    for topic in ("shop-actors-owners", changelog):
        brokers.make(topic)
    brokers.append("shop-actors-owners", b"counter/0", OWNER)
    with pytest.raises(ConfigurationError, match="may use it: the topic was there before this app ever ran"):
        await brokers.start(brokers.worker("shop-eu", "orders"))
    await brokers.start(brokers.worker("shop-eu", "orders", changelogs={"orders": changelog}))
    brokers.records["shop-eu-actors-owners"].clear()
    brokers.append("shop-eu-actors-owners", b"counter/0", OWNER)
    await brokers.start(brokers.worker("shop-eu", "orders"))
    assert "would be the changelog of a store eu-orders of app shop too" in caplog.text


async def test_a_registry_that_may_not_be_read_is_passed_over_with_one_warning(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.make("shop-actors-owners")
    brokers.unread["shop-actors-owners"] = TopicAuthorizationFailedError()
    await brokers.start(brokers.worker("shop-eu", "orders"))
    assert caplog.text.count("topic shop-actors-owners can't be read") == 1


async def test_a_registry_that_cannot_be_read_for_the_moment_ends_the_start(brokers: Brokers) -> None:
    brokers.make("shop-actors-owners")
    brokers.unread["shop-actors-owners"] = KafkaTimeoutError()
    with pytest.raises(BrokerUnavailableError, match="KafkaTimeoutError"):
        await brokers.start(brokers.worker("shop-eu", "orders"))


async def test_a_changelogs_name_is_the_apps_own_and_nobody_elses(brokers: Brokers) -> None:
    for named, match in (
        ({"orders": "mine"}, "has to begin with shop-"),
        ({"order": "shop-x"}, "has no store of that name"),
        ({"orders": "shop-in"}, "is another topic of this app too"),
        ({"orders": "shop-actors-owners"}, "is another topic of this app too"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            await brokers.worker("shop", "orders", changelogs=named).claim()


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
    warning = "a newer program has run on this state. Compared with it: field b (int) isn't there"
    assert caplog.text.count(warning) == 1
    with pytest.raises(ConfigurationError, match="Set version to 2 and give upgrades a function for 1"):
        await brokers.start(brokers.worker("shop", "orders", Other))
    # A changelog that begins empty has none of the old values. One to which they are written back has.
    del brokers.topics["shop-orders-changelog"]
    with pytest.raises(ConfigurationError, match="Set version to 2"):
        await brokers.start(brokers.worker("shop", "orders", Other, lost_changelog="restore"))
    del brokers.topics["shop-orders-changelog"]
    await brokers.start(brokers.worker("shop", "orders", Other, lost_changelog="rebuild"))


async def test_a_topic_that_is_not_seen_for_a_moment_keeps_its_shapes(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LOOK_S", 0.0)
    await brokers.start(brokers.worker("shop", "orders", Small))
    seen = brokers.topics.pop("shop-orders-changelog")
    claim = asyncio.create_task(brokers.worker("shop", "orders", Large).claim())
    await asyncio.sleep(0)
    brokers.topics["shop-orders-changelog"] = seen
    await claim
    # An operator's choice is taken at once: the topic is missing, or nearly.
    del brokers.topics["shop-orders-changelog"]
    start = brokers.worker("shop", "orders", Other, lost_changelog="rebuild")
    await start.claim()
    brokers.topics["shop-orders-changelog"] = seen
    with pytest.raises(ConfigurationError, match="Set version to 2"):
        await start.confirm({"shop-orders-changelog": seen})
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


async def test_a_changelog_that_was_copied_keeps_what_is_known_of_its_values(brokers: Brokers) -> None:
    def worker(value_type: Any, version: int) -> StoreRegistry:
        start = brokers.worker("shop", "orders", value_type, changelogs={"orders": "shop-copied"})
        start._app.value_types["orders"] = ValueType(value_type, version)
        return start

    for value_type, version in ((Small, 1), (Other, 2)):
        first = brokers.worker("shop", "orders", value_type)
        first._app.value_types["orders"] = ValueType(value_type, version)
        await brokers.start(first)
    world: Any = brokers
    brokers.make("shop-copied")
    setup = worker(Small, 1)._setup
    await adopt.carry_over(setup, world, world, "orders", "shop-orders-changelog", "shop-copied")
    with pytest.raises(ConfigurationError, match="Set version to 3"):
        await brokers.start(worker(Small, 2))
    rolled_back = worker(Small, 1)
    await brokers.start(rolled_back)
    assert rolled_back._app.stores["orders"].refuse_newer is not None
    await brokers.start(worker(Other, 2))
    assert rolled_back._setup.recorded["orders"].copied_id == str(brokers.topics["shop-orders-changelog"].topic_id)
    # Of a topic that isn't the copy nothing is known.
    del brokers.topics["shop-copied"]
    options = {"changelogs": {"orders": "shop-copied"}, "lost_changelog": "rebuild"}
    rebuilt = brokers.worker("shop", "orders", Small, **options)
    rebuilt._app.value_types["orders"] = ValueType(Small, 2)
    await brokers.start(rebuilt)
    assert not rebuilt._setup.recorded["orders"].copied_id


async def test_nothing_is_carried_over_from_a_changelog_that_was_not_the_stores(brokers: Brokers) -> None:
    await brokers.start(brokers.worker("shop", "orders", Small))
    before = list(brokers.records["shop-actors-owners"])
    world: Any = brokers
    for name in ("shop-copied", "other"):
        brokers.make(name)
    setup = brokers.worker("shop", "orders", Small)._setup
    await adopt.carry_over(setup, world, world, "orders", "other", "shop-copied")
    del brokers.topics["shop-orders-changelog"]
    brokers.make("shop-orders-changelog")
    await adopt.carry_over(setup, world, world, "orders", "shop-orders-changelog", "shop-copied")
    assert brokers.records["shop-actors-owners"] == before


async def test_topics_of_features_that_the_app_never_had_need_not_be_visible(brokers: Brokers) -> None:
    brokers.hidden = {f"shop-counter-{kind}-changelog" for kind in ("timers", "effects", "parked")}
    await brokers.start(brokers.worker("shop", "orders"))


async def test_a_changelog_that_the_app_has_recorded_has_to_be_visible(brokers: Brokers) -> None:
    for gone in ("counter-timers", "former"):
        record = StoreRecord(store=gone, changelog=f"shop-{gone}-changelog", at_ms=1, topic_id="1")
        brokers.make("shop-actors-owners")
        await brokers.write_stores(None, "shop-actors-owners", {gone: record})
        brokers.hidden = {record.changelog}
        with pytest.raises(ConfigurationError, match=f"faust state forget {gone}"):
            await brokers.start(brokers.worker("shop", "orders"))
        brokers.records["shop-actors-owners"].clear()
