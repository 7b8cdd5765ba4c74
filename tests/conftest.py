"""What all tests share: one broker, hypothesis profiles, the order of the tests, and what a skip means in CI."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tomllib
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors._core import logs
from actors.local_kafka.settings import STATE_FILE
from actors.runtime.observe.status import ENGINE
from actors.testing.fakes.cluster import EPOCH_MS
from dev.kafka import Cluster, existing_brokers
from dev.kafka.archive import ensure_archive
from tests import balance, skips
from tests.examples import load_profile
from tests.parts import end_parts, shared_folder
from tests.s3 import S3Server, running_s3

load_profile()
# jsonschema would compile 38 grammars of this package in each process; `faust-actors[formats]` comes without it.
sys.modules["rfc3987_syntax"] = None
# Nothing of what is collected is garbage: to look for some takes a third of the time.
gc.disable()
# Each process of the tests, and each worker that they start, would compile everything again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

KAFKA = "kafka-of-all-tests"


def pytest_configure(config: pytest.Config) -> None:
    """Let no test be skipped unnoticed in CI."""
    config.pluginmanager.register(skips)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and leave out what a compiled engine can't be tested with."""
    if ENGINE == "compiled":
        planted = {item for item in items if item.path.name.startswith("test_planted")}
        items[:] = [item for item in items if not (item in planted or item.get_closest_marker("interpreted"))]
    balance.sort(items)


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not among the tests themselves."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> balance.LongestFirst | None:
    """Distribute files over processes, the longest first; other kinds of `--dist` stay xdist's."""
    return balance.scheduler(config, log) if config.option.dist == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that are too long for `make test`. Beside other processes a test takes twice as long as alone."""
    lines = list(balance.too_long(report for reports in terminalreporter.stats.values() for report in reports))
    if lines:
        terminalreporter.section(f"longer than {balance.LONG_S:g} s, and not nightly (see CONTRIBUTING.md)")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report travel between processes though what was logged isn't Unicode."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _unlimited_log() -> None:
    """Let no test's lines be left out because of those of another one in the same second."""
    logs._written.clear()


@pytest.fixture(scope="session", autouse=True)
def _settings_are_parsed_once() -> Iterator[None]:
    """Let the apps of tests, thousands of them, share what this project's file says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors._faust.settings.sources.tomllib", SimpleNamespace(loads=functools.cache(tomllib.loads)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _driver_time() -> Iterator[None]:
    """Let test drivers begin at one time in every run."""
    with pytest.MonkeyPatch.context() as patch:
        begin = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
        patch.setattr("actors.testing.machine.last_full_hour", lambda: begin)
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the S3 API that all tests of a process share."""
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    """The bootstrap list of a cluster that all processes share; `pytest_unconfigure` ends it."""
    existing = existing_brokers()
    if existing:
        return existing
    ensure_archive()
    folder = shared_folder(request.config, tmp_path_factory) / KAFKA
    # An expired transaction is aborted within a second, not within 10; compaction comes after one, not after 15.
    often = ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "log.cleaner.backoff.ms")
    # Tests write with timestamps of long ago, whose records a broker would delete at its next look.
    overrides = dict.fromkeys(often, "1000") | {"log.retention.ms": "-1"}
    return Cluster.up(folder, overrides=overrides).bootstrap


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what the tests shared, after all processes are done."""
    factory: pytest.TempPathFactory | None = getattr(config, "_tmp_path_factory", None)
    base: Path | None = getattr(factory, "_basetemp", None)
    if hasattr(config, "workerinput") or base is None:
        return
    end_parts(base)
    if (base / KAFKA / STATE_FILE).exists():
        Cluster.open(base / KAFKA).down(delete=True)
