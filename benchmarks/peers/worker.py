"""A worker process of any system: started, killed, and looked at through /proc."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Set
from pathlib import Path

from benchmarks.peers.systems import Job

_STOP_S = 25.0
_GONE = (FileNotFoundError, ProcessLookupError)
"""What /proc answers for a process that has ended."""
_SESSION, _USER_TICKS, _SYSTEM_TICKS = 3, 11, 12
"""Fields of /proc/<pid>/stat, counted from the one after the command's name."""
_REMOTE, _STATE, _INODE = 2, 3, 9
"""Fields of /proc/<pid>/net/tcp."""
_ESTABLISHED = "01"
_WAL = re.compile(r"\d+\.log")


class Worker:
    """One process with a data folder of its own, and the processes that it starts; its log is beside the folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.folder = folder
        self.log_file = folder.with_name(f"{folder.name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the log is appended to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.job.command(self.folder),
                cwd=self.job.cwd,
                env=self.job.environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise if it ended by itself.

        Raises:
            RuntimeError: it did; the text has the end of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            said = self.log_file.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.job.system} ended with {self._process.returncode}:\n{said}")

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._process is not None:
            if self._process.poll() is None:
                for pid in self._pids():
                    # It may have ended meanwhile.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for one that doesn't go."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all threads of its processes so far, in user and kernel."""
        seconds = 0.0
        for pid in self._pids():
            with contextlib.suppress(*_GONE):
                seconds += cpu_s(pid)
        return seconds

    @property
    def max_rss_mb(self) -> float:
        """The most memory it held at once so far, in MiB: the sum over its processes."""
        return self._status_mb("VmHWM")

    @property
    def rss_mb(self) -> float:
        """The memory it holds, in MiB."""
        return self._status_mb("VmRSS")

    def connections(self, ports: Set[int]) -> int:
        """Count the established TCP connections of its processes to some ports."""
        count = 0
        for pid in self._pids():
            with contextlib.suppress(*_GONE):
                count += connections(pid, ports)
        return count

    @property
    def state_mb(self) -> float:
        """What RocksDB's tables and write-ahead logs in its folder take, in MiB."""
        files = (file for file in self.folder.rglob("*") if file.suffix == ".sst" or _WAL.fullmatch(file.name))
        # One that is linked from a checkpoint too takes its place once.
        sizes = {found.st_ino: found.st_size for found in map(Path.stat, files)}
        return sum(sizes.values()) / 1024**2

    def _status_mb(self, name: str) -> float:
        kib = 0
        for pid in self._pids():
            with contextlib.suppress(*_GONE):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                kib += sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
        return kib / 1024

    def _pids(self) -> list[int]:
        """Return the processes of its session, of which it is the leader: PySpark has a JVM and Python workers."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _session(path) == self.pid]

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid


def _session(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[_SESSION])
    except _GONE:
        return 0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far, in user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")


def family_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_s(pid) + sum(cpu_s(int(child)) for child in children)


def connections(pid: int, ports: Set[int]) -> int:
    """Count a process's established TCP connections to some ports."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # It may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            sockets.add(os.readlink(descriptor))
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return sum(
        fields[_STATE] == _ESTABLISHED
        and int(fields[_REMOTE].rpartition(":")[2], 16) in ports
        and f"socket:[{fields[_INODE]}]" in sockets
        for fields in map(str.split, lines)
    )
