"""Type checkers see what a reference takes and gives: they refuse the wrong lines of a program, and those alone."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")
REPOSITORY = PROGRAM.parents[3]


def expected(which: int) -> dict[int, str]:
    marks = {
        number: re.search(r"# refused: ([\w-]+), (\w+)", line)
        for number, line in enumerate(PROGRAM.read_text().splitlines(), 1)
    }
    return {number: mark[which] for number, mark in marks.items() if mark}


def run(*command: str) -> str:
    command = (sys.executable, "-m", *command)
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=REPOSITORY).stdout


def test_mypy_refuses_the_wrong_lines_alone():
    found = run("mypy", "--config-file=tests/unit/typed/mypy.ini", "--output=json", str(PROGRAM))
    errors = [json.loads(line) for line in found.splitlines() if line.startswith("{")]
    assert {error["line"]: error["code"] for error in errors} == expected(1), found


@pytest.mark.nightly  # its first run fetches pyright itself
def test_pyright_refuses_the_wrong_lines_alone():
    pytest.importorskip("pyright")
    report = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, str(PROGRAM)))
    errors = report["generalDiagnostics"]
    assert {error["range"]["start"]["line"] + 1: error["rule"] for error in errors} == expected(2), errors
