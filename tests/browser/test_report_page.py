"""The report's page in a real browser: quiet, offline, as wide as the window, readable in light and dark and on paper.

Needs Chromium (`apt-get install --no-install-recommends chromium`); without it these tests are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_replay.report.html import render_report
from stores._core.printable import printable
from tests.browser.visits import PALE, WIDE, Visit, browsers, needs_chromium
from tests.spark.report.pages import MADE, make_report, pages

pytestmark = needs_chromium

LOOKS = [(390, "light"), (1200, "dark")]
OTHER_LOOKS = [(390, "dark"), (1200, "light")]
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style></title></textarea></noscript><script>alert(1)</script>",
    "--><!--><img src=x onerror=alert(1)>]]>",
    "<svg onload=alert(1)><text x=0>$\\frac{1}{2}$</text></svg>",
    "</text></svg><svg/onload=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    "[x](javascript:alert(1)) ![x](http://127.0.0.1:9/x) <http://127.0.0.1:9/y> `code` **bold**",
    '" onmouseover=alert(1) x="',
    "' autofocus onfocus=alert(1) x='",
    "<base href=http://127.0.0.1:9/><form action=http://127.0.0.1:9/><button>x</button></form>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>@import 'http://127.0.0.1:9/x.css'; * { background: url(http://127.0.0.1:9/y) }</style>",
    "{{ 7*7 }}{% include 'x' %}&lt;script&gt;&#60;",
    "\u202e\u2066gnp.exe\u2069",
]
TOUCH = """
() => document.querySelectorAll('body *').forEach(node => {
  for (const kind of ['mouseover', 'focus', 'click']) node.dispatchEvent(new Event(kind, {bubbles: false}));
})
"""
CENSUS = """
() => [...document.querySelectorAll('*')].reduce((found, node) => {
  if (!node.closest('defs')) found[node.tagName] = (found[node.tagName] || 0) + 1;
  return found;
}, {})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    for name, page in pages().items():
        (made / f"{name}.html").write_text(page, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[object]:
    async for opened in browsers():
        yield opened


@pytest.mark.parametrize(
    "name",
    ["damaged", "nasty", *(pytest.param(of, marks=pytest.mark.nightly) for of in ("partly", "log", "empty", "many"))],
)
@pytest.mark.parametrize("looks", [LOOKS, pytest.param(OTHER_LOOKS, marks=pytest.mark.nightly)], ids=["each", "other"])
async def test_page_is_quiet_fits_and_can_be_read(browser, folder: Path, name: str, looks: list[tuple[int, str]]):
    for width, scheme in looks:
        settings = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        async with Visit(browser, (folder / f"{name}.html").as_uri(), **settings) as visit:
            where = (name, width, scheme)
            # folded tables have to fit too
            await visit.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
            taken, given = await visit.page.evaluate(WIDE)
            assert taken <= given == width, where
            # a table of 512 partitions has one style for all its cells
            if name != "many":
                assert await visit.page.evaluate(PALE) == [], where
            assert visit.said == [], where


def page_of(keys: list[str]) -> str:
    """Return a report with all of these keys."""
    report = make_report(3, causes={"unknown": 2}, findings=True)
    [example] = report.examples["different"]
    examples = [replace(example, key=key, log={**example.log, "value": key}) for key in keys]
    return render_report(replace(report, examples={"different": examples}), made=MADE)


async def test_hostile_keys_are_text(browser, tmp_path: Path):
    """A page with them has the elements of a page with harmless ones, and they can be read."""
    found = []
    for name, keys in (("harmless", [f"customer-{number}" for number in range(len(HOSTILE))]), ("hostile", HOSTILE)):
        file = tmp_path / f"{name}.html"
        file.write_text(page_of(keys), encoding="utf-8")
        async with Visit(browser, file.as_uri()) as visit:
            await visit.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
            await visit.page.evaluate(TOUCH)
            found.append(await visit.page.evaluate(CENSUS))
            shown = await visit.page.evaluate("() => [...document.querySelectorAll('bdi')].map(b => b.textContent)")
            assert set(map(printable, keys)) <= set(shown)
            assert visit.page.url == file.as_uri()
            assert visit.said == []
    assert found[0] == found[1]
    assert not {"SCRIPT", "A", "IMG", "IFRAME", "FORM", "BASE", "OBJECT", "EMBED"} & set(found[0])


async def test_the_policy_of_a_page_stops_what_escaping_would_miss(browser, tmp_path: Path):
    planted = ["<script>alert(1)</script>", "<svg onload=alert(1)></svg>", "<base href='http://127.0.0.1:9/'>"]
    page = render_report(make_report(1), made=MADE).replace("<main>", f"{''.join(planted)}<main>", 1)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    async with Visit(browser, (tmp_path / "page.html").as_uri()) as visit:
        assert len(visit.said) == len(planted)
        assert all("Content Security Policy" in line for line in visit.said)


async def test_colours_follow_the_reader(browser, folder: Path):
    looks = {}
    for scheme in ("light", "dark"):
        async with Visit(browser, (folder / "damaged.html").as_uri(), color_scheme=scheme) as visit:
            looks[scheme] = await visit.page.evaluate(
                "() => [getComputedStyle(document.body).backgroundColor, "
                "getComputedStyle(document.querySelector('td')).color]"
            )
    assert looks["light"] == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    assert looks["dark"] == ["rgb(20, 23, 27)", "rgb(230, 233, 237)"]


@pytest.mark.parametrize("name", ["empty", pytest.param("damaged", marks=pytest.mark.nightly)])
async def test_paper_is_white_and_whole(browser, folder: Path, name: str):
    async with Visit(browser, (folder / f"{name}.html").as_uri(), color_scheme="dark") as visit:
        await visit.page.emulate_media(media="print", color_scheme="dark")
        assert (
            await visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert (await visit.page.pdf(format="A4")).startswith(b"%PDF")


async def test_damage_is_seen(browser, tmp_path: Path):
    """What the tests above look for, planted."""
    file = tmp_path / "bad.html"
    file.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><script>alert(1); console.log('x')</script>"
        "<img src='http://127.0.0.1:9/x'><div style='width: 900px; color: #ccc; background: #fff'>wide and pale</div>"
    )
    async with Visit(browser, file.as_uri(), viewport={"width": 390, "height": 800}) as visit:
        taken, given = await visit.page.evaluate(WIDE)
        assert taken > given
        assert len(await visit.page.evaluate(PALE)) == 1
        said = " ".join(visit.said)
        assert all(word in said for word in ("dialog: 1", "log: x", "request: http://127.0.0.1:9/x"))
