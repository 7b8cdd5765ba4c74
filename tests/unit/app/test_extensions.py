"""How an app finds what runs in its worker beside the engine."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from actors import App, ConfigurationError, WorkerExtension
from actors._faust import extensions
from actors._faust.setup import Setup
from tests.documents import CONTRACTS, EDGES, ROOT, block

PROGRAM = f"""
import sys
from actors import App, Context
from actors.testing import ActorTestDriver

app = App("alone", broker="kafka://127.0.0.1:1", extensions=[])
names = app.topic("names", key_type=str, value_type=str)

@app.actor(names)
async def greet(ctx: Context, name: str) -> None: ...

with ActorTestDriver(app) as driver:
    driver.send(names, key="a", value="b")
print([name for name in sys.modules if name.startswith({tuple(EDGES)!r})])
"""


async def _page(_: web.Request) -> web.Response:
    return web.Response(text="own")


class Own(WorkerExtension):
    """Refuses an app that has no actors, and changes one of Faust's settings."""

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        super().__init__(app, settings)
        settings["web_port"] = 4711

    def check(self, setup: Setup) -> None:
        """Refuse it."""
        if not self.app.actors:
            raise ConfigurationError("no actors")

    def serve(self, server: Any) -> None:
        """Add a page."""
        server.web_app.router.add_get("/own", _page)


def make_app(*names: str) -> App:
    return App("extended", broker="kafka://127.0.0.1:1", extensions=list(names))


def test_all_that_are_installed_are_used_unless_some_are_named() -> None:
    assert set(App("all", broker="kafka://127.0.0.1:1").extensions) >= {"cli", "web"}
    assert set(make_app("web").extensions) == {"web"}
    assert set(make_app("*", f"{__name__}:Own").extensions) >= {"cli", "web", f"{__name__}:Own"}


def test_an_extension_of_the_users_changes_checks_and_serves() -> None:
    app = make_app(f"{__name__}:Own")
    assert app.conf.web_port == 4711
    with pytest.raises(ConfigurationError, match="no actors"):
        Setup(app).check_settings()
    # Faust does so when a worker is initialised, and again at the server's start.
    app.web.init_server()
    app.web.init_server()
    assert [resource.canonical for resource in app.web.web_app.router.resources()].count("/own") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wbe", "there is no extension 'wbe'. Installed are cli, sinks, snapshots, web"),
        ("nowhere.at.all:Own", "extension nowhere.at.all:Own .* can't be imported"),
        (f"{__name__}:Missing", "can't be imported"),
    ],
)
def test_one_that_isnt_there_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_app(name)


def test_an_installation_without_entry_points_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_installed", dict)
    with pytest.raises(ConfigurationError, match="install it again"):
        make_app("*")


def test_the_environment_can_choose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAUST_ACTORS_EXTENSIONS", "web")
    assert set(App("chosen", broker="kafka://127.0.0.1:1").extensions) == {"web"}


def test_the_engine_and_its_test_driver_import_no_edge() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


def test_the_engine_looks_up_no_other_edge_by_name() -> None:
    [engine] = (contract["source_modules"] for contract in CONTRACTS if "nothing of the edges" in contract["name"])
    roots = [ROOT / module.replace(".", "/") for module in engine]
    files = [
        path
        for root in roots
        for path in ([root.with_suffix(".py")] if root.with_suffix(".py").exists() else root.rglob("*.py"))
    ]
    named = re.compile(rf"""[("']({"|".join(map(re.escape, EDGES))})\b""")
    assert sorted(name for path in files for name in named.findall(path.read_text())) == [
        "actors.calendar",
        "actors.formats",
        "actors.limits",
    ]


def test_the_pages_extension_writes_the_status(tmp_path: Path) -> None:
    names = block("docs/how-to/extensions.md", "Run something of your own in each worker").run({})
    names["FILE"] = file = tmp_path / "status.json"
    extension = names["StatusFile"](make_app(), {})

    async def runs() -> None:
        await extension.start(None)
        await asyncio.sleep(0)
        await extension.stop()
        await asyncio.wait([extension.writing])

    asyncio.run(runs())
    assert extension.writing.cancelled()
    assert json.loads(file.read_bytes())["app"] == "extended"


def test_the_pages_app_looks_for_the_extension_that_it_names() -> None:
    with pytest.raises(ConfigurationError, match=r"extension shop\.monitoring:StatusFile"):
        block("docs/how-to/extensions.md", "Install it", 2).run({"App": App})


async def test_a_page_of_an_extension_is_guarded() -> None:
    app = App("guarded", broker="kafka://127.0.0.1:1", extensions=["*", f"{__name__}:Own"], query_tokens=["x" * 16])
    app.web.init_server()
    async with TestClient(TestServer(app.web.web_app)) as client:
        assert (await client.get("/own")).status == 401
        assert (await client.get("/own", headers={"Authorization": f"Bearer {'x' * 16}"})).status == 200
