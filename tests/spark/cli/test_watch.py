"""The loop of `watch`: what it prints and writes, comparisons without an answer, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_replay import LiveError
from spark_replay.cli import main
from spark_replay.cli.options import make_console
from spark_replay.comparison import watching
from spark_replay.comparison.report import KINDS, Report

COMMAND = ["watch", "--brokers", "b:9092", "--changelog", "shop--spent-changelog", "--live", "http://w:6066"]
COMMAND += ["--store", "spent", "--state", "state"]
NO_ANSWER = LiveError("no worker answers")


def report(*, mismatches: int = 0, unanswered: int = 0) -> Report:
    counts = dict.fromkeys(KINDS, 0) | {"equal": 30, "different": mismatches}
    return Report(
        changelog="shop--spent-changelog",
        app="",
        store="spent",
        counts=counts,
        by_partition={},
        keys=30,
        records=0,
        seconds=0.5,
        positions={},
        ends=(0,) * 3,
        unanswered=dict.fromkeys(range(unanswered), "it moves"),
    )


def run(monkeypatch: pytest.MonkeyPatch, comparisons: list[Any], *more: str) -> Result:
    """Run the command with these comparisons; SIGTERM comes during the last one."""

    class Watch:
        def __init__(self, **options: Any) -> None:
            self.store = options["store"]

        def compare(self) -> Report:
            result = comparisons.pop(0)
            if not comparisons:
                os.kill(os.getpid(), signal.SIGTERM)
            if isinstance(result, Exception):
                raise result
            return result

    @contextmanager
    def running(given: Any, *places: object) -> Iterator[Any]:
        yield SimpleNamespace(given=given, console=make_console(), source=lambda: None)

    monkeypatch.setattr(sys.modules["spark_replay.cli.watch"], "running", running)
    monkeypatch.setattr(watching, "Watch", Watch)
    return CliRunner().invoke(main, [*COMMAND, "--json", *more])


@pytest.mark.parametrize(
    ("comparisons", "code"),
    [
        ([report()], 0),
        ([report(mismatches=1), NO_ANSWER, report()], 0),
        ([report(), report(mismatches=1)], 1),
        ([report(), NO_ANSWER], 2),
        ([report(unanswered=1)], 2),
        ([report(unanswered=1, mismatches=1)], 1),
    ],
)
def test_it_goes_on_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch, comparisons: list[Any], code: int) -> None:
    done = run(monkeypatch, comparisons, "--every", "1ms")
    assert not comparisons
    # one object, that of the last comparison
    assert (done.exit_code, json.loads(done.stdout)["exit_code"]) == (code, code)


def test_one_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, [replace(report(), notes=["read from its start"]), report()], "--once")
    assert (done.exit_code, "read from its start" in done.stderr) == (0, True)
    assert "equal: 30 keys of shop--spent-changelog, in 0.5 s" in done.stderr
    done = run(monkeypatch, [NO_ANSWER, report()], "--once")
    assert (done.exit_code, json.loads(done.stdout)["error"]) == (2, "no worker answers")


def test_a_comparison_without_an_answer_leaves_the_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "watch.prom"

    def lines(*comparisons: Any) -> list[str]:
        run(monkeypatch, list(comparisons), "--every", "1ms", "--metrics", str(file))
        return [line.removeprefix("faust_actors_watch_") for line in file.read_text().splitlines() if line[0] != "#"]

    labels = '{app="shop",store="spent"}'
    first = lines(report(mismatches=2))
    assert f"mismatches{labels} 2.0" in first
    assert f"compared_keys{labels} 32.0" in first
    assert any(line.startswith(f"compared_timestamp_seconds{labels} ") for line in first)
    assert lines(NO_ANSWER) == first
    partly = lines(report(unanswered=1))
    assert f"unanswered_partitions{labels} 1.0" in partly
    assert not any(line.startswith("compared_timestamp") for line in partly)


@pytest.mark.parametrize("more", [[], ["--once", "--every", "30s"]])
def test_options_that_do_not_go_together(more: list[str]) -> None:
    done = CliRunner().invoke(main, [*COMMAND, *more])
    assert (done.exit_code, "say for how long" in done.stderr) == (2, True)
