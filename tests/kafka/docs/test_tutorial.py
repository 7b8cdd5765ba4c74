"""The tutorial as a stranger follows it: the wheel in an empty folder, and its blocks in order, with other ports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.local_kafka.jars import QUICK_START
from dev.kafka import free_ports
from tests import documents
from tests.documents import Block
from tests.kafka.helpers import ROOT, eventually
from tests.wheel.building import build

PAGE = "docs/tutorial/shop.md"
EVERY_S = 900.0
"""How long one block may take; the one that installs Spark takes longest."""
ENDS_S = 120.0
READY_S = 300.0


class Reader:
    """Somebody who follows the page: a shell that goes from block to block, and a terminal for `faust dev`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here = folder
        self.queries: list[documents.Command] = []
        self._state = folder / "shell.txt"
        self._path = os.environ["PATH"]
        self._dev: Process | None = None
        self.port, self._web_port, self._second_port = free_ports(3)

    def mine(self, text: str) -> str:
        """Give the page's text with the test's ports."""
        mine = {
            "faust dev": f"faust dev --port {self.port} --web-port {self._web_port}",
            "127.0.0.1:9092": f"127.0.0.1:{self.port}",
            "6066": str(self._web_port),
            "6067": str(self._second_port),
        }
        return re.sub("|".join(map(re.escape, mine)), lambda found: mine[found[0]], text)

    async def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.language == "python":
            name = "shop.py" if "App(" in block.code else "test_shop.py"
            assert (self.here / name).exists(), f"{block.label}: the page replaces {name}, and there is none"
            (self.here / name).write_text(block.code)
        elif block.language == "bash" and block.code.startswith("faust dev"):
            await self.end_dev()
            await self._start_dev(block)
        elif block.language == "bash":
            await self._run(block)
        elif block.language == "console":
            for command in documents.commands_in(block.code):
                self.queries.append(command)
                await eventually(lambda command=command: self._says(command), what=self.log, deadline_s=READY_S)

    def _environment(self) -> dict[str, str]:
        hidden = ("PYTHON", "VIRTUAL_ENV", "KAFKA_", "SPARK_")
        return {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {
            "PATH": self._path,
            # `faust dev` prints it, because its port is another one than the default
            "BROKER_URL": f"kafka://127.0.0.1:{self.port}",
            "JAVA_TOOL_OPTIONS": " ".join(QUICK_START),
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        }

    async def _run(self, block: Block) -> None:
        end = f"trap 'pwd > {self._state}; echo \"$PATH\" >> {self._state}' EXIT\n"
        said = self.folder / "said.txt"
        with said.open("w") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-e", "-c", end + self.mine(block.code)),
                cwd=self.here,
                env=self._environment(),
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
        here, self._path = self._state.read_text().splitlines()
        self.here = Path(here)
        if "> worker.pid" in block.code:
            worker = self.here / "worker.log"
            await eventually(lambda: "actor Cart owns" in worker.read_text(), what=self.log, deadline_s=READY_S)

    async def _start_dev(self, block: Block) -> None:
        with (self.folder / "dev.log").open("w") as log:
            self._dev = await asyncio.create_subprocess_exec(
                *shlex.split(self.mine(block.code)), cwd=self.here, env=self._environment(), stdout=log, stderr=log
            )
        await eventually(
            lambda: "the worker is ready" in self.log() or self._dev.returncode is not None,
            what=self.log,
            deadline_s=READY_S,
        )
        assert self._dev.returncode is None, self.log()

    async def end_dev(self) -> None:
        """Press Ctrl-C in the terminal of `faust dev`."""
        if self._dev is not None and self._dev.returncode is None:
            self._dev.send_signal(signal.SIGINT)
            async with asyncio.timeout(ENDS_S):
                assert await self._dev.wait() == 0, self.log()

    async def _says(self, command: documents.Command) -> bool:
        try:
            return documents.shows(await documents.run(command, self._web_port), command.answer)
        except AssertionError:
            # The worker doesn't listen yet.
            return False

    def log(self) -> str:
        """Give the ends of the workers' logs."""
        paths = (self.folder / "dev.log", self.here / "worker.log")
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths if path.exists())

    async def stop(self) -> None:
        """End what the page started and a failed test left."""
        pid = self.here / "worker.pid"
        if pid.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        await self.end_dev()


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    """A reader in a folder that has nothing but the wheel."""
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.copy(build(tmp_path), folder)
    made = Reader(folder)
    yield made
    await made.stop()


@pytest.mark.nightly
@pytest.mark.timeout(2 * EVERY_S)
async def test_the_tutorial_from_the_wheel_to_the_audit(reader: Reader) -> None:
    blocks: list[Any] = documents.blocks_of(PAGE)
    for block in blocks:
        await reader.follow(block)
    assert reader.queries == documents.commands_of("docs/tutorial/shop.md")
    assert reader.here == reader.folder / "shop"
    assert "for topic in shop-carts shop-items shop-orders; do" in (reader.here / "compose.yaml").read_text()
    await reader.end_dev()
