"""What all tests share: one broker per session, hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from actors._core import logs
from dev.kafka import Cluster, existing_brokers

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


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


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap list of a cluster that lives as long as the session."""
    existing = existing_brokers()
    if existing:
        yield existing
        return
    with Cluster.up(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster.bootstrap
