"""Parts of Faust beside actors: each works, or is refused with a reason. The table is in docs/reference/faust.md."""

import subprocess
from pathlib import Path
from typing import Any

import faust
import pytest
from mode import Service

from actors import App, ConfigurationError, Context, HandlerFailedError
from actors._faust.setup import Setup
from actors.testing import ActorTestDriver
from stores._core.record import Position
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.kafka import forked


def app_of(**options: Any) -> App:
    return App("beside", broker="kafka://127.0.0.1:1", **options)


class Wrapping(faust.Schema):
    def loads_value(self, app: Any, message: Any, **options: Any) -> Any:
        return {"wrapped": message.value}

    def dumps_value(self, app: Any, value: Any, **options: Any) -> Any:
        return b"wrapped", None


class Plain(faust.Schema):
    pass


def test_a_schema_of_ones_own_is_refused_for_actors() -> None:
    app = app_of()
    topic = app.topic("in", schema=Wrapping())
    said = r"actor a: topic in: its schema Wrapping overrides loads_value, dumps_value, which actors don't call"
    with pytest.raises(ConfigurationError, match=said):
        app.actor(topic, name="a")(lambda ctx, value: None)
    app.actor(app.topic("in", schema=Plain(value_type=int)), name="a")(lambda ctx, value: None)


def test_a_schema_of_ones_own_is_refused_for_outputs() -> None:
    app = app_of()
    source, target = app.topic("in", key_type=str, value_type=int), app.topic("out", schema=Wrapping())

    @app.actor(source)
    async def forward(ctx: Context, value: int) -> None:
        ctx.send(target, key=ctx.key, value=value)

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match="its schema Wrapping overrides"):
        driver.send(source, key="a", value=1)


def test_the_apps_schema_setting_is_faust_s_for_agents_and_refused_for_actors() -> None:
    app = app_of(Schema=Wrapping)
    topic = app.topic("in")
    assert isinstance(topic.schema, Wrapping)
    with pytest.raises(ConfigurationError, match="its schema Wrapping overrides"):
        app.actor(topic, name="a")(lambda ctx, value: None)


@pytest.mark.parametrize("how", ["send", "send_soon", "put"])
def test_a_handler_cannot_send_to_a_channel(how: str) -> None:
    app = app_of()
    source, channel = app.topic("in", key_type=str, value_type=int), app.channel()

    @app.actor(source)
    async def forward(ctx: Context, value: int) -> None:
        if how == "put":
            await channel.put(value)
        elif how == "send":
            await channel.send(value=value)
        else:
            channel.send_soon(value=value)

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=r"use ctx\.send"):
        driver.send(source, key="a", value=1)


def test_another_web_server_is_refused_unless_queries_are_off() -> None:
    for options in ({}, {"queries": False}):
        app = app_of(**options)
        app.actor(app.topic("in"), name="a")(lambda ctx, value: None)
        app.web_server(type("Asgi", (Service,), {}))
        if options:
            Setup(app).check_settings()
        else:
            with pytest.raises(ConfigurationError, match=r"takes the place of Faust's web server.*set queries=False"):
                Setup(app).check_settings()


def test_a_monitor_of_ones_own_is_told_to_see_no_actors(caplog: pytest.LogCaptureFixture) -> None:
    class Counting(faust.Monitor):
        pass

    for monitor in (None, Counting()):
        caplog.clear()
        app = app_of(monitor=monitor)
        app.actor(app.topic("in"), name="a")(lambda ctx, value: None)
        Setup(app).check_settings()
        assert ("Counting: sees the messages of agents and tables, not" in caplog.text) is (monitor is not None)


def test_reset_forgets_stores_and_views_unless_a_worker_uses_them(tmp_path: Path) -> None:
    text = (
        'from actors import App\napp = App("beside", broker="kafka://127.0.0.1:1")\ns = app.store("kept")\n'
        '@app.actor(app.topic("in"), stores=[s])\nasync def place(ctx, order): ...\n'
    )
    (tmp_path / "beside_app.py").write_text(text)

    def reset(*options: str) -> subprocess.CompletedProcess[str]:
        arguments = ("-A", "beside_app", "-D", str(tmp_path / "data"), "reset", *options)
        return forked.faust(*arguments, environment={"PYTHONPATH": str(tmp_path)}, timeout_s=120.0)

    folder = DataFolder.open(tmp_path / "data/v1/actors", app="beside")
    held = RocksStore.open(folder.store_path("kept", 3))
    held.apply([(b"k", bytes(25) + b"v")], Position(1, 1, 0, 1, "id"))
    held.close()
    (tmp_path / "data/v1/views/t").mkdir(parents=True)
    refused = reset("--yes")
    assert refused.returncode == 1
    assert "Error: " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert folder.partitions_on_disk("kept") == [3]
    folder.close()
    looked = reset()
    assert looked.returncode == 0, looked.stderr
    assert "store kept: 1 database would be deleted" in looked.stdout
    assert "nothing was changed" in looked.stdout
    assert folder.partitions_on_disk("kept") == [3]
    assert (tmp_path / "data/v1/views").exists()
    done = reset("--yes")
    assert done.returncode == 0, done.stderr
    assert "store kept: 1 database deleted" in done.stdout
    assert folder.partitions_on_disk("kept") == []
    assert not (tmp_path / "data/v1/views").exists()
