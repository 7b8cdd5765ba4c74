"""Takes the pictures of the documentation, in Chromium: the dashboard, a report and the command line.

    python -m dev.screenshots          writes docs/dashboard.png, and report, command-line and faust.png in docs/assets

The dashboard and the report have the made-up figures of their tests; the commands are run. Nothing is fetched, and no
broker is needed. Chromium: `apt-get install --no-install-recommends chromium`.
"""

from __future__ import annotations

import asyncio
import html
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Route, async_playwright

from actors.web.dashboard.history import STEPS, Series
from actors.web.dashboard.pages import MIME_TYPES
from actors.web.dashboard.plots import draw
from actors.web.dashboard.rendering import Pages
from actors.web.dashboard.view import build
from spark_replay.report.html import render_report
from tests.browser.statuses import busy
from tests.spark.report.pages import MADE, make_report

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SPARK_REPLAY = ("-m", "spark_replay", "--help")
FAUST = ("-c", "from actors.cli import cli; cli(prog_name='faust')", "--help")
_WIDTH_PX = 1180
_PAUSED = ("ship", 2)
_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #14171b }}
pre {{ margin: 0; padding: 24px; color: #e6e9ed; font: 14px/1.4 monospace }}
</style><pre>{text}</pre>"""


def dashboard() -> str:
    """Return the dashboard's first page of a group in trouble, with a paused partition."""
    status = busy()
    for worker in status.workers:
        tasks = [] if worker.status is None else worker.status.tasks
        for place, task in enumerate(tasks):
            if (task.actor, task.partition) == _PAUSED:
                tasks[place] = replace(task, paused_at_ms=status.at_ms - 420_000, paused_by="ada", lag=3_120)
    return Pages().render(
        "overview.html",
        view=build(status, None),
        recent=[],
        plots=draw([_last_minutes()]),
        app=status.app,
        is_polled=False,
        is_live=False,
        may_act=True,
        is_logged_in=True,
    )


def _last_minutes() -> Series:
    """Return a quarter of an hour: a steady load, and lag from the moment on at which a partition was halted."""
    waves = [math.sin(step / 7) + math.sin(step / 3) / 3 for step in range(STEPS)]
    halted = STEPS * 2 // 3
    return Series(
        first=0,
        records=[28_500 + 1_200 * wave for wave in waves],
        lag=[400 + 150 * wave + max(0, step - halted) * 860 for step, wave in enumerate(waves)],
        commit_s=[2.0 + 0.3 * wave for wave in waves],
        commits=[100.0] * STEPS,
        errors=[float(step == halted) for step in range(STEPS)],
    )


def report() -> str:
    """Return a report of a validation that found something."""
    causes = {"record_without_metadata": 1, "stale_owner": 4, "never_committed": 13}
    return render_report(make_report(12, causes=causes, findings=True), made=MADE)


def command_line(shown: str, words: Sequence[str]) -> str:
    """Run a command of this Python and return a page with what it prints, below the command as it is shown."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    shown = f"$ {shown}\n{done.stdout.rstrip()}"
    return _TERMINAL.format(text=html.escape(shown))


async def take(browser: Browser, page: str, file: Path, *, height_px: int | None = None) -> None:
    """Write a picture of a page.

    Args:
        browser: the browser.
        page: the page's HTML; the dashboard's files are the only others that it gets.
        file: the picture's.
        height_px: of the picture, from the top on; by default the whole page.
    """

    async def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2].partition("?")[0]
        if name in MIME_TYPES:
            await route.fulfill(body=Pages().file(name), content_type=MIME_TYPES[name])
        else:
            await route.fulfill(body=page, content_type="text/html; charset=utf-8")

    context = await browser.new_context(viewport={"width": _WIDTH_PX, "height": height_px or 100}, color_scheme="light")
    opened = await context.new_page()
    await opened.route("**/*", answer)
    await opened.goto("http://faust-actors.invalid/dashboard", wait_until="load")
    await opened.screenshot(path=file, full_page=height_px is None)
    await context.close()


async def main() -> int:
    """Take all pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium on PATH: apt-get install --no-install-recommends chromium")
        return 1
    pictures: list[tuple[str, str, int | None]] = [
        (dashboard(), "dashboard.png", 1120),
        (report(), "assets/report.png", 1100),
        (command_line("python -m spark_replay --help", SPARK_REPLAY), "assets/command-line.png", None),
        (command_line("faust --help", FAUST), "assets/faust.png", None),
    ]
    async with async_playwright() as playwright:
        # Chromium's own sandbox doesn't start for root.
        options: dict[str, Any] = {"executable_path": chromium, "args": ["--no-sandbox"]}
        browser = await playwright.chromium.launch(**options)
        for page, name, height_px in pictures:
            await take(browser, page, DOCS / name, height_px=height_px)
            print(DOCS / name)
        await browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
