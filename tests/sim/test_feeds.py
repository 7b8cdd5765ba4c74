"""Event time through partitions and hops doesn't depend on when a record is read.

`SEED=n` replays one seed with its trace, `SIM_SEEDS=n` runs an eighth of so many of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.sim.feeds import damages
from tests.sim.feeds.program import KINDS, ONE_MANY
from tests.sim.feeds.simulation import check, simulate
from tests.sim.planted import Patch
from tests.unit.core import test_feed_times as schedules
from tests.unit.runtime.inputs import test_bad_times as bad_times
from tests.unit.runtime.inputs import test_feeds as feeds

SEEDS = max(int(os.environ.get("SIM_SEEDS", "20")) // 8, 2)
FEATURE_SEEDS = max(int(os.environ.get("SIM_SEEDS", "20")) // 20, 1)
REPLAYED = os.environ.get("SEED")
NO_FAULTS: tuple[str, ...] = ()
GROWTH = ("grow", "slow_actor")
FEATURES = (
    "ordered",
    "idle",
    "wall",
    "warned",
    "stopped",
    "failing",
    "ordered failing",
    "ordered idle",
    "ordered idle failing",
    "idle failing",
    "wall failing",
    "paused",
    "ordered paused",
)


def seeds(count: int) -> list[int]:
    return list(range(count)) if REPLAYED is None else [int(REPLAYED)]


@pytest.mark.parametrize("seed", seeds(SEEDS))
@pytest.mark.parametrize("faults", [None, NO_FAULTS, GROWTH], ids=["faults", "none", "growth"])
def test_results_are_those_of_all_records_by_time(seed: int, faults: tuple[str, ...] | None) -> None:
    check(seed, faults=faults, print_trace=REPLAYED is not None)


@pytest.mark.parametrize("seed", seeds(FEATURE_SEEDS))
@pytest.mark.parametrize("features", FEATURES)
def test_so_do_those_of_other_programs(seed: int, features: str) -> None:
    check(seed, features=features.split(), print_trace=REPLAYED is not None)


@pytest.mark.parametrize("seed", seeds(SEEDS))
@pytest.mark.parametrize("faults", [None, NO_FAULTS, GROWTH], ids=["faults", "none", "growth"])
def test_windows_across_users_are_those_of_all_records_by_time(seed: int, faults: tuple[str, ...] | None) -> None:
    check(seed, faults=faults, features=["across"], print_trace=REPLAYED is not None)


@pytest.mark.parametrize("kind", sorted({*KINDS, ONE_MANY}))
def test_each_kind_of_program_comes_to_rest(kind: str) -> None:
    check(67, features=[kind])


def test_a_run_repeats() -> None:
    first, second = simulate(7), simulate(7)
    assert first.trace == second.trace
    assert first.counted == second.counted


# What they replace is called by compiled functions, which look nothing up.
INTERPRETED = {
    damages.commit_with_each_look,
    damages.count_no_markers,
    damages.count_side_by_side_after_the_commit,
    damages.count_what_is_fetched,
    damages.forget_closes_that_wait,
    damages.send_sessions_without_their_gap,
}


def marked(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return damages with what is needed to find them, as parameters of a test."""
    return [
        pytest.param(*row, id=row[0].__name__, marks=[pytest.mark.interpreted] * (row[0] in INTERPRETED))
        for row in rows
    ]


PLANTED = [
    (damages.take_the_largest_time, NO_FAULTS, 0, "late", ""),
    (damages.take_the_largest_time_upstream, NO_FAULTS, 0, "late", ""),
    (damages.take_the_fetched_position_for_the_end, NO_FAULTS, 1, "late", ""),
    (damages.take_the_last_stable_offset_for_the_end, NO_FAULTS, 1, "late", ""),
    (damages.ask_for_ends_first, ("slow_look", "lost_look", "slow_actor"), 46, "late", ""),
    (damages.believe_pending_offsets, ("slow_markers", "foreign_transaction", "slow_look"), 7, "late", ""),
    (damages.count_no_markers, NO_FAULTS, 0, "first stage lacks", ""),
    (damages.count_what_is_fetched, GROWTH, 12, "late", ""),
    (damages.count_side_by_side_after_the_commit, NO_FAULTS, 3, "first stage lacks", ""),
    (damages.remember_partition_counts, GROWTH, 1, "first stage", ""),
    (damages.renew_a_waiting_time_alone, ("slow_actor",), 16, "late", ""),
    (damages.believe_at_once, None, 302, "late", ""),
    (damages.follow_at_once, None, 63, "late", ""),
    (damages.follow_the_last_look, NO_FAULTS, 63, "late", ""),
    (damages.send_no_later_than_stream_time, NO_FAULTS, 0, "late", ""),
    (damages.send_sessions_without_their_gap, NO_FAULTS, 1, "late", ""),
    (damages.forget_closes_that_wait, NO_FAULTS, 21, "late", ""),
    (damages.forget_timers_that_wait, ("slow_actor",), 62, "late", ""),
    (damages.forget_stream_time, ("slow_actor", "crash"), 2, "late", ""),
    (damages.forget_the_latest_time, ("slow_actor", "crash"), 30, "first stage lacks", ""),
    (damages.read_no_further_than_stream_time, NO_FAULTS, 0, "first stage", ""),
    (damages.let_zombies_commit, ("pause_at_step", "wake_in_takeover", "slow_actor"), 25, "time of", ""),
    (damages.send_before_records_in_order, NO_FAULTS, 0, "late", "ordered"),
    (damages.close_windows_before_records_in_order, NO_FAULTS, 3, "late", "ordered"),
    (damages.handle_in_the_order_of_arrival, NO_FAULTS, 1, "first stage lacks", "ordered"),
    (damages.commit_with_each_look, NO_FAULTS, 0, "rest", ""),
]


@pytest.fixture
def _often(monkeypatch: Patch) -> None:
    """Looks twice as often as a worker's: a damage shows in fewer seeds."""
    monkeypatch.setattr("actors.runtime.looks.INTERVAL_S", 0.25)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize(("damage", "faults", "seed", "violated", "features"), marked(PLANTED))
def test_a_damage_is_found(
    damage: Callable[[Patch], None],
    faults: tuple[str, ...] | None,
    seed: int,
    violated: str,
    features: str,
    monkeypatch: Patch,
) -> None:
    damage(monkeypatch)
    violations = simulate(seed, faults=faults, features=features.split()).violations
    assert any(violation.startswith(violated) for violation in violations), violations


# What needs a schedule of its own. A cap is beyond the promise: without it, what follows a source that is ahead of the
# clock is late by (b). A queue of the newest look alone makes nothing late either: stream time stands until a reader
# has caught up. A slow answer alone, or a producer that retries behind a failed look, is too seldom for a seed. And the
# output time is that of what waits unless a timer is set for a time that has passed: no record here is that late.
#
# Two damages can't do harm here. The records of an aborted transaction can't be counted: the consumer doesn't hand them
# out. And the largest time of other sources can't be asked for after the own end: one answer has both, times first,
# and `ask_for_ends_first` is what is left of it.
SCRIPTED = [
    (damages.follow_without_a_cap, schedules.test_a_source_follows_no_further_than_the_clock_and_in_steps),
    (damages.follow_up_to_the_clock, schedules.test_a_source_follows_no_further_than_the_clock_and_in_steps),
    (damages.keep_the_newest_look_alone, schedules.test_the_oldest_look_stays_and_the_newest_is_replaced_whole),
    (damages.measure_silence_to_the_answer, schedules.test_silence_lasts_from_an_answer_to_a_question),
    (
        damages.forget_output_time,
        feeds.test_the_time_of_outputs_doesnt_go_back_with_a_takeover_while_a_late_timer_waits,
    ),
    (damages.take_times_of_another_topic, bad_times.test_a_mark_of_another_topic_of_that_name_has_no_time),
]


@pytest.mark.parametrize(("damage", "schedule"), SCRIPTED, ids=[one[0].__name__ for one in SCRIPTED])
def test_a_damage_is_found_by_a_schedule(
    damage: Callable[[Patch], None], schedule: Callable[[], None], monkeypatch: Patch
) -> None:
    schedule()
    damage(monkeypatch)
    with pytest.raises(AssertionError):
        schedule()


@pytest.mark.parametrize("by", ["a failed look", "another leader"])
def test_a_silence_that_a_failed_look_doesnt_end_is_found(by: str, monkeypatch: Patch) -> None:
    damages.believe_what_a_failed_look_left(monkeypatch)
    with pytest.raises(AssertionError):
        schedules.test_producers_may_retry_for_a_while(by)


ACROSS = [
    (damages.keep_what_changed, 2),
    (damages.add_a_change_once, 2),
    (damages.forget_closes_that_wait, 13),
    (damages.take_the_largest_time_upstream, 0),
]


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize(("damage", "seed"), marked(ACROSS))
def test_a_damage_across_users_is_found(damage: object, seed: int, monkeypatch: Patch) -> None:
    damage(monkeypatch)  # type: ignore[operator]
    violations = simulate(seed, faults=NO_FAULTS, features=["across"]).violations
    assert any(violation.startswith(("second stage has", "late")) for violation in violations), violations
