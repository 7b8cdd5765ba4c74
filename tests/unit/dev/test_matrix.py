"""The matrix of versions: which cells there are, what counts as passed, and the lowest versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dev import REPOSITORY, matrix

REPORT = """<testsuites><testsuite>
  <testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><error/></testcase>
  <testcase name="d"><skipped/></testcase><testcase name="e"/>
</testsuite></testsuites>"""


def test_cells_are_chosen_by_column_or_version() -> None:
    assert {cell.what for cell in matrix.cells([])} == set(matrix.TESTS)
    assert [cell.version for cell in matrix.cells(["broker"])] == list(matrix.BROKERS)
    chosen = matrix.cells(["python=3.14", "lowest"])
    assert [(cell.what, cell.version) for cell in chosen] == [("python", "3.14"), ("lowest", "bounds")]
    with pytest.raises(LookupError, match=r"no cell pyhton: name some of .*python=3\.14"):
        matrix.cells(["pyhton"])


def test_every_test_that_a_cell_runs_is_there() -> None:
    assert [path for paths in matrix.TESTS.values() for path in paths if not (REPOSITORY / path).exists()] == []


def test_tests_are_counted_and_a_missing_report_is_none(tmp_path: Path) -> None:
    assert matrix.count(tmp_path / "none.xml") == (0, 0, 0)
    (tmp_path / "report.xml").write_text(REPORT)
    assert matrix.count(tmp_path / "report.xml") == (2, 2, 1)


@pytest.mark.parametrize(
    ("test", "result", "numbers"),
    [
        ("def test_a(): pass", "passed", (1, 0, 0)),
        pytest.param("def test_a(): assert False", "failed", (0, 1, 0), marks=pytest.mark.nightly),
        ("import pytest\n@pytest.mark.skip\ndef test_a(): pass", "failed", (0, 0, 1)),
        pytest.param("import nothing_of_this_name", "failed", (0, 1, 0), marks=pytest.mark.nightly),
        ("", "failed", (0, 0, 0)),
    ],
)
def test_a_cell_without_a_test_that_passed_has_failed(
    test: str, result: str, numbers: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(test, tmp_path, monkeypatch)
    outcome = matrix.try_cell(matrix.Cell("python", "3.14"))
    assert (outcome.result, (outcome.passed, outcome.failed, outcome.skipped)) == (result, numbers)


def test_what_cannot_be_had_is_not_tried_and_what_failed_gives_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned("def test_a(): assert False", tmp_path, monkeypatch)

    def environment(cell: matrix.Cell) -> Path:
        if cell.version == "3.13":
            raise matrix.NotHadError("no python3.13 on PATH")
        if cell.version == "3.14":
            raise subprocess.CalledProcessError(1, "pip", output="ERROR: nothing fits\n[notice] a newer pip\n")
        return Path(sys.executable)

    monkeypatch.setattr(matrix, "_environment", environment)
    assert matrix.main(["python=3.13"]) == 0
    assert matrix.main(["python"]) == 1
    *_, first, second, third, last = capsys.readouterr().out.splitlines()
    assert "failed" in first
    assert second.endswith("no python3.13 on PATH")
    assert "not tried" in second
    assert third.endswith("can't be installed: ERROR: nothing fits")
    totals = json.loads(last)
    assert (totals["passed"], totals["failed"], totals["not tried"]) == (0, 2, 1)


def test_the_lowest_versions_are_the_bounds_of_the_package_and_tools_are_pinned() -> None:
    pyproject = """[project]
        dependencies = ["aiohttp>=3.14.4,<4", "Rich>=13"]
        [project.optional-dependencies]
        compression = ["aiohttp[speedups]"]
        fastapi = []
        parquet = ["pyarrow>=18"]
        spark = []
        tracing = []
        dev = ["pytest>=8", "pyarrow>=19"]"""
    pins = "aiohttp==3.14.5\npyarrow==26.0.1\npytest==9.2.0\nyarl==1.25.1"
    assert matrix.lowest(pyproject, pins) == ["aiohttp==3.14.4", "rich==13", "pyarrow==18", "pytest==9.2.0"]


def planned(test: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cell of `python` run this test in a folder, on the Python of this test."""
    (folder / "test_it.py").write_text(test)
    monkeypatch.setattr(matrix, "REPOSITORY", folder)
    monkeypatch.setattr(matrix, "_WORK", folder)
    monkeypatch.setattr(matrix, "TESTS", {"python": ["test_it.py"]})
    monkeypatch.setattr(matrix, "_environment", lambda cell: Path(sys.executable))
