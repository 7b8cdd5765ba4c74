"""The documentation site, built strictly and opened in a real browser: whole, offline, as wide as the window.

A build takes half a minute, so these tests are nightly.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dev.site.__main__ import list_versions
from tests.browser.visits import WIDE, Visit, browsers, needs_chromium
from tests.documents import ROOT

pytest.importorskip("mkdocs", reason="the extra docs isn't installed")
pytestmark = [needs_chromium, pytest.mark.nightly, pytest.mark.timeout(900)]

WIDTHS = [390, 1400]
SCHEMES = "() => document.body.getAttribute('data-md-color-scheme')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    done = build(ROOT, made)
    assert done.returncode == 0, done.stderr
    return made


def build(sources: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dev.site", "--to", str(to)]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    return subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def home(folder: Path) -> Iterator[str]:
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[object]:
    async for opened in browsers():
        yield opened


def pages_of(folder: Path) -> list[str]:
    pages = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("*/index.html"))
    assert len(pages) > 60
    return pages


def version_of(folder: Path) -> str:
    [one] = json.loads((folder / "versions.json").read_text())
    return one["version"]


@pytest.mark.parametrize("width", WIDTHS)
async def test_every_page_is_quiet_offline_and_fits(browser, home: str, folder: Path, width: int) -> None:
    pages = pages_of(folder)
    said, wide = {}, {}
    for page in pages:
        async with Visit(browser, f"{home}{page}/", home, viewport={"width": width, "height": 900}) as visit:
            taken, given = await visit.page.evaluate(WIDE)
            if taken > given:
                wide[page] = taken
            if visit.said:
                said[page] = visit.said
    assert (said, wide) == ({}, {})


async def test_the_first_page_leads_to_the_newest_version(browser, home: str, folder: Path) -> None:
    async with Visit(browser, home, home) as visit:
        await visit.page.wait_for_url(f"{home}{version_of(folder)}/")
        selector = visit.page.locator(".md-version__current")
        assert (await selector.text_content()).strip() == version_of(folder)


async def test_a_reader_chooses_another_version_of_a_page(browser, folder: Path, tmp_path: Path) -> None:
    versions = ["1.10", "1.9"]
    for version in versions:
        shutil.copytree(folder / version_of(folder), tmp_path / version)
    list_versions(tmp_path)
    with served(tmp_path) as home:
        async with Visit(browser, f"{home}1.10/reference/actors/", home) as visit:
            await visit.page.locator(".md-version").hover()
            links = visit.page.locator(".md-version__link")
            assert [text.strip() for text in await links.all_text_contents()] == versions
            await links.nth(1).click()
            await visit.page.wait_for_url(f"{home}1.9/**")
            assert (await visit.page.locator(".md-version__current").text_content()).strip() == "1.9"
            assert visit.said == []


async def test_search_finds_a_public_name(browser, home: str, folder: Path) -> None:
    async with Visit(browser, f"{home}{version_of(folder)}/", home) as visit:
        await visit.page.locator(".md-search__input").fill("put_if_absent")
        found = visit.page.locator(".md-search-result__link").first
        await found.wait_for(state="visible")
        assert "/reference/" in await found.get_attribute("href")
        assert visit.said == []


async def test_a_reader_chooses_the_scheme(browser, home: str, folder: Path) -> None:
    async with Visit(browser, f"{home}{version_of(folder)}/", home, color_scheme="dark") as visit:
        assert await visit.page.evaluate(SCHEMES) == "slate"
        box = visit.page.locator(".drawing rect").first
        dark = await box.evaluate("node => getComputedStyle(node).fill")
        await visit.page.locator("label.md-header__button[for='__palette_1']").click()
        await visit.page.wait_for_function(f"({SCHEMES})() === 'default'")
        assert await box.evaluate("node => getComputedStyle(node).fill") != dark


async def test_an_example_and_the_changelog_are_pages(browser, home: str, folder: Path) -> None:
    for link, title in (("changelog", "Changelog"), ("run_commands", "examples/run_commands.py")):
        async with Visit(browser, f"{home}{version_of(folder)}/", home) as visit:
            await visit.page.locator(f"article a:text-is('{link}')").click()
            await visit.page.wait_for_load_state("load")
            assert (await visit.page.locator("h1").text_content()).startswith(title)


def test_a_broken_link_an_anchor_and_a_forgotten_page_fail_the_build(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    with (sources / "docs/reference/joins.md").open("a") as page:
        page.write("\n[x](tables.md#no-such-heading) [y](nowhere.md)\n")
    (sources / "docs/how-to/lost.md").write_text("# Lost\n")
    done = build(sources, tmp_path / "site")
    assert done.returncode == 1
    for planted in ("no-such-heading", "nowhere.md", "how-to/lost.md"):
        assert planted in done.stderr
    assert done.stderr.count("WARNING") == 3
    assert not (tmp_path / "site" / "versions.json").exists()


def test_the_list_has_the_versions_whose_folders_are_there(tmp_path: Path) -> None:
    for version in ("1.9", "1.10", "2.0"):
        (tmp_path / version).mkdir()
        list_versions(tmp_path)
    (tmp_path / "2.0").rmdir()
    list_versions(tmp_path)
    assert [one["version"] for one in json.loads((tmp_path / "versions.json").read_text())] == ["1.10", "1.9"]
    assert "url=1.10/" in (tmp_path / "index.html").read_text()
