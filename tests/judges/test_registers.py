"""Asks, `compare_and_set` and queries are linearizable together: Porcupine judges, on real workers and by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.judges.porcupine import Verdict, judge
from tests.judges.registers import Fault, judge_run, kill_all, kill_one, pause_one

# The first judgement compiles Go.
pytestmark = pytest.mark.timeout(900)

OK = Verdict(illegal=(), undecided=())
ILLEGAL = Verdict(illegal=("shelf",), undecided=())


def op(what: str, call_s: float, return_s: float, *, outcome: str = "ok", **more: Any) -> dict[str, Any]:
    times = {"call_ns": int(call_s * 1e9), "return_ns": int(return_s * 1e9)}
    return {"on": "shelf", "op": what, "outcome": outcome, **times, "register": 0, **more}


def write(call_s: float, return_s: float, value: str, held: str = "", **more: Any) -> dict[str, Any]:
    return op("write", call_s, return_s, value=value, held=held, **more)


def swap(call_s: float, return_s: float, expected: str, value: str, **more: Any) -> dict[str, Any]:
    return op("swap", call_s, return_s, expected=expected, value=value, **more)


def read(call_s: float, return_s: float, **seen: str) -> dict[str, Any]:
    return op("read", call_s, return_s, seen={name.removeprefix("r"): value for name, value in seen.items()})


A, B = write(0, 1, "a"), swap(2, 4, "a", "b")
NO_ANSWER = swap(2, 3, "a", "b", outcome="unknown")
HISTORIES = {
    "one swap wins": ([A, B, swap(2, 4, "a", "c", outcome="conflict")], OK),
    "both swaps win": ([A, B, swap(2, 4, "a", "c")], ILLEGAL),
    "a swap that is handled twice": ([A, swap(2, 4, "a", "b", outcome="conflict"), read(5, 6, r0="b")], ILLEGAL),
    "a conflict with what was there": ([A, swap(2, 3, "a", "b", outcome="conflict")], ILLEGAL),
    "a stale read": ([A, B, read(5, 6, r0="a")], ILLEGAL),
    "a read at the same time may see either": ([A, B, read(3, 5, r0="a"), read(3, 5, r0="b")], OK),
    "a read that goes back": ([A, B, read(2.1, 2.2, r0="b"), read(2.3, 2.4, r0="a")], ILLEGAL),
    "a read of what was never committed": ([A, read(2, 3, r0="c")], ILLEGAL),
    "a write that is lost": ([A, write(2, 3, "b", "a"), write(4, 5, "c", "a")], ILLEGAL),
    "a value that was deleted": ([A, swap(2, 3, "a", ""), read(4, 5, r0=""), write(6, 7, "b", "")], OK),
    "two registers at one moment": ([A, write(2, 3, "x", register=1), read(4, 5, r0="a", r1="x")], OK),
    "two registers at two moments": (
        [A, write(1, 9, "b", "a"), write(1, 9, "x", register=1), read(2, 3, r0="b", r1=""), read(4, 5, r0="a", r1="x")],
        ILLEGAL,
    ),
    "no answer, and handled later": ([A, NO_ANSWER, read(4, 5, r0="a"), read(6, 7, r0="b")], OK),
    "no answer, and never handled": ([A, NO_ANSWER, read(6, 7, r0="a")], OK),
    "no answer, handled and undone": ([A, NO_ANSWER, read(4, 5, r0="b"), read(6, 7, r0="a")], ILLEGAL),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_the_judge_finds_what_is_wrong_and_nothing_else(name: str) -> None:
    history, verdict = HISTORIES[name]
    assert judge("registers", history) == verdict


async def test_registers_are_linearizable_over_a_kill(brokers: str, tmp_path: Path) -> None:
    environment = {"INSTANCE_ID": "one"}
    outcome = await judge_run(brokers, tmp_path, (kill_one,), workers=1, calm_s=1.0, environment=environment)
    assert outcome.verdict == OK, outcome
    # The worker may have answered everything before it died.
    assert set(outcome.missing) <= {"unknown"}, outcome


@pytest.mark.nightly
@pytest.mark.parametrize("slow_commit_s", ["0", "0.2"])
async def test_registers_are_linearizable_while_workers_are_killed_and_paused(
    brokers: str, tmp_path: Path, slow_commit_s: str
) -> None:
    faults: tuple[Fault, ...] = (kill_one, pause_one, kill_all, pause_one, kill_one, kill_one)
    outcome = await judge_run(brokers, tmp_path, faults, environment={"SLOW_COMMIT_S": slow_commit_s})
    print(outcome)
    assert outcome.verdict == OK, outcome
    assert outcome.missing == [], outcome
    assert outcome.happened["pauses"] == 2
    assert outcome.happened["refused"] > 0, "no worker ever said that it can't answer"


@pytest.mark.nightly
@pytest.mark.interpreted
@pytest.mark.parametrize("plant", ["no-lease", "no-wait", "blind"])
async def test_a_rule_that_is_missing_is_found(brokers: str, tmp_path: Path, plant: str) -> None:
    faults = (pause_one,) if plant == "no-lease" else ()
    environment = {"PLANT": plant, "SLOW_COMMIT_S": "0.2" if plant == "no-wait" else "0"}
    outcome = await judge_run(brokers, tmp_path, faults, workers=2, environment=environment)
    assert outcome.verdict.illegal, outcome
