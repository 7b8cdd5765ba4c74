"""aiokafka's private names stand in one module, which checks them against the aiokafka that is installed."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

import actors
from actors._kafka import client
from actors._kafka.admin.control import ControlPlane
from actors._kafka.client import Client, Hook
from actors._kafka.connection import Connection
from actors.errors import ConfigurationError

ROOT = Path(actors.__file__).parent
OWNER = ROOT / "_kafka" / "client.py"
LISTED = {name for names in client.PRIVATE.values() for name in names.split()}


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The names were checked for no other test."""
    client.check_installed.cache_clear()
    yield
    client.check_installed.cache_clear()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.AST) -> set[str]:
    """Return the private names that a source defines: functions, fields, constants and attributes of `self`."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@pytest.fixture(autouse=True)
def _uninterrupted() -> Iterator[None]:
    """Keep finalizers out of the parser: Python 3.11 gives up where one parses too, as that of a lost future does."""
    gc.disable()
    yield
    gc.enable()


def foreign_names(text: str, own: set[str], listed: set[str] | None = None) -> list[str]:
    """Return the private names that a source takes from objects of others, or imports from aiokafka.

    `own` are the private names of the package's classes, which a subclass in another file may use. With `listed` only
    these names count.
    """
    tree = ast.parse(text)
    here, names = defined(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            allowed = here | own if of_self(node) else here
            if node.attr not in allowed and (listed is None or node.attr in listed):
                names.append(node.attr)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiokafka"):
            names += [alias.name for alias in node.names if is_private(alias.name)]
    return names


def test_private_names_of_aiokafka_stand_in_one_module() -> None:
    sources = {path: path.read_text() for path in ROOT.rglob("*.py") if path != OWNER}
    own = set[str]().union(*(defined(ast.parse(text)) for path, text in sources.items() if "_kafka" in path.parts))
    names = {
        path.relative_to(ROOT).as_posix(): foreign
        for path, text in sources.items()
        if (foreign := foreign_names(text, own, None if "_kafka" in path.parts else LISTED))
    }
    assert names == {}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("size = consumer._fetcher.size", "_fetcher"),
        ("from aiokafka.record.default_records import _DefaultRecordPy", "_DefaultRecordPy"),
        ("class Result(FetchResult):\n    def all(self): return self._assignment", "_assignment"),
        ("class Result(FetchResult):\n    def all(self): return super()._update_position()", "_update_position"),
    ],
)
def test_a_private_name_elsewhere_is_noticed(line: str, name: str) -> None:
    assert foreign_names(line, {"_client"}) == [name]


def test_the_list_has_each_private_name_that_is_used() -> None:
    tree = ast.parse(OWNER.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)}
    replaced = {name for name in defined(tree) if name in LISTED}
    own = {name for name in defined(tree) - LISTED if not hasattr(AIOKafkaClient, name)}
    assert (used | replaced) - own == {name for name in LISTED if is_private(name)}


@pytest.mark.usefixtures("unchecked")
def test_the_installed_aiokafka_has_the_names() -> None:
    client.check_installed()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("place", client.PRIVATE)
async def test_a_worker_with_another_aiokafka_does_not_start(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, owner = place.partition(":")

    class Another:
        def __init__(self) -> None:
            pass

    monkeypatch.setattr(importlib.import_module(module), owner, Another)
    with pytest.raises(ConfigurationError) as refusal:
        await ControlPlane.open(Connection.to("127.0.0.1:1", client_id="test"), "group")
    text = str(refusal.value)
    assert text.startswith("aiokafka 0.14")
    assert all(f"{owner}.{name}" in text for name in client.PRIVATE[place].split())
    assert "Install that: pip install 'aiokafka<0.15,>=0.14'" in text


class Noting(Hook):
    """Notes what it sees of a request."""

    def __init__(self, name: str, seen: list[Any], *, hangs: bool = False) -> None:
        self.name, self.seen, self.hangs = name, seen, hangs

    async def before(self, node: Any, request: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        return f"{self.name}({request})"

    def after(self, node: Any, request: Any, response: Any) -> Any:
        self.seen.append(request)
        return f"{self.name}[{response}]"

    def failed(self, request: Any, error: BaseException) -> None:
        self.seen.append((request, type(error)))


async def test_hooks_stand_around_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(owner: Any, node: int, request: Any, **_: Any) -> Any:
        return f"answer to {request}"

    monkeypatch.setattr(AIOKafkaClient, "send", send)
    owned, seen = Client.of(Connection(()), "test"), list[Any]()
    owned.hooks = (Noting("outer", seen), Noting("inner", seen))
    assert await owned.send(1, "fetch") == "outer[inner[answer to inner(outer(fetch))]]"
    assert seen == ["inner(outer(fetch))", "outer(fetch)"]


async def test_a_request_that_another_hook_holds_up_is_given_up() -> None:
    owned, seen = Client.of(Connection(()), "test"), list[Any]()
    owned.hooks = (Noting("outer", seen), Noting("inner", seen, hangs=True))
    sending = asyncio.create_task(owned.send(1, "fetch"))
    await asyncio.wait([sending], timeout=0)
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert seen == [("outer(fetch)", asyncio.CancelledError)]
