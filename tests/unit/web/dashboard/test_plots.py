"""Plots: sums over workers, lines with gaps, and what other workers may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actors._core.outside import MALFORMED
from actors.web.dashboard.history import STEPS, Series
from actors.web.dashboard.plots import MAX_PLACES, Plots, draw, read_series
from actors.web.problems import Problem
from tests.browser.statuses import picture, samples, seen, task


def series(first: int = 100, **known: list[float | None]) -> Series:
    """Samples of which the last are given."""
    nothing: dict[str, list[float | None]] = {
        name: [None] * STEPS for name in ("records", "lag", "commit_s", "commits", "errors")
    }
    ends = {name: [*[None] * (STEPS - len(values)), *values] for name, values in known.items()}
    return Series(first=first, **{**nothing, **ends})


def test_what_workers_have_is_added_and_commits_are_weighed() -> None:
    mine = series(records=[1, 2], lag=[None, 5], commit_s=[0.1, 0.3], commits=[1, 1], errors=[0, 2])
    other = series(records=[10, None], lag=[7, 6], commit_s=[None, 0.1], commits=[None, 3], errors=[1, 0])
    found = {plot.title: (plot.now, plot.most) for plot in draw([mine, other])}
    assert found == {
        "Records/s": ("2.0", "11"),
        "Lag": ("11", "11"),
        "Commit": ("100 ms", "100 ms"),
        "Errors a minute": ("3", "3"),
    }


def test_they_end_with_the_newest_step_that_all_have() -> None:
    mine, late = series(101, lag=[1, 2, 3]), series(100, lag=[10, 20, 30])
    assert draw([mine, late])[1].now == "32"
    far_off = series(50, lag=[500])
    ahead = series(109, lag=[500])
    assert draw([mine, far_off, ahead])[1].now == "3"


def test_a_line_has_gaps_and_fits() -> None:
    path = draw([series(lag=[0, 10, None, 5])])[1].path
    assert path == "M175 35.0L176 35.0L177 1.0M178 18.0L179 18.0"
    assert draw([series()])[1].path == ""
    assert draw([series(lag=[0, 0])])[1].path.endswith("L179 35.0")


@pytest.mark.parametrize(
    "change",
    [
        {"lag": [1.0]},
        {"lag": [-1.0] * STEPS},
        {"lag": [1e300] * STEPS},
        {"lag": ["x"] * STEPS},
        {"first": -1},
        {"first": 2**60},
        {"records": None},
    ],
    ids=lambda change: str(change)[:30],
)
def test_samples_that_are_none_are_refused(change: dict[str, Any]) -> None:
    good = msgspec.to_builtins(samples())
    assert read_series(msgspec.json.encode(good)) == samples()
    with pytest.raises(MALFORMED):
        read_series(msgspec.json.encode(good | change))


class Workers:
    """Other workers; answers are bytes or errors, by address."""

    def __init__(self, answers: dict[str, bytes | Exception]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def fetch(self, method: str, address: str, path: str, **_: Any) -> bytes:
        self.asked.append(address + path)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_workers_that_can_not_tell_are_left_out_and_nobody_is_asked_twice_in_a_step() -> None:
    more = msgspec.json.encode(series(lag=[7]))
    workers: Any = Workers(
        {
            "http://w-1": more,
            "http://w-2": b"[",
            "http://w-3": Problem(404, "old", "An earlier release", ""),
            "http://w-4": TimeoutError(),
        }
    )
    found = [seen(f"w-{number}", [task("a", number)]) for number in range(5)]
    for number, one in enumerate(found):
        one.address = f"http://w-{number}"
    cluster = replace(picture(found, {"a": 5}), worker="w-0")
    plots = Plots()
    for _ in range(3):
        drawn = await plots.look(workers, cluster, series(lag=[1]), ("a b", 3))
        assert drawn[1].now == "8"
    assert sorted(workers.asked) == [
        f"http://w-{number}/dashboard/history.json?name=a+b&partition=3" for number in range(1, 5)
    ]
    for number in range(2 * MAX_PLACES):
        await plots.look(workers, cluster, series(), ("a", number))
    assert len(plots._found) == MAX_PLACES
