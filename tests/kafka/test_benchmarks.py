"""The benchmarks' own arithmetic: the verdict sees each kind of damage, ratios compare what belongs together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.faults.verdict import fold, judge
from benchmarks.peers.scenarios import all_distinct, all_repeats, half_repeats
from benchmarks.peers.summary import ratios

INPUTS = {b"a": 3, b"b": 2}
OUTPUTS = [(b"a", 1), (b"b", 1), (b"a", 2), (b"a", 3), (b"b", 2)]
STATE = {b"a": 3, b"b": 2}


def test_a_good_run_is_exact() -> None:
    verdict = judge(INPUTS, OUTPUTS, STATE)
    assert verdict.is_exact
    assert (verdict.expected, verdict.counted, verdict.state) == (5, 5, 5)


def test_an_increment_that_never_came_out() -> None:
    verdict = judge(INPUTS, OUTPUTS[:-1], {**STATE, b"b": 1})
    assert (verdict.lost, verdict.doubled, verdict.counted, verdict.state) == (1, 0, 4, 4)
    assert not verdict.is_exact


def test_a_key_that_never_came_out() -> None:
    verdict = judge(INPUTS, [output for output in OUTPUTS if output[0] == b"a"], {b"a": 3})
    assert (verdict.lost, verdict.counted) == (2, 3)


def test_an_output_that_came_twice() -> None:
    verdict = judge(INPUTS, [*OUTPUTS, OUTPUTS[1]], STATE)
    assert (verdict.lost, verdict.doubled, verdict.counted) == (0, 1, 5)
    assert not verdict.is_exact


def test_an_increment_counted_twice() -> None:
    verdict = judge(INPUTS, [*OUTPUTS, (b"b", 3)], {**STATE, b"b": 3})
    assert (verdict.lost, verdict.doubled, verdict.counted, verdict.state) == (0, 1, 6, 6)


def test_a_count_that_went_back() -> None:
    """The state forgot an increment that was already told: one count comes twice, the last one never."""
    verdict = judge(INPUTS, [*OUTPUTS[:3], (b"a", 2), (b"b", 2)], {**STATE, b"a": 2})
    assert (verdict.lost, verdict.doubled, verdict.counted, verdict.state) == (1, 1, 4, 4)


def test_a_key_that_was_never_sent() -> None:
    assert judge(INPUTS, [*OUTPUTS, (b"c", 1)], STATE).doubled == 1


def test_a_state_that_is_behind_its_outputs() -> None:
    verdict = judge(INPUTS, OUTPUTS, {**STATE, b"a": 2})
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert not verdict.is_exact


def test_a_state_that_could_not_be_read_proves_nothing() -> None:
    assert not judge(INPUTS, OUTPUTS, None).is_exact


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
