"""Links between pages lead somewhere; the pages of a reference name what exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import faust
import pytest

from actors.declare.options import ActorOptions
from tests.documents import ROOT

LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[str]:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/**/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def anchors(text: str) -> set[str]:
    """The anchors that a forge gives to the headings of a page."""
    found: set[str] = set()
    count: Counter[str] = Counter()
    for heading in HEADING.finditer(FENCED.sub("", text)):
        name = re.sub(r"[^\w\- ]", "", heading["title"].lower()).replace(" ", "-")
        found.add(f"{name}-{count[name]}" if count[name] else name)
        count[name] += 1
    return found


def broken(page: Path, text: str) -> list[str]:
    """The links of a page whose file or heading doesn't exist."""
    found = []
    for link in LINK.finditer(FENCED.sub("", text)):
        path, _, anchor = link["target"].partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = page if not path else (page.parent / path).resolve()
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link["target"])
    return found


@pytest.mark.parametrize("name", pages())
def test_links_lead_somewhere(name: str) -> None:
    assert broken(ROOT / name, (ROOT / name).read_text()) == []


def texts(path: Path) -> list[str]:
    """The texts of a module that aren't docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_what_users_read_names_pages_by_their_titles_which_they_can_look_up() -> None:
    """The wheel has no docs."""
    sources = [path for package in ("actors", "stores", "spark_replay") for path in (ROOT / package).rglob("*.py")]
    read = {path: texts(path) for path in sources}
    named = {path: text for path in sources for text in read[path] if re.search(r"\bdocs/[\w-]+/", text)}
    assert named == {}
    titles = {re.split(r"[:\n]", page.read_text()[2:])[0] for page in (ROOT / "docs").rglob("*.md")}
    shown = [found for path in sources for text in read[path] for found in re.findall(r"page '(\w+)'", text)]
    assert len(shown) >= 8
    assert set(shown) <= titles


def test_a_broken_link_is_noticed() -> None:
    page = ROOT / "docs" / "README.md"
    assert broken(page, "[a](reference/messages.md#tell) [b](#reference)") == []
    assert broken(page, "[a](actors.md)") == ["actors.md"]
    assert broken(page, "[a](reference/messages.md#tall) [b](#tall)") == ["reference/messages.md#tall", "#tall"]


@pytest.mark.parametrize("name", pages())
def test_no_page_has_a_heading_twice(name: str) -> None:
    titles = Counter(HEADING.findall(FENCED.sub("", (ROOT / name).read_text())))
    assert [title for title, count in titles.items() if count > 1] == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link["target"].partition("#")[0]).resolve() for link in LINK.finditer(index.read_text())}
    folders = ("tutorial", "how-to", "reference", "explanation")
    assert {path for folder in folders for path in ROOT.glob(f"docs/{folder}/*.md")} <= linked


def test_no_error_is_explained_twice() -> None:
    pages = [(ROOT / f"docs/how-to/{name}.md").read_text() for name in ("start-errors", "stopped-partitions", "logs")]
    rows = re.findall(r"^\| (.+?) \|(?!.*\n\|-)", "\n".join(pages), re.MULTILINE)
    assert [cell for cell, count in Counter(rows).items() if count > 1] == []


def test_the_page_has_every_setting_and_no_other() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    shown = {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    own = {field.name for field in fields(ActorOptions)}
    assert shown <= own | set(faust.Settings.SETTINGS)
    assert own - shown == set()
