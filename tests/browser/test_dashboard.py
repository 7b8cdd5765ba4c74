"""The dashboard of real workers in a real browser: what is parked is retried and dropped, a worker dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors._core.partitioner import partition_for
from actors.coordination import Coordination
from actors.local_kafka.ports import free_ports
from tests.browser.visits import WIDE, Visit, browsers, needs_chromium
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique
from tests.unit.web.web_part import password

pytestmark = needs_chromium

PARTITIONS = 4
LIVE_MS = 60_000
READER, ADMIN = "a-token-to-look-with", "a-token-to-act-with"
LOGIN = {"username": "ada", "password": ADMIN}
"""What the browser's user answers when it asks."""


@dataclass
class Shop:
    """Two workers."""

    brokers: str
    name: str
    homes: list[str]
    workers: list[WorkerProcess]
    mended: Path

    async def send(self, *given: tuple[str, dict[str, Any]]) -> None:
        records = [(key.encode(), json.dumps(order).encode()) for key, order in given]
        await send(self.brokers, f"{self.name}-in", records, partitions=PARTITIONS)

    def log(self) -> str:
        return "\n".join(worker.log()[-3000:] for worker in self.workers)


@pytest.fixture(scope="module")
async def shop(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    name, folder = unique("shop"), tmp_path_factory.mktemp("shop")
    await make_topics(brokers, f"{name}-in", partitions=PARTITIONS)
    ports, workers, mended = free_ports(2), [], folder / "mended"
    try:
        for port in ports:
            environment = {"APP_NAME": name, "WEB_PORT": str(port), "MENDED_FILE": str(mended)}
            worker = WorkerProcess("tests.browser.shop_app", brokers, folder / str(port), **environment)
            workers.append(worker.start(web=True))
        found = Shop(brokers, name, [f"http://127.0.0.1:{port}" for port in ports], workers, mended)
        await eventually(lambda: all(" owns " in worker.log() for worker in workers), what=found.log)
        yield found
    finally:
        for worker in workers:
            worker.kill()


@pytest.fixture
async def browser() -> AsyncIterator[object]:
    async for opened in browsers():
        yield opened


async def test_who_is_not_allowed_to_does_nothing(shop: Shop) -> None:
    key = {"actor": "take_order", "what": "message", "partition": str(partition_for(b"ada", PARTITIONS)), "key": "YWRh"}
    retry = f"{shop.homes[0]}/dashboard/parked/retry"
    admin, reader = {"Authorization": f"Bearer {ADMIN}"}, {"Authorization": f"Bearer {READER}"}
    cases = [
        ("GET", f"{shop.homes[0]}/dashboard", {}, None, 401),
        ("GET", f"{shop.homes[0]}/dashboard/status.json", {}, None, 401),
        ("GET", retry, admin, key, 405),
        ("POST", retry, {}, key, 401),
        ("POST", retry, reader, key, 403),
        ("POST", retry, admin, {**key, "actor": "nobody"}, 404),
        ("POST", retry, admin, {**key, "what": "thing"}, 400),
        ("POST", retry, admin, {**key, "partition": "4"}, 400),
        ("POST", retry, admin, {**key, "key": "%%%"}, 400),
        ("POST", f"{shop.homes[0]}/dashboard/parked/drop", admin, key, 400),
        ("POST", retry, admin, key, 303),
    ]
    async with aiohttp.ClientSession() as session:
        for method, url, headers, form, status in cases:
            async with session.request(method, url, headers=headers, data=form, allow_redirects=False) as answer:
                assert answer.status == status, (method, url, headers, form, await answer.text())
        for path, status in (("?x=<script>", 200), ("/actor?name=<script>", 404), ("/status.json", 200)):
            as_person = {**reader, "Accept": "text/html"}
            async with session.get(f"{shop.homes[1]}/dashboard{path}", headers=as_person) as answer:
                assert answer.status == status
                assert "<script>" not in await answer.text()
                assert answer.headers["Cache-Control"] == "no-store"
    # A browser sends a password for any page that asks: what it may do has to come from our own.
    async with aiohttp.ClientSession(headers=password(ADMIN)) as session:
        for origin, status in (("http://elsewhere.example", 403), (shop.homes[0], 303)):
            headers = {"Origin": origin}
            async with session.post(retry, headers=headers, data=key, allow_redirects=False) as answer:
                assert answer.status == status, await answer.text()


@pytest.mark.nightly
async def test_the_dashboard_of_two_workers_through_trouble(shop: Shop, browser) -> None:
    await shop.send(
        ("ada", {"name": "a0", "poison": True}),
        ("ada", {"name": "a1"}),
        ("bob", {"name": "b0", "poison": True}),
        ("bob", {"name": "b1"}),
        ("cleo", {"name": "c0", "ship": True}),
        ("dora", {"name": "d0", "later": True}),
    )
    home = shop.homes[0]
    async with Visit(browser, f"{home}/dashboard", home, http_credentials=LOGIN) as visit:
        page = visit.page
        await page.locator("#verdict").wait_for()
        await page.evaluate("() => { window.isTheSame = true }")
        await sees_everything(page, shop)
        await retries(page, shop)
        await drops(browser, home)
        await pauses(page, shop)
        await one_dies(page, shop)
        assert await page.evaluate("() => window.isTheSame"), "the page was loaded anew"
        assert visit.said == []
        # Whoever looks at a page doesn't hold its worker up.
        assert await asyncio.to_thread(shop.workers[0].terminate) == 0, shop.log()
        await says(page, "#link", "No answer since")


async def sees_everything(page, shop: Shop) -> None:
    await says(page, "#verdict", "1 thing needs attention")
    await says(page, "#a-take_order", f"{PARTITIONS} of {PARTITIONS}")
    await says(page, "#parked", "3")
    async with Coordination(shop.brokers, app=shop.name, call_timeout=60) as locks:
        async with locks.lock("printer", ttl=60, data="invoices"):
            await says(page, "#locks", "1")
            await says(page, "#lock-printer", "invoices")
        await page.locator("#lock-printer").wait_for(state="detached", timeout=LIVE_MS)
    await says(page, "#a-take_order", "in 59 min")
    for number in range(PARTITIONS):
        row = await page.locator(f"#p-take_order-{number}").inner_text()
        assert "Running" in row
        assert row.split()[1] == str(number)
    owners = await page.locator("tr[id^='p-take_order'] td[data-name=Owner]").all_inner_texts()
    assert len(set(owners)) == 2, owners
    assert await page.locator("tr[id^='w-']").count() == 2
    text = await line_of(page, "ada").inner_text()
    assert "can't take a0" in text
    for width in (390, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        taken, given = await page.evaluate(WIDE)
        assert taken <= given == width


async def retries(page, shop: Shop) -> None:
    """Retry while it can't work, and when it can."""
    await line_of(page, "ada").get_by_role("button", name="Retry key ada").click()
    await says(page, "#actions", "failed again")
    shop.mended.touch()
    await line_of(page, "ada").get_by_role("button", name="Retry key ada").click()
    await says(page, "#actions", "2 handled; nothing of the key is parked any more")
    await line_of(page, "ada").wait_for(state="detached", timeout=LIVE_MS)
    shop.mended.unlink()


async def drops(browser, home: str) -> None:
    """Drop from the page that asks first, without scripts."""
    async with Visit(browser, f"{home}/dashboard", home, java_script_enabled=False, http_credentials=LOGIN) as visit:
        page = visit.page
        await line_of(page, "bob").get_by_role("link", name="Drop key bob").click()
        text = await page.locator("main").inner_text()
        assert "can't take b0" in text
        assert '{"name":"b1"}' in text
        await page.get_by_role("button", name="Drop the first").click()
        assert page.url == f"{home}/dashboard#actions"

        async def is_dropped() -> bool:
            await page.goto(f"{home}/dashboard")
            return "1 dropped; 1 message is still parked" in await page.locator("#actions").inner_text()

        await eventually(is_dropped)
        await line_of(page, "bob").get_by_role("link", name="Drop key bob").click()
        assert "b0" not in await page.locator("main").inner_text()
        await page.get_by_role("button", name="Drop all 1").click()

        async def is_gone() -> bool:
            await page.goto(f"{home}/dashboard")
            return await line_of(page, "bob").count() == 0

        await eventually(is_gone)
        assert visit.said == []


async def pauses(page, shop: Shop) -> None:
    """Pause an actor, let it wait, and go on with one partition and then with the others; look at the plots."""
    home, number = shop.homes[0], partition_for(b"emma", PARTITIONS)
    await page.goto(f"{home}/dashboard/actor?name=take_order")
    await page.evaluate("() => { window.isTheSame = true }")
    await page.get_by_role("button", name="Pause take_order", exact=True).click()
    await says(page, "h1", "Paused")
    await says(page, "#actions", "Pause take_order, all partitions")
    await shop.send(("emma", {"name": "e0"}))
    await says(page, f"#p-take_order-{number} [data-name=Lag]", "1")
    await page.get_by_role("button", name=f"Resume take_order, partition {number}").click()
    await says(page, f"#p-take_order-{number}", "Running")
    await says(page, f"#p-take_order-{number} [data-name=Lag]", "0")
    others = [one for one in range(PARTITIONS) if one != number]
    assert "Paused" in await page.locator(f"#p-take_order-{others[0]}").inner_text()
    for one in others:
        await page.get_by_role("button", name=f"Resume take_order, partition {one}").click()
        await says(page, f"#p-take_order-{one}", "Running")
    assert await page.evaluate("() => window.isTheSame"), "the page was loaded anew"
    await page.locator(f"#p-take_order-{number} th a").click()
    for path in (f"/dashboard/actor?name=take_order&partition={number}", "/dashboard"):
        if path == "/dashboard":
            await page.goto(home + path)
        assert page.url == home + path
        drawn = page.locator(".plots svg path:not(.base)")
        await page.wait_for_function(
            "() => [...document.querySelectorAll('.plots svg path:not(.base)')].every(one => one.getAttribute('d'))",
            timeout=LIVE_MS,
        )
        assert await drawn.count() == 4
    await page.evaluate("() => { window.isTheSame = true }")


async def one_dies(page, shop: Shop) -> None:
    dead, left = await worker_at(shop.homes[1]), await worker_at(shop.homes[0])
    epochs = await epochs_of(page)
    shop.workers[1].kill()
    await says(page, f"[id='w-{dead}']", "Gone")
    for number in range(PARTITIONS):
        await says(page, f"#p-take_order-{number} td[data-name=Owner]", left)
        await says(page, f"#p-take_order-{number} td[data-name=State]", "Running")
    assert sum(now > then for now, then in zip(await epochs_of(page), epochs, strict=True)) >= 1
    await says(page, "#verdict", "2 things need attention")


def line_of(page, key: str):
    """The row of what is parked of a key."""
    return page.locator("tr[id^='line-']").filter(has=page.locator("th bdi", has_text=key))


async def says(page, selector: str, text: str) -> None:
    """Wait until the page says something, without loading it anew."""
    await page.locator(selector).filter(has_text=text).first.wait_for(timeout=LIVE_MS)


async def epochs_of(page) -> list[int]:
    texts = await page.locator("tr[id^='p-take_order'] td[data-name=Epoch]").all_inner_texts()
    return [int(text) for text in texts]


async def worker_at(home: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{home}/dashboard/status.json", headers={"Authorization": f"Bearer {READER}"}) as answer,
    ):
        return (await answer.json())["status"]["worker"]
