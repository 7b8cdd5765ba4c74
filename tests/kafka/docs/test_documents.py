"""Blocks of code of the documents that need a broker; `tests/unit/docs/test_blocks.py` runs the others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from actors.coordination import Coordination
from actors.coordination.errors import CoordinationTimeoutError
from tests.documents import block
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique

HERE = '"127.0.0.1:9092"'


class Printer:
    """What the page prints with."""

    def __init__(self) -> None:
        self.printed: list[tuple[str, int]] = []

    async def print(self, document: str, *, fence: int) -> None:
        self.printed.append((document, fence))


async def test_locks(
    brokers: str, workers: list[WorkerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, printer = unique("documents"), Printer()
    worker = WorkerProcess("tests.kafka.apps.documents_app", brokers, tmp_path / "one", APP_NAME=name).start()
    workers.append(worker)

    async def is_up() -> bool:
        async with Coordination(brokers, app=name) as client:
            try:
                await client.look("anything")
            except CoordinationTimeoutError:
                return False
        return True

    await eventually(is_up, what=worker.log)
    code = block("docs/how-to/coordination.md", "Locks, leaders and shared configuration", 2)
    changes = {HERE: f'"{brokers}", app="{name}"'}
    names = await code.run_async({"printer": printer, "document": "a letter"}, changes=changes)
    assert printer.printed == [("a letter", names["lease"].token)]

    code = block("docs/reference/api/coordination.md", "Example", 2)
    code = type(code)(code.label, code.language, code.code.replace(HERE, f'"{brokers}", app="{name}"'), code.line)
    found = await asyncio.to_thread(code.run, {})
    assert (found["version"], found["is_lost"], found["lease"].is_held) == (1, False, False)
    assert worker.terminate() == 0, worker.log()[-3000:]


class Config(msgspec.Struct):
    pages: int


async def test_a_view_outside_of_an_app(brokers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = unique("config")
    await make_topics(brokers, topic, config={"cleanup.policy": "compact"})
    await send(brokers, topic, [(b"printer-7", b'{"pages":11}'), (b"printer-8", b'{"pages":1}')])
    url = ";".join(f"kafka://{broker}" for broker in brokers.split(","))
    changes = {'"config"': f'"{topic}"', '"kafka://127.0.0.1:9092"': f'"{url}"', "/var/lib/me": str(tmp_path)}
    code = block("docs/how-to/views.md", "Views")
    async with asyncio.timeout(60):
        await code.run_async({"Config": Config, "timedelta": timedelta}, changes=changes)
    assert capsys.readouterr().out == ""
