"""A pytest plugin: in CI (`CI` is set in the environment) a skipped test is a failure, unless `ALLOWED` has it."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

ALLOWED = {
    (
        "tests/browser/test_site.py",
        "the extra docs isn't installed",
    ): "the tests install no tools of documentation; `make nightly-tests` does, and tests the site",
    (
        "tests/unit/stores/test_private_files.py",
        "only root can give files to other users",
    ): "CI may run as a user without rights over other users' files",
    (
        "tests/spark/cluster/test_local_cluster.py",
        "this machine makes no mount namespaces",
    ): "containers without CAP_SYS_ADMIN make none, and no setting of ours can change that",
    (
        "tests/kafka/runtime/test_full_disk.py",
        "this machine makes no mounts",
    ): "containers without CAP_SYS_ADMIN make none, and no setting of ours can change that",
}
"""(file, reason of the skip) to why it is no failure."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look at each phase of each test."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Look at each file: one can be skipped as a whole."""
    return _judged((yield))


def _judged(report: Report) -> Report:
    """Turn a skip that isn't listed into a failure; an expected failure is no skip."""
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return report
    file, reason = report.nodeid.partition("::")[0], _reason(report)
    if (file, reason) not in ALLOWED:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} is skipped in CI: {reason}. Provide what it needs (see .ci/run), or list "
            f"({file!r}, {reason!r}) with a reason in tests/skips.py."
        )
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
