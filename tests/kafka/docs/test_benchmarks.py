"""The benchmarks' own arithmetic: the verdict sees each kind of damage, ratios compare what belongs together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.faults.verdict import fold, judge
from benchmarks.locks.plan import SCENARIOS, WARM_S, Job, Result, Took
from benchmarks.peers.scenarios import all_distinct, all_repeats, half_repeats
from benchmarks.peers.summary import ratios
from tests.kafka.helpers import ROOT

INPUTS = {b"a": [0, 2, 4], b"b": [1, 3]}
OUTPUTS = [(b"a", 1, 0), (b"b", 1, 1), (b"a", 2, 2), (b"a", 3, 4), (b"b", 2, 3)]
STATE = {b"a": 3, b"b": 2}


def test_a_good_run_is_exact() -> None:
    verdict = judge(INPUTS, OUTPUTS, STATE)
    assert verdict.is_exact
    assert (verdict.expected, verdict.counted, verdict.state) == (5, 5, 5)


@pytest.mark.parametrize(
    ("outputs", "state", "lost", "doubled", "wrong_counts", "wrong_keys"),
    [
        pytest.param(OUTPUTS[:-1], {**STATE, b"b": 1}, 1, 0, 0, 1, id="an increment never came out"),
        pytest.param([*OUTPUTS, OUTPUTS[1]], STATE, 0, 1, 0, 0, id="an output came twice"),
        pytest.param([*OUTPUTS, (b"b", 3, 3)], {**STATE, b"b": 3}, 0, 1, 0, 1, id="an increment was counted twice"),
        pytest.param([*OUTPUTS[:3], (b"a", 3, 2), OUTPUTS[4]], STATE, 1, 1, 0, 0, id="one lost, one doubled"),
        pytest.param([*OUTPUTS[:3], (b"a", 4, 4), OUTPUTS[4]], {**STATE, b"a": 4}, 0, 0, 1, 1, id="aborted state"),
        pytest.param([*OUTPUTS, (b"c", 1, 7)], STATE, 0, 1, 0, 0, id="a key that was never sent"),
        pytest.param(OUTPUTS, {b"a": 2, b"b": 3}, 0, 0, 0, 2, id="the right sum of wrong keys"),
        pytest.param(OUTPUTS, {**STATE, b"c": 1}, 0, 0, 0, 1, id="a key too many in the state"),
        pytest.param(OUTPUTS, None, 0, 0, 0, None, id="a state that couldn't be read proves nothing"),
    ],
)
def test_damage_is_seen(
    outputs: list[tuple[bytes, int, int]],
    state: dict[bytes, int] | None,
    lost: int,
    doubled: int,
    wrong_counts: int,
    wrong_keys: int | None,
) -> None:
    verdict = judge(INPUTS, outputs, state)
    assert (verdict.lost, verdict.doubled, verdict.wrong_counts, verdict.wrong_keys) == (
        lost,
        doubled,
        wrong_counts,
        wrong_keys,
    )
    assert not verdict.is_exact


def test_the_changelog_is_folded_to_the_last_write_of_each_key() -> None:
    assert fold([(b"a", 1), (b"b", 1), (b"a", 2), (b"b", None)]) == {b"a": 2}


def rate(system: str, round_: int, records_per_s: float) -> dict[str, object]:
    return {"scenario": "exactly_once_raw", "system": system, "round": round_, "records_per_s": records_per_s}


def test_a_ratio_compares_runs_of_the_same_round() -> None:
    runs = [
        *(rate("ours", round_, speed) for round_, speed in enumerate([100.0, 200.0, 50.0])),
        *(rate("kafka_streams", round_, speed) for round_, speed in enumerate([50.0, 100.0, 100.0])),
    ]
    assert ratios(runs)["ratio_to_kafka_streams"] == {"exactly_once_raw": 2.0}


def test_a_peer_that_did_not_run_has_no_ratio() -> None:
    assert ratios([rate("ours", 0, 100.0)])["ratio_to_quix"] == {}


@pytest.mark.parametrize("records", [half_repeats, all_repeats, all_distinct])
def test_commands_have_116_bytes(records: Callable[[int], Iterator[tuple[bytes, bytes]]]) -> None:
    assert {len(key) + len(value) for key, value in records(10)} == {116}


def test_half_of_the_commands_are_repeats() -> None:
    keys = [key for key, _ in half_repeats(10)]
    assert keys[:5] == keys[5:]
    assert len(set(keys)) == 5


def test_clients_have_locks_of_their_own() -> None:
    for plan in SCENARIOS:
        names = [plan.names(client) for client in range(plan.clients)]
        if plan.locks == 1:
            assert {name for taken in names for name in taken} == {plan.name}
        else:
            assert len({name for taken in names for name in taken}) == sum(map(len, names)) == plan.locks


def test_only_what_ends_in_the_time_that_is_measured_counts() -> None:
    job, took = Job(scenario="alone", clients=[0], begin_s=100.0, seconds=2.0), Took([], [])
    begun_s = 100.0 + WARM_S
    for released_s in (begun_s - 0.1, begun_s + 0.1, begun_s + 1.9, begun_s + 2.1):
        took.note(job, released_s - 0.2, released_s - 0.1, released_s)
    assert [len(one) for one in took] == [2, 2]


def test_quantiles_of_locks() -> None:
    result = Result.of([number / 1000 for number in range(100, 0, -1)], 2.0, 1.0)
    assert (result.pairs_per_s, result.p50_ms, result.p99_ms) == (50.0, 50.0, 99.0)
    with pytest.raises(RuntimeError):
        Result.of([], 2.0, 1.0)


@pytest.mark.nightly
def test_locks_of_ours_are_measured(brokers: str, tmp_path: Path) -> None:
    options = ["--systems", "ours", "--scenarios", "alone,contended", "--seconds", "3", "--repeat", "1"]
    command = [sys.executable, "-m", "benchmarks.locks", *options, "--brokers", brokers]
    run = subprocess.Popen(
        [*command, "--profile", str(tmp_path / "kept")],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = run.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        # Its worker and its clients too.
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        raise
    assert run.returncode == 0, errors
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert {name: list(systems) for name, systems in figures.items()} == {"alone": ["ours"], "contended": ["ours"]}
    assert all(systems["ours"]["pairs_per_s"] > 0 for systems in figures.values())
