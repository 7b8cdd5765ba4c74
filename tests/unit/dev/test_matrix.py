"""The matrix of versions: which cells there are, what counts as passed, and the lowest versions."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from actors.local_kafka.jars import kafka_version
from dev import REPOSITORY, matrix

LOWEST = min(matrix.PYTHONS)
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
    for paths in matrix.TESTS.values():
        for path in paths:
            file, _, name = path.partition("[")[0].partition("::")
            assert (REPOSITORY / file).exists(), path
            assert not name or f"def {name}(" in (REPOSITORY / file).read_text(), path


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


def test_what_cannot_be_had_is_no_pass_and_what_failed_gives_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned("def test_a(): assert False", tmp_path, monkeypatch)

    def environment(cell: matrix.Cell) -> tuple[Path, str]:
        if cell.version == LOWEST:
            return Path(sys.executable), "Python 3.11.7"
        if cell.version == "3.13":
            raise matrix.NotHadError("no python3.13 on PATH")
        raise subprocess.CalledProcessError(
            1, "uv", output="  \N{MULTIPLICATION SIGN} No solution found:\n  ╰─▶ Because there is no\n  it==1\n"
        )

    monkeypatch.setattr(matrix, "environment", environment)
    assert matrix.main(["python=3.13"]) == 0
    assert matrix.main(["python"]) == 1
    *_, head, first, second, third, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["what", "version", "result", "seconds", "passed", "failed", "skipped", "ran", "with"]
    assert first.split()[:3] == ["python", LOWEST, "failed"]
    assert first.endswith(f"Python 3.11.7; see python-{LOWEST}.log")
    assert "not to be had" in second
    assert second.endswith("no python3.13 on PATH")
    assert third.endswith("can't be installed: No solution found: Because there is no it==1")
    totals = json.loads(last)
    assert (totals["passed"], totals["failed"], totals["not to be had"]) == (0, 2, 1)


PYPROJECT = """[project]
    name = "it"
    dependencies = ["aiohttp>=3.14.4,<4", "Rich>=13"]
    [project.optional-dependencies]
    compression = ["aiohttp[speedups]"]
    parquet = ["pyarrow>=18"]
    all = ["it[compression,parquet]"]
    docs = ["mkdocs>=1.6"]
    dev = ["opentelemetry-sdk>=1.27", "pytest>=8", "ruff>=0.8"]"""


def test_the_lowest_versions_are_the_bounds_of_dependencies_and_extras() -> None:
    assert matrix.bounds(PYPROJECT) == {"aiohttp": "3.14.4", "rich": "13", "pyarrow": "18"}


def test_what_tests_import_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_TOOLS", ("opentelemetry-sdk", "pytest"))
    pins = "aiohttp==3.14.5\nopentelemetry-sdk==1.45.2\npytest==9.2.0\nruff==0.17.5"
    assert matrix.tools(PYPROJECT, pins) == ["opentelemetry-sdk>=1.27", "pytest==9.2.0"]


def test_a_lower_bound_that_no_installation_has_fails_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned("def test_a(): pass", tmp_path, monkeypatch)
    declared = {"aiohttp": "3.14.4", "rich": "13", "opentelemetry-distro": "0.48b0", "yarl": "1.9"}
    resolved = "aiohttp==3.14.4\nOpentelemetry_Distro==0.48b0\nrich==13.0.0\nsix==1.17.0\nyarl==1.{}"

    def environment(cell: matrix.Cell) -> tuple[Path, str]:
        matrix.require_bounds(declared, resolved.format(cell.version))
        return Path(sys.executable), ""

    monkeypatch.setattr(matrix, "environment", environment)
    assert matrix.try_cell(matrix.Cell("python", "9")).result == "passed"
    outcome = matrix.try_cell(matrix.Cell("python", "25.1"))
    assert outcome.result == "failed"
    assert outcome.why.endswith("in brackets: yarl>=1.9 (==1.25.1)")


def test_the_page_of_platforms_names_what_the_matrix_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "reference" / "stability.md").read_text()
    rows = {cells[1].strip(): cells[3] for line in page.splitlines() if len(cells := line.split("|")) == 6}
    assert rows["brokers"].strip() == ", ".join(matrix.BROKERS)
    tried = re.findall(r"\d+\.\d+\.\d+", rows["Python"])
    assert [one for one in tried if not any(matrix.fits(one, version) for version in matrix.PYTHONS)] == []
    assert [matrix.minor(one) for one in tried] == (minors := [matrix.minor(version) for version in matrix.PYTHONS])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])) == minors
    assert project["requires-python"] == f">={LOWEST}"
    for file in ("README.md", "CONTRIBUTING.md", "docs/tutorial/shop.md", "docs/reference/stability.md"):
        assert f"{LOWEST} or newer" in (REPOSITORY / file).read_text(), file
    assert set(re.findall(r"[\d.]+", rows["Spark, for `spark_replay`"])) <= set(matrix.PYSPARKS)
    monkeypatch.delenv("KAFKA_VERSION", raising=False)
    assert f"Kafka {kafka_version()}, PySpark {version('pyspark')}" in page


@pytest.mark.parametrize("installed", ["some", pytest.param("docs too", marks=pytest.mark.nightly)])
def test_the_lowest_python_takes_every_pin(installed: str) -> None:
    """Of pins that aren't installed nothing is known: `make nightly` installs the extra docs before its tests."""
    names = [
        line.partition("==")[0] for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if "==" in line
    ]
    needed = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            needed[name] = metadata(name)["Requires-Python"] or ""
    assert len(needed) > 100
    assert installed == "some" or "pymdown-extensions" in needed, "make docs installs what is missing"
    assert {name: python for name, python in needed.items() if not SpecifierSet(python).contains(LOWEST)} == {}


@pytest.mark.parametrize(
    ("target", "extras"),
    [("demo", ["broker,spark"]), ("check", ["dev,broker,spark,bench"]), ("docs", ["dev,broker,spark,bench", "docs"])],
)
def test_a_target_installs_what_it_needs(target: str, extras: list[str], tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    command = ["make", "--dry-run", "-C", str(tmp_path), target]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"-e '\.\[(.*)\]'", said) == extras
    assert said.count("-m venv") == 1


@pytest.mark.parametrize(
    ("have", "version", "fits"),
    [("3.11.2", "3.11.2", True), ("3.11.20", "3.11.2", False), ("3.13.5", "3.13", True), ("3.1.3", "3.13", False)],
)
def test_a_python_fits_its_version(have: str, version: str, fits: bool) -> None:
    assert matrix.fits(have, version) == fits


def planned(test: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cell of `python` run this test in a folder, on the Python of this test."""
    (folder / "test_it.py").write_text(test)
    # The plugin's import takes longer than the test.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")
    monkeypatch.setattr(matrix, "REPOSITORY", folder)
    monkeypatch.setattr(matrix, "_WORK", folder)
    monkeypatch.setattr(matrix, "TESTS", {"python": ["test_it.py"]})
    monkeypatch.setattr(matrix, "environment", lambda cell: (Path(sys.executable), ""))
