"""`faust dev` and `faust send` as a person uses them: real processes, a broker of their own, signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from actors.local_kafka.ports import is_free
from dev.kafka import Cluster, free_ports
from tests.kafka.helpers import ROOT, eventually

APP = """
import os
from actors import App

app = App("try", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:1"))
numbers = app.topic("numbers", key_type=str, value_type=int, partitioner="crc32")
sums = app.store("sums", value_type=int)


@app.actor(numbers, stores=[sums])
async def add(ctx, number: int) -> None:
    sums[ctx.key] = sums.get(ctx.key, 0) + number * 1
"""
FAUST = [sys.executable, "-c", "from actors.cli import cli; cli(prog_name='faust')"]
ENDS_S = 60.0
READY_S = 150.0


class Folder:
    """A project's folder, with two ports and the log of `faust dev`."""

    def __init__(self, path: Path) -> None:
        self.path = path / "project"
        self.temporary = path / "temporary"
        self.log_file = path / "log.txt"
        for folder in (self.path, self.temporary):
            folder.mkdir()
        self.port, self.web_port = free_ports(2)
        self.write(APP)

    def write(self, text: str) -> None:
        (self.path / "adder.py").write_text(text)

    def log(self) -> str:
        return self.log_file.read_text()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), "COLUMNS": "200"}

    def processes(self) -> list[str]:
        """The command lines of all processes that know of this folder."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.path.parent) in line:
                found.append(line)
        return found

    async def send(self, *words: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *FAUST,
            "send",
            *words,
            cwd=self.path,
            env={**self.environment(), "BROKER_URL": f"kafka://127.0.0.1:{self.port}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode()

    async def has(self, key: str, value: int) -> bool:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.web_port}/actors/sums/{key}") as reply,
        ):
            return reply.status == 200 and (await reply.json())["value"] == value

    @asynccontextmanager
    async def dev(self, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
        with self.log_file.open("w") as log:
            process = await asyncio.create_subprocess_exec(
                *FAUST, "dev", "--web-port", str(self.web_port), *words,
                cwd=self.path, env=self.environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                async with asyncio.timeout(ENDS_S):
                    await process.wait()


async def ended(process: asyncio.subprocess.Process, by: signal.Signals) -> int:
    process.send_signal(by)
    async with asyncio.timeout(ENDS_S):
        return await process.wait()


@pytest.mark.nightly
async def test_a_message_reaches_the_worker_which_is_reloaded_and_nothing_is_left(tmp_path):
    folder = Folder(tmp_path)
    async with folder.dev("--port", str(folder.port)) as dev:
        await eventually(lambda: "the worker is ready" in folder.log(), deadline_s=READY_S, what=folder.log)
        assert f"Dashboard: http://127.0.0.1:{folder.web_port}/dashboard" in folder.log()
        # Of four partitions, murmur2 has another one for most of these keys, and the actor would stop there.
        for key in ("ada", "bob", "eve"):
            code, said = await folder.send("numbers", "--key", key, "--value", "3")
            assert code == 0, said
        for key in ("ada", "bob", "eve"):
            await eventually(lambda key=key: folder.has(key, 3), what=folder.log)

        code, said = await folder.send("numbers", "--key", "ada", "--value", "three")
        assert (code, said.count("Error")) == (2, 1), said
        assert "topic numbers: value 'three' doesn't fit its type" in said
        code, said = await folder.send("nombers", "--key", "ada", "--value", "3")
        assert "The app declares: numbers" in said
        assert (code, json.dumps(said).count("Traceback")) == (1, 0)

        folder.write(APP + "\ndef (\n")
        await eventually(lambda: "waiting for a change" in folder.log(), what=folder.log)
        assert folder.log().count("SyntaxError") == 1
        assert "Traceback" not in folder.log()
        folder.write(APP.replace("* 1", "* 10"))
        await eventually(lambda: folder.log().count("the worker is ready") == 2, what=folder.log)
        assert (await folder.send("numbers", "1", "--key", "ada"))[0] == 0
        await eventually(lambda: folder.has("ada", 13), what=folder.log)

        assert folder.processes()
        assert await ended(dev, signal.SIGINT) == 0, folder.log()
    assert "Warning" not in folder.log()
    assert (folder.processes(), list(folder.temporary.iterdir())) == ([], [])
    assert is_free(folder.port)
    assert is_free(folder.web_port)


@pytest.mark.nightly
async def test_kept_data_is_there_the_next_time_also_after_a_kill(tmp_path):
    folder = Folder(tmp_path)
    kept = ("--keep", str(tmp_path / "kept"))
    async with folder.dev(*kept, "--port", str(folder.port)) as dev:
        await eventually(lambda: "the worker is ready" in folder.log(), deadline_s=READY_S, what=folder.log)
        assert (await folder.send("numbers", "--key", "ada", "--value", "3"))[0] == 0
        await eventually(lambda: folder.has("ada", 3), what=folder.log)
        await ended(dev, signal.SIGKILL)
        # The worker notices that it is alone; the broker of a folder that is kept goes on.
        await eventually(lambda: not any("dev_worker" in line for line in folder.processes()), what=folder.processes)
    async with folder.dev(*kept) as dev:
        await eventually(lambda: "the worker is ready" in folder.log(), deadline_s=READY_S, what=folder.log)
        await eventually(lambda: folder.has("ada", 3), what=folder.log)
        Cluster.open(tmp_path / "kept" / "kafka").kill(1)
        async with asyncio.timeout(ENDS_S):
            assert await dev.wait() == 1
    assert "Error: the broker ended: " in folder.log().splitlines()[-1]
    assert folder.processes() == []
    assert (tmp_path / "kept" / "kafka").is_dir()


async def test_a_broker_that_runs_is_used_and_goes_on(tmp_path, brokers):
    folder = Folder(tmp_path)
    (host, _, port), name = brokers.split(",")[0].rpartition(":"), f"t{folder.port}"
    folder.port = int(port)
    folder.write(APP.replace('"try"', f'"{name}"').replace('"numbers"', f'"{name}-numbers"'))
    async with folder.dev("--broker", f"{host}:{port}") as dev:
        await eventually(lambda: "the worker is ready" in folder.log(), deadline_s=READY_S, what=folder.log)
        assert (await folder.send(f"{name}-numbers", "--key", "ada", "--value", "3"))[0] == 0
        await eventually(lambda: folder.has("ada", 3), what=folder.log)
        assert await ended(dev, signal.SIGTERM) == 0, folder.log()
    assert (folder.processes(), list(folder.temporary.iterdir())) == ([], [])
    assert not is_free(folder.port)
