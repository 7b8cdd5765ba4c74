"""Where the demo's files are, what its topics are called, and how much it sends."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".local" / "demo"
EXPORTS, REBUILD = FOLDER / "exports", FOLDER / "rebuild"

APP, STORE = "dispatcher", "run-command-state"
INPUT, OUTPUT = "raw-data", "runs"
CHANGELOG, OWNERS = f"{APP}--{STORE}-changelog", f"{APP}-actors-owners"
PARTITIONS = 4
COMMANDS, DISTINCT = 100_000, 50_000
LATE = 1_000
"""So many of the commands come after the rebuild, and are what an audit reads that goes on from it."""

BUSY_RUNS = 2_000
"""The kill waits for so many runs, so that there is state to lose."""
BUSY_COMMANDS = 500
"""…and until so many commands wait in the partitions of the worker to kill, so that it is at work."""
DEADLINE_S = 90.0
SPARK_DEADLINE_S = 180.0
STOP_S = 20.0
POLL_S = 0.02


class DemoError(Exception):
    """Something isn't as it has to be; the text says what."""
