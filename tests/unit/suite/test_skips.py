"""The rule of tests/skips.py, on files of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips
from tests.kafka.helpers import ROOT

FILES = {
    "test_mark.py": "import pytest\n\n@pytest.mark.skip(reason='no tool')\ndef test_it(): pass\n",
    "test_call.py": "import pytest\n\ndef test_it(): pytest.skip('no tool')\n",
    "test_fixture.py": (
        "import pytest\n\n@pytest.fixture\ndef tool(): pytest.skip('no tool')\n\ndef test_it(tool): pass\n"
    ),
    "test_file.py": "import pytest\n\npytest.importorskip('no_such_module', reason='no tool')\n",
}
KEPT = "import pytest\n\n@pytest.mark.xfail(reason='not yet', strict=True)\ndef test_it(): assert False\n"
PLUGINS = ("-p", "tests.skips", "-p", "no:cacheprovider", "-p", "no:schemathesis")
OPTIONS = ("-q", *PLUGINS, "--continue-on-collection-errors")


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    for name, text in {**FILES, "test_xfail.py": KEPT}.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    clean = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_skip_is_a_failure_in_ci_only_and_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    there, here = run(tmp_path, CI="true"), run(tmp_path)
    assert there.returncode != 0
    for name in FILES:
        assert re.search(rf"^E? *{name}(::test_it)? is skipped in CI: no tool\.", there.stdout, re.MULTILINE), (
            there.stdout
        )
    *_, counted = there.stdout.splitlines()
    assert counted.startswith("1 failed, 1 xfailed, 3 errors"), there.stdout
    *_, counted = here.stdout.splitlines()
    assert (here.returncode, counted.startswith(f"{len(FILES)} skipped, 1 xfailed")) == (0, True), here.stdout


def test_what_is_listed_may_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    (file, reason), *_ = skips.ALLOWED
    report = pytest.TestReport(f"{file}::test", ("", 0, ""), {}, "skipped", (file, 1, f"Skipped: {reason}"), "call")
    monkeypatch.setenv("CI", "true")
    assert skips._judged(report).outcome == "skipped"
    report.longrepr = (file, 1, "Skipped: another reason")
    assert skips._judged(report).outcome == "failed"


def test_what_is_listed_is_there() -> None:
    for file, reason in skips.ALLOWED:
        assert reason in (ROOT / file).read_text(), file
