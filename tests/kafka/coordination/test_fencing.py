"""A fenced actor on a real broker: a holder that is stopped past its lease is refused, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from actors.coordination import Coordination
from examples.fenced_ledger import Line
from tests.kafka.coordination.test_coordination import wait_until_up
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, read_all, unique

TTL_S, PAUSE_S = 2, 3
EXAMPLE = "examples.fenced_ledger"


@pytest.fixture
async def ledger(brokers: str, tmp_path: Path) -> AsyncIterator[str]:
    """The lock service and the ledger, in a process of their own; their app's name."""
    name = unique("ledger")
    await make_topics(brokers, f"{name}-writes", f"{name}-lines", partitions=1)
    worker = WorkerProcess(EXAMPLE, brokers, tmp_path / "service", APP_NAME=name).start()
    try:
        async with Coordination(brokers, app=name, call_timeout=60) as client:
            await wait_until_up(client)
        yield name
    finally:
        worker.kill()


class Holder:
    """A writer of the example in a process of its own; what it prints goes to a file."""

    def __init__(self, name: str, folder: Path, brokers: str, app: str) -> None:
        self._log = folder / f"{name}.log"
        self._name = name
        self._environment = {**os.environ, "KAFKA_URL": brokers, "APP_NAME": app}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", EXAMPLE, self._name, str(TTL_S), str(PAUSE_S)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )

    def printed(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)

    async def prints(self, words: str) -> None:
        await eventually(
            lambda: words in self.printed(), what=lambda: f"{self._name} printed {self.printed()!r}, not {words!r}"
        )


@pytest.fixture
def holders(brokers: str, ledger: str, tmp_path: Path) -> Iterator[list[Holder]]:
    made = [Holder(name, tmp_path, brokers, ledger) for name in ("first", "second")]
    yield made
    for holder in made:
        holder.end()


async def test_a_holder_that_was_stopped_past_its_lease_is_refused(
    brokers: str, ledger: str, holders: list[Holder]
) -> None:
    first, second = holders
    first.start()
    await first.prints("first wrote 0 ")
    first.signal(signal.SIGSTOP)
    second.start()
    await second.prints("second wrote 0 ")
    first.signal(signal.SIGCONT)
    await first.prints("first refused")
    await second.prints("second wrote 1 ")
    records = await read_all(brokers, f"{ledger}-lines")
    content = [msgspec.json.decode(record.value, type=Line) for record in records]
    assert [line.text for line in content][:3] == ["first 0", "second 0", "second 1"]
    old, new = (line.token for line in content[:2])
    assert old < new
    assert [line.token for line in content] == sorted(line.token for line in content)
    assert f"token {old} is refused, since {new} was seen" in first.printed()
    assert "first wrote 1 " not in first.printed()
