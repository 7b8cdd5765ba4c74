"""`.ci/run` with programs that only say what they were asked: what is missing is installed, what is there isn't."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kafka.forked import ROOT

SAYS = '#!/bin/sh\necho "$(basename "$0") $* CI=$CI" >> "$CALLS"\n'
ALL = ("chromium", "gcc", "pg_ctlcluster", "promtool")
TESTS = "tests/unit/test_either_engine.py tests/unit/runtime/windows tests/kafka/runtime/test_exactly_once.py"
MADE = ["make test CI=true", f"make test-compiled JOBS=2 TESTS={TESTS} CI=true", "make bench-guard CI=true"]
ROOTS, USERS = "#!/bin/sh\necho 0\n", "#!/bin/sh\necho 1000\n"


def calls(folder: Path, *there: str, user: str = ROOTS, fails: str = "") -> tuple[int, list[str]]:
    """Run the script with these programs on PATH; return its exit code and the commands that it gave."""
    programs, said = folder / "bin", folder / "calls"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "env"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    for name, text in {**dict.fromkeys(("make", "apt-get", *there), SAYS), "id": user}.items():
        (programs / name).write_text(text + f'case "$*" in *"{fails}"*) exit 1;; esac\n' * bool(fails and text == SAYS))
        (programs / name).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env={**clean, "PATH": str(programs), "CALLS": str(said)}, timeout=30, check=False
    )
    return done.returncode, said.read_text().splitlines() if said.exists() else []


def test_what_is_there_needs_no_root_and_no_network(tmp_path: Path) -> None:
    code, said = calls(tmp_path, *ALL, user=USERS)
    assert (code, said) == (0, MADE)


@pytest.mark.parametrize(("user", "first"), [(ROOTS, "apt-get update"), (USERS, "sudo -n apt-get update")])
def test_what_is_missing_is_installed_before_the_tests(tmp_path: Path, user: str, first: str) -> None:
    code, said = calls(tmp_path, "sudo", user=user)
    assert code == 0
    assert said[0].startswith(first)
    assert "install -q -y --no-install-recommends chromium" in said[1]
    assert said[2].startswith(first)
    assert "install -q -y --no-install-recommends postgresql" in said[3]
    assert said[4].startswith(first)
    assert "install -q -y --no-install-recommends gcc" in said[5]
    assert said[6:] == ["make promtool CI=true", *MADE]


@pytest.mark.parametrize("fails", ["update", "promtool", "test", "test-compiled"])
def test_a_step_that_fails_ends_it_with_an_error(tmp_path: Path, fails: str) -> None:
    code, said = calls(tmp_path, fails=fails)
    assert code != 0
    assert fails in said[-1]


def test_a_benchmark_that_fails_is_no_error(tmp_path: Path) -> None:
    code, said = calls(tmp_path, *ALL, fails="bench-guard")
    assert (code, said[-1]) == (0, "make bench-guard CI=true")
