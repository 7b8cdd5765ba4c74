"""A browser that looks at pages, and what it had to say."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.async_api", reason="playwright isn't installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")
CONTRAST = 4.5
# the contrast of every element with text of its own, drawings included, as WCAG defines it
PALE = """
() => {
  const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 };
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const found = numbers(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const node of document.body.querySelectorAll('*')) {
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(numbers(node.closest('svg') ? style.fill : style.color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < LEAST) pale.push(`${node.tagName} ${node.textContent.trim().slice(0, 40)} ${contrast.toFixed(2)}`);
  }
  return pale;
}
""".replace("LEAST", str(CONTRAST))
WIDE = "() => [document.documentElement.scrollWidth, window.innerWidth]"


async def browsers() -> AsyncIterator[Any]:
    """A browser for the time of a test."""
    async with playwright.async_playwright() as started:
        # Chromium's own sandbox doesn't start for root
        opened = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        await opened.close()


class Visit:
    """A page as it was opened, and what the browser had to say.

    Args:
        browser: the browser.
        url: the page's.
        home: what requests may begin with; others are noted.
        settings: of the browser's context.
    """

    def __init__(self, browser: Any, url: str, home: str = "", **settings: Any) -> None:
        self._browser, self._url, self._home, self._settings = browser, url, home or url, settings
        self.said: list[str] = []

    async def __aenter__(self) -> Visit:
        self._context = await self._browser.new_context(**self._settings)
        page = await self._context.new_page()
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", self._asked)
        page.on("request", self._requested)
        await page.goto(self._url, wait_until="load")
        self.page = page
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._context.close()

    def _logged(self, message: Any) -> None:
        # Chromium's own advice isn't the page's.
        if message.type != "verbose":
            self.said.append(f"{message.type}: {message.text}")

    async def _asked(self, dialog: Any) -> None:
        self.said.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(self._home) and not request.url.startswith("data:"):
            self.said.append(f"request: {request.url}")
