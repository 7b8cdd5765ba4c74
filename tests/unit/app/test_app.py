"""What can be said of an app before it runs."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faust.cli.base import cli
from faust.cli.worker import worker as FaustWorker  # noqa: N812  the class has the command's name

import actors
from actors import App, ConfigurationError, Context, StoreOutsideHandlerError
from actors._faust.disk import _try_open
from actors._faust.setup import Setup
from actors.cli.run.worker import banner_rows, worker
from actors.declare.host import changelog_topic, table_changelog
from stores.errors import StoreUnavailableError


def new_app(**settings: Any) -> App:
    return App("unit", broker="kafka://127.0.0.1:1", **settings)


def test_two_actors_with_one_name() -> None:
    app = new_app()

    @app.actor(app.topic("a"))
    async def handle(ctx: Context, value: object) -> None: ...

    with pytest.raises(ConfigurationError, match=r"actor handle: the app has an actor of that name.*name="):
        app.actor(app.topic("b"), name="handle")(handle)


def test_two_actors_on_one_topic() -> None:
    app = new_app()

    @app.actor(app.topic("a"))
    async def one(ctx: Context, value: object) -> None: ...

    with pytest.raises(ConfigurationError, match="topic a is the input of actor one"):
        app.actor(app.topic("a"), name="two")(one)


def test_a_store_has_one_actor() -> None:
    app = new_app()
    store = app.store("s")

    @app.actor(app.topic("a"), stores=[store])
    async def one(ctx: Context, value: object) -> None: ...

    with pytest.raises(ConfigurationError, match="store s belongs to actor one"):
        app.actor(app.topic("b"), stores=[store], name="two")(one)


def test_a_store_of_another_app() -> None:
    app, other = new_app(), new_app()
    store = other.store("s")
    with pytest.raises(ConfigurationError, match="isn't a store of app unit"):
        app.actor(app.topic("a"), stores=[store], name="one")(lambda ctx, value: None)


def test_a_store_and_a_faust_table_of_one_name_have_two_changelogs() -> None:
    app = new_app()
    app.store("s")
    app.Table("s")
    assert changelog_topic(app, "s") != table_changelog(app, "s") == app.tables["s"].changelog_topic.get_topic_name()
    with pytest.raises(ConfigurationError, match="store s: the app has a store of that name"):
        app.store("s")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0", "a ", "a\n", "x" * 101, "ümlaut"])
def test_names_that_topics_cannot_have(name: str) -> None:
    with pytest.raises(ConfigurationError, match="names have up to 100 letters"):
        new_app().store(name)


@pytest.mark.parametrize("instance_id", ["a\0b", "a\nb", "a\x1b[31m", "x" * 250, "ü" * 125])
def test_instance_ids_that_cannot_be_told_apart_or_shown(instance_id: str) -> None:
    app = new_app(consumer_group_instance_id=instance_id)
    with pytest.raises(ConfigurationError, match=r"consumer_group_instance_id=.*no control characters"):
        Setup(app).check_settings()


@pytest.mark.parametrize(("concurrency", "most"), [(1, 128), (8, 63)])
def test_an_actor_with_more_stores_than_its_commits_can_name_is_refused(concurrency: int, most: int) -> None:
    for count in (most, most + 1):
        app = new_app()
        stores = [app.store(f"s{number}") for number in range(count)]
        app.actor(app.topic("in"), name="wide", stores=stores, concurrency=concurrency)(lambda ctx, value: None)
        if count == most:
            Setup(app).check_settings()
        else:
            with pytest.raises(ConfigurationError, match=rf"actor wide has {count} stores .* brokers take 4096"):
                Setup(app).check_settings()


@pytest.mark.parametrize("instance_id", ["..", "../../etc", "a/b", "x" * 249, "ü"])
def test_an_instance_id_is_no_part_of_a_folders_name(instance_id: str, tmp_path: Path) -> None:
    settings = {"datadir": str(tmp_path), "consumer_group_instance_id": instance_id}
    setup = Setup(new_app(**settings))
    setup.check_settings()
    assert setup.worker == instance_id
    assert setup.folder == tmp_path / "v1" / "actors"


def test_a_ttl_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="has to be more than 0"):
        new_app().store("s", ttl=timedelta(0))


def test_a_topic_has_to_be_one() -> None:
    with pytest.raises(ConfigurationError, match=r"has to be a topic of app\.topic"):
        new_app().actor("a", name="one")(lambda ctx, value: None)


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get("a"),
        lambda store: store.set("a", 1),
        lambda store: store.delete("a"),
        lambda store: store.put_if_absent("a", 1),
        lambda store: store.compare_and_set("a", None, 1),
        lambda store: list(store.items()),
        lambda store: "a" in store,
    ],
)
def test_a_store_outside_a_handler(use) -> None:
    store = new_app().store("s")
    with pytest.raises(StoreOutsideHandlerError, match="store s was used outside a handler"):
        use(store)


def test_our_defaults_give_way_to_what_is_set() -> None:
    app = App("unit", broker="kafka://127.0.0.1:1", broker_commit_interval=1.0, queue_records=5)
    assert app.conf.broker_commit_interval == 1.0
    assert app.conf.processing_guarantee.value == "exactly_once"
    assert app.conf.broker_session_timeout == 10.0
    assert app.actor_options.queue_records == 5


def test_the_public_names_are_there() -> None:
    assert all(hasattr(actors, name) for name in actors.__all__)


class _FullDisk:
    async def open(self, store: str, partition: int) -> None:
        raise StoreUnavailableError(f"can't read or write {store} {partition}: no space left on device")


async def test_a_store_that_cant_be_opened_for_the_moment_is_no_reason_not_to_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await _try_open(_FullDisk(), "counts", 3)
    assert "store counts, partition 3 isn't counted as being on this disk" in caplog.text
    assert "no space left" in caplog.text


def test_where_snapshots_are_the_environment_says_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Setup(new_app()).snapshots is None
    options = {"broker": "kafka://127.0.0.1:1", "state_snapshot": "/mnt/snapshots"}
    assert str(Setup(App("unit", **options)).snapshots.path) == "/mnt/snapshots"
    monkeypatch.setenv("STATE_SNAPSHOT", "/mnt/others")
    app = App("unit", **options)
    assert str(Setup(app).snapshots.path) == "/mnt/others"
    assert Setup(app).snapshots.app == "unit"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"state_snapshot": "s3://bucket/x", "extensions": []}, "leaves out `snapshots`"),
        ({"state_snapshot": "nowhere://bucket/x"}, "state_snapshot='nowhere://bucket/x': "),
        ({"state_snapshot_every": timedelta(hours=1)}, "set state_snapshot too"),
    ],
)
def test_a_place_of_snapshots_that_cannot_be_used_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        Setup(new_app(**settings)).check_settings()


def test_snapshots_lie_in_object_storage_if_their_place_is_a_uri() -> None:
    setup = Setup(new_app(state_snapshot="s3://bucket/x"))
    setup.check_settings()
    assert str(setup.snapshots) == "s3://bucket/x"


def test_the_banner_says_where_the_state_of_actors_is() -> None:
    app = new_app()
    assert banner_rows(app, "store", "memory:") == [("store", "memory:")]

    @app.actor(app.topic("a"))
    async def handle(ctx: Context, value: object) -> None: ...

    assert banner_rows(app, "store", "memory:") == [("state", f"RocksDB in {app.conf.datadir}, changelogs in Kafka")]
    assert banner_rows(app, "pid", "1") == [("pid", "1")]
    app.Table("words")
    assert banner_rows(app, "store", "memory:")[1] == ("tables", "memory:")
    command = cli.commands["worker"]
    assert {"web_port", "loglevel"} <= {option.name for option in command.params}
    assert worker._banner_data is not FaustWorker._banner_data


def test_a_choice_that_is_for_one_start_is_named_at_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Setup(new_app()).check_settings()
    assert "one start" not in caplog.text
    monkeypatch.setenv("LOST_CHANGELOG", "rebuild")
    Setup(App("unit", broker="kafka://127.0.0.1:1", moved_offset="accept")).check_settings()
    assert "moved_offset='accept', lost_changelog='rebuild': meant for one start" in caplog.text
