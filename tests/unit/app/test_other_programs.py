"""A start under an app's id whose program has other actors or stores than the one that ran."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import App, ConfigurationError, Context
from actors._faust.setup import Setup
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.owners import KafkaOwners
from actors.ports import OwnerInput, OwnerRecord
from tests.unit.app.test_registry import Brokers


class World(Brokers):
    """The brokers of one app, `shop`."""

    def program(self, *stores: str, actor: str = "counter", topic: str = "in", **options: Any) -> StoreRegistry:
        """A start of a program with one actor; of a store `new=old` the second is the name that it had."""
        app = App("shop", broker="kafka://127.0.0.1:1")
        pairs = [store.partition("=")[::2] for store in stores]
        held = [app.store(name, value_type=int, renamed_from=former or None) for name, former in pairs]

        @app.actor(app.topic(topic), name=actor, stores=held, **options)
        def count(ctx: Context, value: Any) -> None:
            """Count nothing."""

        setup: Any = Setup(app)
        self.make(setup.owners_topic)
        brokers: Any = self
        return StoreRegistry(
            setup, brokers, brokers, KafkaOwners(setup.owners_topic, brokers), SimpleNamespace(wall_ms=lambda: 5)
        )

    def took_over(self, actor: str, topic: str, at_ms: int = 1) -> None:
        """Write what a takeover leaves in the registry."""
        inputs = (OwnerInput(topic, "", None),)
        owner = OwnerRecord(actor, 0, epoch=1, worker="w1", address="", at_ms=at_ms, inputs=inputs)
        self.make("shop-actors-owners")
        self.append("shop-actors-owners", f"{actor}/0".encode(), msgspec.json.encode(owner))

    def wrote(self, store: str) -> None:
        """Have a store's changelog hold something."""
        self.append(f"shop--{store}-changelog", b"key", b"value")

    def record(self, store: str) -> dict[str, Any]:
        """What the registry says of a store."""
        records = self.records["shop-actors-owners"]
        return msgspec.json.decode([one.value for one in records if one.key == b"store:" + store.encode()][-1])

    def write(self, store: str, **changed: Any) -> None:
        """Write a store's record, with some of it changed; None leaves a field out."""
        record = {**self.record(store), **changed}
        known = {name: value for name, value in record.items() if value is not None}
        self.append("shop-actors-owners", b"store:" + store.encode(), msgspec.json.encode(known))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_a_program_with_none_of_the_actors_that_ran_is_refused(world: World) -> None:
    world.took_over("counter", "in")
    with pytest.raises(ConfigurationError, match=r"its actors are counter, and this program has other.* w1 .*App\("):
        await world.start(world.program(actor="other", topic="elsewhere"))


async def test_a_program_that_gives_an_input_to_another_actor_is_refused(world: World) -> None:
    world.took_over("counter", "in")
    with pytest.raises(ConfigurationError, match=r"topic in is the input of actor counter.*name=\"counter\""):
        await world.start(world.program(actor="other"))


async def test_a_program_whose_actor_has_another_input_is_refused(world: World) -> None:
    world.took_over("counter", "in")
    with pytest.raises(
        ConfigurationError, match=r"actor counter reads topic in2 now, and read in when .* w1 .*--actor counter"
    ):
        await world.start(world.program(topic="in2"))


async def test_the_newest_owner_says_what_an_actors_input_is(world: World) -> None:
    world.took_over("former", "in", at_ms=1)
    world.took_over("counter", "old-in", at_ms=2)
    world.took_over("counter", "in", at_ms=3)
    await world.start(world.program())


async def test_owners_of_an_earlier_release_say_no_input(world: World) -> None:
    world.took_over("counter", "")
    await world.start(world.program())


async def test_a_store_that_is_gone_while_its_changelog_has_state_is_refused(world: World) -> None:
    await world.start(world.program("old"))
    # Nothing was written: nothing is lost.
    await world.start(world.program())
    world.wrote("old")
    for program in (("new",), ()):
        with pytest.raises(ConfigurationError, match=r"topic shop--old-changelog.*renamed_from=\"old\".*forget old"):
            await world.start(world.program(*program))
    del world.topics["shop--old-changelog"]
    await world.start(world.program("new"))


async def test_a_renamed_store_keeps_its_changelog_in_both_directions_of_a_deploy(world: World) -> None:
    await world.start(world.program("old"))
    world.wrote("old")
    await world.start(world.program("new=old"))
    assert world.record("new")["changelog"] == "shop--old-changelog"
    assert world.record("new")["shapes"] == world.record("old")["shapes"] != []
    assert "shop--new-changelog" not in world.topics
    await world.start(world.program("old"))
    renamed = world.program("new=old")
    await world.start(renamed)
    assert renamed._setup.names_of("shop--old-changelog") == ("new", "old")
    with pytest.raises(ConfigurationError, match=r"shop--old-changelog"):
        await world.start(world.program("new"))


async def test_a_store_and_the_one_that_has_its_former_name_are_refused_together(world: World) -> None:
    with pytest.raises(ConfigurationError, match="shop--old-changelog is another topic of this app too"):
        await world.start(world.program("old", "new=old"))


async def test_an_older_program_starts_after_a_store_was_added(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(world.program())
    world.took_over("counter", "in")
    await world.start(world.program("a"))
    await world.start(world.program("a", "b"))
    await world.start(world.program("a", "b", "c"))
    for store in "abc":
        world.wrote(store)
    assert not caplog.records
    for older in ((), ("a",)):
        caplog.clear()
        await world.start(world.program(*older))
        said = [store for store in "abc" if f"store {store}: another program of this app has it" in caplog.text]
        assert said == [store for store in "abc" if store not in older]
    for other in (("b",), ("a", "c"), ("a", "d")):
        with pytest.raises(ConfigurationError, match="no actor of this program has it any more"):
            await world.start(world.program(*other))


async def test_a_store_that_was_given_up_is_no_reason_to_refuse(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(world.program("a", "b"))
    world.wrote("a")
    world.write("a", is_given_up=True)
    # A worker of the former program starts once more, as in a rolling deploy.
    await world.start(world.program("a", "b"))
    assert "store a was given up" in caplog.text
    await world.start(world.program("b"))
    # Its topic deleted, a store of the name is another one.
    del world.topics["shop--a-changelog"]
    await world.start(world.program("a", "b"))
    world.wrote("a")
    with pytest.raises(ConfigurationError, match="forget a"):
        await world.start(world.program("b"))


async def test_a_store_that_is_given_another_changelog_without_its_state_is_refused(world: World) -> None:
    await world.start(world.program("orders"))
    world.wrote("orders")
    other = world.program("orders")
    other._app.actor_options.changelogs["orders"] = "shop--other-changelog"
    moved = StoreRegistry(other._setup, other._topics, other._logs, other._owners, other._clock)
    with pytest.raises(ConfigurationError, match=r"changelogs={'orders': 'shop--orders-changelog'}"):
        await world.start(moved)


async def test_options_of_an_actor_may_go_when_nothing_waits(world: World) -> None:
    await world.start(world.program(timers=True, dedupe_by="id"))
    for what in ("timers", "ids"):
        world.wrote(f"counter-{what}")
    await world.start(world.program())


async def test_what_waits_of_an_actor_that_is_gone_is_not_left_behind(world: World) -> None:
    await world.start(world.program(timers=True))
    world.wrote("counter-timers")
    for actor in ("counter", "other"):
        world.took_over(actor, f"{actor}-in")
    await world.start(world.program(actor="other", topic="other-in"))
    world.append("shop--counter-timers-changelog", b"n\0\0\0\1ktick", b"{}")
    with pytest.raises(ConfigurationError, match="store counter-timers"):
        await world.start(world.program(actor="other", topic="other-in"))


async def test_a_store_with_a_name_like_an_option_is_a_store(world: World) -> None:
    await world.start(world.program("all-timers"))
    world.wrote("all-timers")
    with pytest.raises(ConfigurationError, match="store all-timers"):
        await world.start(world.program())
