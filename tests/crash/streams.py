"""Kafka Streams in the place of our workers: the work of the first actor, under the same faults."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.java_build import java_command
from tests.kafka.helpers import WorkerProcess

SESSION_MS = 6_000


class StreamsProcess(WorkerProcess):
    """A Kafka Streams worker with its own state folder and log."""

    def __init__(self, name: str, brokers: str, folder: Path, *, replicas: int) -> None:
        super().__init__(name, brokers, folder)
        self._options = {
            "mode": "summarise",
            "bootstrap": brokers,
            "application-id": name,
            "input": f"{name}-in",
            "output": f"{name}-echo",
            "state-dir": str(folder),
            "replication-factor": str(replicas),
            "session-timeout-ms": str(SESSION_MS),
            # As an operator would have it: a thread that meets an error is replaced, and the worker lives.
            "on-error": "replace-thread",
        }

    def command(self, *, web: bool) -> list[str]:
        """Give the command line."""
        return java_command(*(part for name, value in self._options.items() for part in (f"--{name}", value)))

    @staticmethod
    def _forked(
        arguments: Sequence[str], environment: Mapping[str, str], log: int, _: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, start_new_session=True)
