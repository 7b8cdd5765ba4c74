"""Workers that can be killed, and commands that run to their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dev.demo.names import FOLDER, ROOT, STOP_S, DemoError
from dev.kafka import free_port


class WorkerProcess:
    """A real `faust worker` with a data folder of its own. Each start has a new web port, so a new address."""

    def __init__(self, name: str, brokers: str) -> None:
        self.name = name
        self.folder = FOLDER / name
        self.log_file = FOLDER / f"{name}.log"
        self.port = 0
        self._environment = environment(brokers)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Its log is appended to."""
        self.port = free_port()
        command = [*app_command(self.folder), "worker", "--loglevel", "info", "--web-port", str(self.port)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        """Raise if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            said = self.log_file.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise DemoError(f"{self.name} ended with code {self._process.returncode}: {said[-1]}")

    def owns(self, address: str) -> bool:
        """Return whether an address in the leader registry is this process."""
        return address.endswith(f":{self.port}")

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait for the end of one that was asked to stop; kill it if it takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


def app_command(folder: Path) -> list[str]:
    """Return the beginning of a command of the example's app."""
    return [sys.executable, "-m", "faust", "-A", "examples.run_commands", "-D", str(folder)]


def environment(brokers: str) -> dict[str, str]:
    """Return the environment in which the example's app finds the brokers."""
    return {**os.environ, "KAFKA_URL": ";".join(f"kafka://{address}" for address in brokers.split(","))}


async def run(
    name: str,
    command: Sequence[str],
    *,
    deadline_s: float,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run a command to its end, and give the JSON object of its last line, or {}.

    What it says goes to `{name}.log`.

    Args:
        name: for the log and for errors.
        command: what to run.
        deadline_s: after so many seconds it is killed.
        stdin: its standard input.
        env: its environment; ours by default.
        note: is told each line of its standard error.

    Raises:
        DemoError: it failed or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    log = FOLDER / f"{name}.log"
    try:
        async with asyncio.timeout(deadline_s):
            said = await _follow(process, stdin, log, note)
            code = await process.wait()
    except TimeoutError:
        raise DemoError(f"{name} wasn't done after {deadline_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    lines = said.strip().splitlines() or [""]
    result = _parsed(lines[-1])
    if code != 0 and not result:
        raise DemoError(f"{name} failed with code {code}: {_last_line(log)}")
    return result


async def _follow(
    process: asyncio.subprocess.Process, stdin: bytes, log: Path, note: Callable[[str], None] | None
) -> str:
    """Feed a process and write down what it says; give its standard output."""
    source, out, err = process.stdin, process.stdout, process.stderr
    if source is None or out is None or err is None:
        raise AssertionError("all three are pipes")

    async def feed() -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            source.write(stdin)
            await source.drain()
            source.close()

    async def listen() -> None:
        with log.open("ab") as file:
            while chunk := await err.read(65_536):
                file.write(chunk)
                file.flush()
                lines = chunk.decode(errors="replace").strip().splitlines()
                if note is not None and lines:
                    note(lines[-1].strip())

    _, _, said = await asyncio.gather(feed(), listen(), out.read())
    with log.open("ab") as file:
        file.write(said)
    return said.decode(errors="replace")


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
