"""The script of the hourly audit: its exit codes, with a stand-in for Spark's program."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT

SCRIPT = ROOT / "docs" / "ops" / "audit.sh"
# answers as `spark_replay` does: an object, and the exit code that the environment has for the command
PROGRAM = """#!/bin/sh
echo "$@" >>"$CALLS"
echo "$3" >&2
eval code="\\$$3"
[ "$code" = died ] && exit 1
echo "{\\"command\\": \\"$3\\"}"
exit "${code:-0}"
"""


def audit(folder: Path, **codes: str) -> tuple[int, list[str], list[str]]:
    """Run the script; return its exit code, the commands whose objects it printed, and its calls."""
    program, calls = folder / "bin" / "python", folder / "calls"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    calls.write_text("")
    environment = os.environ | codes | {"PATH": f"{program.parent}:{os.environ['PATH']}", "CALLS": str(calls)}
    command = [SCRIPT, "b:1", "a--b-changelog", "exports", folder / "audit"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    printed = [json.loads(line)["command"] for line in done.stdout.splitlines() if line]
    return done.returncode, printed, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("codes", "code", "printed", "steps"),
    [
        ({}, 0, ["validate"], ["archive", "validate", "rebuild"]),
        ({"validate": "1"}, 1, ["validate"], ["archive", "validate"]),
        ({"validate": "2"}, 2, ["validate"], ["archive", "validate"]),
        ({"validate": "137"}, 2, ["validate"], ["archive", "validate"]),
        ({"validate": "died"}, 2, [], ["archive", "validate"]),
        ({"archive": "2"}, 2, ["archive"], ["archive"]),
        ({"archive": "died"}, 2, [], ["archive"]),
        ({"rebuild": "2"}, 2, ["rebuild"], ["archive", "validate", "rebuild"]),
    ],
)
def test_exit_codes(tmp_path: Path, codes: dict[str, str], code: int, printed: list[str], steps: list[str]) -> None:
    result = audit(tmp_path, **codes)
    assert (result[0], result[1], [call.split()[2] for call in result[2]]) == (code, printed, steps)


def test_a_later_run_goes_on_from_the_rebuild(tmp_path: Path) -> None:
    assert not any("--incremental" in call or "--from" in call for call in audit(tmp_path)[2])
    rebuilt = tmp_path / "audit" / "rebuilt"
    rebuilt.mkdir(parents=True)
    _, validate, rebuild = audit(tmp_path)[2]
    assert f"--incremental {rebuilt}" in validate
    assert f"--from {rebuilt} --overwrite --to {rebuilt}" in rebuild


def test_wrong_usage_is_no_mismatch() -> None:
    done = subprocess.run([SCRIPT, "b:1"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, "usage: " in done.stderr) == (2, "", True)
