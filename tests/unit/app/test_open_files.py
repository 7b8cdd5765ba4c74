"""A worker says at once when it may open fewer files than its partitions need."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import ConfigurationError
from actors._faust.startup.open_files import require_open_files, warn_open_files

ROOT = Path(__file__).resolve().parents[3]


class Limits:
    """The process's limits."""

    def __init__(self, patch: pytest.MonkeyPatch, soft: int, hard: int, *, may_raise: bool = True) -> None:
        self.soft, self.hard, self._may_raise = soft, hard, may_raise
        patch.setattr(resource, "getrlimit", lambda _: (self.soft, self.hard))
        patch.setattr(resource, "setrlimit", self.set)

    def set(self, _: int, limits: tuple[int, int]) -> None:
        if not self._may_raise:
            raise ValueError("not allowed")
        self.soft, self.hard = limits


def spec(stores: int, partitions: int) -> Any:
    return SimpleNamespace(stores=range(stores), partition_count=partitions)


@pytest.mark.parametrize("hard", [4096, resource.RLIM_INFINITY])
def test_a_soft_limit_is_raised_as_far_as_the_hard_one(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    limits = Limits(monkeypatch, 64, hard)
    require_open_files(stores=2)
    assert limits.soft >= 4096
    assert limits.hard == hard


@pytest.mark.parametrize("may_raise", [True, False])
def test_a_limit_in_which_no_partition_fits_is_refused(monkeypatch: pytest.MonkeyPatch, may_raise: bool) -> None:
    Limits(monkeypatch, 64, 64 if may_raise else 1 << 20, may_raise=may_raise)
    with pytest.raises(ConfigurationError, match=r"may have 64 files .* needs \d+ for a single .*ulimit -n 4096"):
        require_open_files(stores=1)


def test_a_limit_in_which_not_all_partitions_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(monkeypatch, 1024, 1024)
    warn_open_files([spec(1, 8)], 3)
    assert caplog.text == ""
    warn_open_files([spec(2, 100), spec(0, 8)], 3)
    assert "may have 1024 files and connections open, and would need about 3911 if it owned all 108" in caplog.text
    assert "ulimit -n 4096" in caplog.text
    caplog.clear()
    limits.soft = resource.RLIM_INFINITY
    warn_open_files([spec(2, 1_000_000)], 3)
    assert caplog.text == ""


def test_a_worker_with_64_files_ends_at_once_and_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "faust", "-A", "tests.kafka.apps.registry_app", "-D", str(tmp_path), "worker"]
    result = subprocess.run(
        [*command, "--without-web", "-l", "info"],
        cwd=ROOT,
        env={**os.environ, "APP_NAME": "few", "APP_KIND": "orders", "KAFKA_URL": "kafka://127.0.0.1:1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "few can't start: this process may have 64 files and connections open" in result.stdout
