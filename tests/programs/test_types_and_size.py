"""The programs' types, as mypy and pyright see them, and that they stay short."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
LINES = {
    "agent": 39,
    "at_most_ten": 16,
    "average_prices": 21,
    "conversation": 21,
    "jobs": 28,
    "long_rides": 21,
    "mails_per_minute": 12,
    "nightly_report": 16,
    "order_readers": 18,
    "order_validation": 26,
    "trip_saga": 40,
    "winning_bids": 24,
    "word_counts": 24,
}
"""The most lines that a program may take, without blank ones and docstrings."""


def check(*command: str) -> str:
    files = [str(FOLDER / f"{name}.py") for name in LINES]
    command = (sys.executable, "-m", *command, *files)
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=REPOSITORY).stdout


def test_each_program_is_checked() -> None:
    assert LINES.keys() == {path.stem for path in FOLDER.glob("[!_]*.py") if not path.stem.startswith("test_")}


@pytest.mark.nightly
def test_mypy_takes_them() -> None:
    report = check("mypy", "--strict", "--config-file=tests/unit/typed/mypy.ini")
    assert "Success" in report, report


@pytest.mark.nightly  # its first run fetches pyright itself
def test_pyright_takes_them() -> None:
    pytest.importorskip("pyright")
    report = json.loads(check("pyright", "--outputjson", "--pythonpath", sys.executable))
    assert report["generalDiagnostics"] == []


@pytest.mark.parametrize("name", LINES)
def test_they_are_short(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    first = ast.parse(text).body[0].end_lineno or 0
    lines = [line for line in text.splitlines()[first:] if line.strip()]
    assert len(lines) <= LINES[name]
