"""Every module, class and function that the architecture page names exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.documents import ROOT

PAGES = ("docs/explanation/architecture.md", "docs/design/0014-rules-in-the-code.md", "CONTRIBUTING.md")
NAME = re.compile(r"`((?:actors|stores|spark_replay|tests)(?:\.\w+)+)`")
FILE = re.compile(r"`((?:actors|stores|spark_replay|tests|dev)/[\w/.]+)`")


def missing(name: str) -> str | None:
    """Say which part of a dotted name isn't there; None if all of it is."""
    path, parts = ROOT, name.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if parts and (path / f"{parts[0]}.py").is_file():
        body = ast.parse((path / f"{parts.pop(0)}.py").read_text()).body
    elif (path / "__init__.py").is_file():
        body = ast.parse((path / "__init__.py").read_text()).body
    else:
        return parts[0] if parts else name
    for part in parts:
        found = next((node for node in body if part in declared(node)), None)
        if found is None:
            return part
        body = getattr(found, "body", [])
    return None


def declared(node: ast.stmt) -> set[str]:
    """The names that a statement of a module or a class declares."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.AnnAssign):
        return {ast.unparse(node.target)}
    if isinstance(node, ast.Assign):
        return {ast.unparse(target) for target in node.targets}
    return set()


def names() -> list[str]:
    return sorted({name for page in PAGES for name in NAME.findall((ROOT / page).read_text())})


@pytest.mark.parametrize("name", names())
def test_a_name_exists(name: str) -> None:
    assert missing(name) is None


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page: str) -> None:
    assert [name for name in FILE.findall((ROOT / page).read_text()) if not (ROOT / name).exists()] == []


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert missing("actors.runtime.worker.Worker.run") is None
    assert missing("actors.runtime") is None
    assert missing("actors.runtimes") == "runtimes"
    assert missing("actors.runtime.workers.Worker") == "workers"
    assert missing("actors.runtime.worker.Werker") == "Werker"
    assert missing("actors.runtime.worker.Worker.runs") == "runs"


def test_every_package_is_in_the_table() -> None:
    page = (ROOT / PAGES[0]).read_text()
    rooms = [*ROOT.glob("actors/*/__init__.py"), *ROOT.glob("actors/runtime/*/__init__.py")]
    folders = [path.parent.relative_to(ROOT) for path in rooms]
    packages = {".".join(folder.parts) for folder in folders} | {"stores", "spark_replay"}
    assert {name for name in packages if f"`{name}`" not in page} == set()
