"""The tutorial on a real broker: its blocks run as they stand there, in order, with another port and other names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.local_kafka.jars import QUICK_START, ensure_jars
from dev.kafka import free_port
from tests import documents
from tests.documents import Block
from tests.kafka.helpers import ROOT, eventually, unique

PAGE = "docs/tutorial/shop.md"
EVERY_S = 600.0
"""How long one block may take; the one with Spark takes longest."""


class Reader:
    """Somebody who follows the page in a folder."""

    def __init__(self, folder: Path, brokers: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._brokers, self._name = brokers, unique("shop")
        self.queries: list[documents.Command] = []

    def mine(self, text: str) -> str:
        """Give the page's text with the test's broker, port and names of topics."""
        for old, new in (
            ("shop-", f"{self._name}-"),
            ('App("shop"', f'App("{self._name}"'),
            ("127.0.0.1:9092", self._brokers),
            ("6066", str(self.port)),
        ):
            text = text.replace(old, new)
        return text

    async def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.language == "bash":
            await self._run(block)
        elif block.language == "console":
            for command in documents.commands_in(block.code):
                self.queries.append(command)
                await eventually(lambda command=command: self._says(command), what=self.log)

    async def _run(self, block: Block) -> None:
        binaries = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "KAFKA_URL": ";".join(f"kafka://{broker}" for broker in self._brokers.split(",")),
            "FAUST_ACTORS": str(ROOT),
            "JAVA_TOOL_OPTIONS": " ".join(QUICK_START),
        }
        said = self.folder / "said.txt"
        with said.open("w") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-e", "-c", self.mine(block.code)),
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
            try:
                async with asyncio.timeout(EVERY_S):
                    code = await process.wait()
            except TimeoutError:
                process.kill()
                code = await process.wait()
        if code != 0:
            pytest.fail(f"{block.label} ends with {code}\n{said.read_text()[-3000:]}\n{self.log()}")

    async def _says(self, command: documents.Command) -> bool:
        try:
            return documents.shows(await documents.run(command, self.port), command.answer)
        except AssertionError:
            # The worker doesn't listen yet.
            return False

    def log(self) -> str:
        """Give the end of the worker's log."""
        path = self.folder / "worker.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def stop(self) -> None:
        """End the worker that the page started."""
        pid = self.folder / "worker.pid"
        if pid.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def reader(tmp_path: Path, brokers: str) -> Iterator[Reader]:
    """A reader whose worker is ended with the test."""
    made = Reader(tmp_path, brokers)
    yield made
    made.stop()


@pytest.mark.nightly
async def test_the_tutorial_from_the_first_line_to_the_audit(reader: Reader) -> None:
    blocks: list[Any] = documents.blocks_of(PAGE)
    program, test = [block for block in blocks if block.language == "python"]
    (reader.folder / "shop.py").write_text(reader.mine(program.code))
    (reader.folder / "test_shop.py").write_text(test.code)
    ensure_jars()
    assert shutil.which("java")
    for block in blocks:
        await reader.follow(block)
    assert reader.queries == documents.commands_of("docs/tutorial/shop.md")
