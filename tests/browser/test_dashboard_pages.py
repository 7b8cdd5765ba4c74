"""The dashboard's pages with made-up statuses in a real browser: quiet, offline, as wide as the window, readable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from actors.web.dashboard.pages import HEADERS, MIME_TYPES
from actors.web.dashboard.plots import draw
from actors.web.dashboard.rendering import Pages
from actors.web.dashboard.view import build
from actors.web.operations import Action
from tests.browser import statuses
from tests.browser.visits import PALE, WIDE, Visit, browsers, needs_chromium
from tests.kafka.helpers import eventually

pytestmark = needs_chromium

LOOKS = {"light": [360, 800, 1280], "dark": [390, 1030]}
OTHER_LOOKS = {"light": [390, 1030], "dark": [360, 800, 1280]}
DONE = Action("Retry messages of key a in take_order, partition 2", "somebody", statuses.NOW_MS, "good", "3 handled")


class Site:
    """A web server with pages of made-up statuses: `/dashboard?of=busy`."""

    def __init__(self) -> None:
        self.pages = Pages()
        self.picture: Any = None
        self.damage = ""
        self.asked = 0

    async def page(self, request: web.Request) -> web.Response:
        self.asked += 1
        found = self.picture or getattr(statuses, request.query["of"])()
        actor = request.query.get("name")
        text = self.pages.render(
            "actor.html" if actor else "overview.html",
            view=build(found, actor),
            recent=[DONE],
            plots=draw([statuses.samples()]),
            chosen=None,
            app=found.app,
            is_polled=True,
            is_live="Actors-Live" in request.headers,
            may_act=True,
            is_logged_in=True,
        )
        return web.Response(text=text + self.damage, content_type="text/html", headers=HEADERS)

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.Response(body=self.pages.file(name), content_type=MIME_TYPES[name])


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[object]:
    async for opened in browsers():
        yield opened


@pytest.fixture
async def site() -> AsyncIterator[tuple[Site, str]]:
    made, app = Site(), web.Application()
    app.router.add_get("/dashboard", made.page)
    app.router.add_get("/dashboard/actor", made.page)
    app.router.add_get("/dashboard/{name}", made.file)
    runner = web.AppRunner(app)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    port = server._server.sockets[0].getsockname()[1]
    yield made, f"http://127.0.0.1:{port}"
    await runner.cleanup()


@pytest.mark.parametrize(
    "of",
    [
        "busy",
        "nasty",
        *(pytest.param(of, marks=pytest.mark.nightly) for of in ("quiet", "many", "copied", "joined", "windowed")),
    ],
)
@pytest.mark.parametrize("looks", [LOOKS, pytest.param(OTHER_LOOKS, marks=pytest.mark.nightly)], ids=["each", "other"])
async def test_pages_fit_and_can_be_read_and_stay_at_home(
    browser, site: tuple[Site, str], of: str, looks: dict[str, list[int]]
) -> None:
    paths = [f"/dashboard?of={of}", f"/dashboard/actor?of={of}&name=take_order"]
    for path in paths[: 1 if of == "many" else 2]:
        for scheme, widths in looks.items():
            async with Visit(browser, site[1] + path, site[1], color_scheme=scheme) as visit:
                for width in widths:
                    where = (path, width, scheme)
                    await visit.page.set_viewport_size({"width": width, "height": 800})
                    taken, given = await visit.page.evaluate(WIDE)
                    assert taken <= given == width, where
                # All rows of a long table look alike.
                assert of == "many" or await visit.page.evaluate(PALE) == [], where
                assert visit.said == [], path


async def test_tables_have_names_and_headers_on_every_screen(browser, site: tuple[Site, str]) -> None:
    for width in (390, 1280):
        async with Visit(browser, f"{site[1]}/dashboard?of=busy", viewport={"width": width, "height": 800}) as visit:
            tables = visit.page.get_by_role("table")
            assert await tables.count() == 5
            for number in range(5):
                table = tables.nth(number)
                assert len(await table.locator("caption").inner_text()) > 10
                assert await table.get_by_role("row").count() > 1
                assert await table.get_by_role("rowheader").count() > 0
            # What only a wide screen has a column for is in the row's name on a narrow one.
            row = visit.page.locator("#p-take_order-4")
            assert "Halted" in await row.inner_text()
            assert "48,211" in await row.inner_text()


async def test_plots_are_drawn_in_their_boxes(browser, site: tuple[Site, str]) -> None:
    async with Visit(browser, f"{site[1]}/dashboard?of=quiet", site[1]) as visit:
        plots = visit.page.get_by_role("img", name="the last 15 minutes")
        assert await plots.count() == 4
        for number in range(4):
            box = await plots.nth(number).bounding_box()
            line = await plots.nth(number).locator("path").last.bounding_box()
            assert box is not None
            assert line is not None
            assert line["width"] > box["width"] * 0.9
            assert box["height"] * 0.5 < line["height"] <= box["height"]
        texts = [" ".join(one.split()) for one in await visit.page.locator(".plots figcaption").all_inner_texts()]
        assert texts == [
            "Records/s 217 at most 217",
            "Lag 21,700 at most 21,700",
            "Commit 108 ms at most 108 ms",
            "Errors a minute 0 at most 1",
        ]
        assert visit.said == []


async def test_each_input_of_an_actor_has_a_row(browser, site: tuple[Site, str]) -> None:
    async with Visit(browser, f"{site[1]}/dashboard/actor?of=joined&name=take_order") as visit:
        rows = visit.page.locator("section[aria-labelledby=inputs] tbody tr")
        found = [" ".join(text.split()) for text in await rows.all_inner_texts()]
        assert found == ["orders 0 0 77,000 77,000", "payments 14,436 2 77,002 86,626"]
        assert "reads topic orders and payments" in await visit.page.locator("main").inner_text()
    async with Visit(browser, f"{site[1]}/dashboard/actor?of=quiet&name=take_order") as visit:
        assert await visit.page.locator("section[aria-labelledby=inputs]").count() == 0


async def test_what_changes_changes_in_place(browser, site: tuple[Site, str]) -> None:
    made, home = site
    made.picture = statuses.busy()
    async with Visit(browser, f"{home}/dashboard", home) as visit:
        page = visit.page
        await page.evaluate("() => { document.querySelector('#a-ship').mark = 'the same' }")
        await page.locator("#w-till-2 a").focus()
        await page.evaluate("() => scrollTo(0, 300)")
        asked = made.asked
        await eventually(lambda: made.asked >= asked + 2)
        assert await page.evaluate("() => document.querySelector('#a-ship').mark") == "the same"
        assert await page.evaluate("() => document.activeElement.closest('tr').id") == "w-till-2"
        assert await page.evaluate("() => scrollY") == 300
        assert await page.title() == "(!) shop"
        assert await page.locator("#verdict").inner_text() == "5 things need attention"
        made.picture = statuses.quiet()
        await page.wait_for_function("() => document.querySelector('#verdict').textContent === 'Everything runs'")
        assert await page.locator("#w-till-2").count() == 0
        assert await page.title() == "shop"
        assert visit.said == []


async def test_a_page_without_scripts_loads_itself_anew(browser, site: tuple[Site, str]) -> None:
    url = f"{site[1]}/dashboard?of=quiet"
    async with Visit(browser, url, site[1], java_script_enabled=False) as visit:
        assert await visit.page.locator("noscript meta[http-equiv=refresh]").count() == 1
        assert await visit.page.locator("#verdict").inner_text() == "Everything runs"


async def test_damage_is_seen(browser, site: tuple[Site, str]) -> None:
    """What the tests above look for, planted."""
    made, home = site
    made.damage = "<div style='width: 900px; color: #ccc'>wide</div><img src='http://127.0.0.1:9/x'><script>1</script>"
    async with Visit(browser, f"{home}/dashboard?of=quiet", home, viewport={"width": 390, "height": 800}) as visit:
        # The page's own policy lets no inline style in, no foreign image, no inline script.
        said = " ".join(visit.said)
        assert "style" in said
        assert "img" in said
        assert "script" in said
        await visit.page.evaluate("() => { document.querySelector('footer').style.width = '900px' }")
        taken, given = await visit.page.evaluate(WIDE)
        assert taken > given
        await visit.page.evaluate("() => { document.querySelector('footer').style.color = '#ccc' }")
        assert len(await visit.page.evaluate(PALE)) > 0
