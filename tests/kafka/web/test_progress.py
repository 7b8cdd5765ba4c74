"""What a worker says while it restores: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiokafka import AIOKafkaProducer

from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, producing, unique
from tests.terminal import Screen

MODULE = "tests.kafka.apps.counter_app"
RECORDS = 200_000
STALLED = "waiting for the last stable offset, held back by an open transaction (counts[0])"


async def begin(brokers: str) -> str:
    """An app with so many records in its changelog."""
    name = unique("progress")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    await make_topics(brokers, f"{name}-counts-changelog", partitions=1, config={"cleanup.policy": "compact"})
    async with producing(brokers, max_batch_size=900_000) as producer:
        batch, sent = producer.create_batch(), []
        for number in range(RECORDS):
            record = {"key": b"k%d" % number, "value": b"1", "timestamp": None}
            if batch.append(**record) is None:
                sent.append(await producer.send_batch(batch, f"{name}-counts-changelog", partition=0))
                batch = producer.create_batch()
                batch.append(**record)
        sent.append(await producer.send_batch(batch, f"{name}-counts-changelog", partition=0))
        await asyncio.gather(*sent)
    return name


@asynccontextmanager
async def open_transaction(brokers: str, *names: str) -> AsyncIterator[None]:
    """Somebody's transaction at the end of the apps' changelogs, for the time of the block."""
    producer = AIOKafkaProducer(bootstrap_servers=brokers, transactional_id=unique("other"))
    await producer.start()
    try:
        async with producer.transaction():
            for name in names:
                await producer.send_and_wait(f"{name}-counts-changelog", b"2", b"k0", partition=0)
            yield
    finally:
        await producer.stop()


class OnTerminal:
    """A program on a pseudo-terminal of 100 columns."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # Linux says EIO when nobody has the other side any more.
        try:
            while piece := os.read(self._master, 65_536):
                self._output += piece
        except OSError:
            return

    @property
    def shown(self) -> str:
        """What is on the screen now."""
        return Screen(100).feed(bytes(self._output).decode(errors="replace")).text

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        self._reader.join(20)
        os.close(self._master)


@contextmanager
def worker_on_terminal(brokers: str, name: str, folder: Path, *options: str) -> Iterator[OnTerminal]:
    program = OnTerminal(
        *(sys.executable, "-m", "faust", "-A", MODULE, "-D", str(folder), "worker", "--without-web", *options),
        APP_NAME=name,
        KAFKA_URL=f"kafka://{brokers}",
    )
    try:
        yield program
    finally:
        program.end()


async def test_a_restore_shows_lines_and_a_bar(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    names = [await begin(brokers) for _ in range(3)]
    in_log = WorkerProcess(MODULE, brokers, tmp_path / "lines", APP_NAME=names[0])
    async with open_transaction(brokers, *names):
        workers.append(in_log.start())
        with (
            worker_on_terminal(brokers, names[1], tmp_path / "spinner") as with_spinner,
            worker_on_terminal(brokers, names[2], tmp_path / "info", "-l", "info") as with_info,
        ):
            for worker in (with_spinner, with_info):
                await eventually(lambda worker=worker: STALLED in worker.shown, what=lambda worker=worker: worker.shown)
                bars = [line for line in worker.shown.splitlines() if line.startswith("restoring counts[0]")]
                assert len(bars) == 1, worker.shown
                assert "200,000 of 200,001" in bars[0]
                assert worker.shown.splitlines()[-1] == STALLED
                worker.process.terminate()
            for worker in (with_spinner, with_info):
                assert await asyncio.to_thread(worker.process.wait, 20) == 0
                assert "restoring counts[0]" not in worker.shown, worker.shown
        await eventually(lambda: STALLED in in_log.log(), what=in_log.log)
    assert "restoring counts[0] 200,000 of 200,001" in in_log.log()
    assert "\x1b[" not in in_log.log()
    await eventually(lambda: "this worker has partitions of count 0, after" in in_log.log(), what=in_log.log)
