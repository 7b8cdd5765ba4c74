"""What a takeover decides, case by case."""

import uuid
from dataclasses import replace

import pytest

from actors._core.commit import Backoff, CommitMark, parse_mark
from actors._core.lifecycle import TRANSITIONS, Event, IllegalTransitionError, State, advance
from actors._core.takeover import (
    Contradiction,
    InputFacts,
    LastKnown,
    LogBounds,
    ResetPolicy,
    Restore,
    Start,
    StartRules,
    decide_start,
    missed_tombstones,
    next_epoch,
    plan_restore,
)
from actors._core.topic_ids import TopicIds
from stores._core.record import Position

DAY_MS = 86_400_000


def position(changelog_offset=50, wall_time_ms=0, changelog_id="a"):
    return Position(
        source_offset=10,
        changelog_offset=changelog_offset,
        wall_time_ms=wall_time_ms,
        epoch=3,
        changelog_id=changelog_id,
    )


def rules(**changes):
    defaults = {
        "reset": ResetPolicy.EARLIEST,
        "exactly_once": True,
        "allow_reprocessing": False,
        "allow_lost_input": False,
    }
    return StartRules(**{**defaults, **changes})


def facts(committed=10, start=0, end=100, state=None):
    return InputFacts(committed=committed, bounds=LogBounds(start, end), state_source_offset=state)


def test_an_empty_disk_restores_the_whole_log():
    assert plan_restore(None, LogBounds(5, 90), "a") == Restore(5, 90, None)


def test_a_checkpoint_restores_the_tail():
    assert plan_restore(position(50), LogBounds(0, 90), "a") == Restore(50, 90, None)


@pytest.mark.parametrize(
    ("checkpoint", "bounds", "word"),
    [
        (position(50, changelog_id="b"), LogBounds(0, 90), "made anew"),
        (position(50), LogBounds(51, 90), "starts at 51"),
    ],
)
def test_a_checkpoint_the_log_cannot_continue_is_wiped(checkpoint, bounds, word):
    plan = plan_restore(checkpoint, bounds, "a")
    assert plan.wipe is not None
    assert word in plan.wipe
    assert (plan.start, plan.end) == (bounds.start, bounds.end)


@pytest.mark.parametrize(
    ("age_ms", "tail", "missed"),
    [
        (DAY_MS, 2, True),
        (DAY_MS, 1, False),
        (DAY_MS, 0, False),
        (DAY_MS // 2, 2, False),
        (DAY_MS - 50, 2, True),
    ],
)
def test_an_old_checkpoint_with_a_tail_may_have_missed_deletes(age_ms, tail, missed):
    plan = Restore(50, 50 + tail, None)
    for since_ms, now_ms in ((0, age_ms), (age_ms, 0)):
        # One from the future has no known age.
        found = missed_tombstones(plan, since_ms=since_ms, now_ms=now_ms, delete_retention_ms=DAY_MS, margin_ms=100)
        assert found is missed


def test_the_first_start_follows_the_reset_policy():
    assert decide_start(facts(committed=None, start=3), rules()) == Start(3)
    assert decide_start(facts(committed=None), rules(reset=ResetPolicy.LATEST)) == Start(100)


def test_a_state_of_no_input_contradicts_no_start():
    assert decide_start(facts(committed=None, start=3, state=0), rules()) == Start(3)
    assert decide_start(facts(committed=None, state=0), rules(reset=ResetPolicy.LATEST)) == Start(100)


def test_the_committed_offset_is_where_it_goes_on():
    assert decide_start(facts(committed=42, state=42), rules()) == Start(42)
    assert decide_start(facts(committed=42, state=30), rules()) == Start(42)


@pytest.mark.parametrize(
    ("case", "word"),
    [
        (facts(committed=41, state=42), "below the state"),
        (facts(committed=None, state=42), "no committed offset"),
        (facts(committed=101), "beyond the input's end"),
        (facts(committed=2, start=3), "deleted before they were processed"),
    ],
)
def test_contradictions_stop_with_reason_and_remedy(case, word):
    decision = decide_start(case, rules())
    assert isinstance(decision, Contradiction)
    assert word in decision.reason
    assert decision.remedy


def test_settings_allow_what_an_operator_wants():
    assert decide_start(facts(committed=41, state=42), rules(allow_reprocessing=True)) == Start(41)
    assert decide_start(facts(committed=2, start=3), rules(allow_lost_input=True)) == Start(3)


def test_at_least_once_may_commit_offsets_after_the_state():
    assert decide_start(facts(committed=41, state=42), rules(exactly_once=False)) == Start(41)


def test_an_epoch_is_above_all_known_ones():
    assert next_epoch([]) == 1
    assert next_epoch([3, 9, 0]) == 10


def test_a_mark_survives_the_metadata():
    mark = CommitMark(3, 14, "abc")
    assert parse_mark(mark.encode()) == mark


def test_a_mark_has_the_ids_of_its_topics():
    input_id, changelog_id = str(uuid.uuid4()), str(uuid.uuid4())
    ids = TopicIds.of(input_id, {"seen": changelog_id}, since=7)
    mark = CommitMark(3, 14, "abc", "AQ==", 1_700_000_000_000, ids)
    found = parse_mark(mark.encode())
    assert found == mark
    assert found.topics.changelog_id("seen") == changelog_id
    assert found.topics.changelog_id("other") == ""
    assert parse_mark(CommitMark(3, 14, "abc", topics=TopicIds()).encode()) == CommitMark(
        3, 14, "abc", topics=TopicIds()
    )


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "x;1;n",
        "1;2",
        "1;-2;n",
        "some tool",
        "1;2;n~",
        "1;2;n~x,1",
        "1;2;n~,-1",
        "1;2;n~,1,abcdefghé",
        "1;2;n~,1,abc",
    ],
)
def test_foreign_metadata_is_no_mark(metadata):
    assert parse_mark(metadata) is None


def test_backoff_grows_to_its_cap():
    backoff = Backoff(first_s=0.1, cap_s=1.0)
    assert [backoff.delay_s(n) for n in (1, 2, 3, 10)] == [0.1, 0.2, 0.4, 1.0]


def test_every_state_can_be_revoked_and_every_takeover_step_starts_over():
    for state in State:
        assert advance(state, Event.REVOKED) is State.CLOSED
    for state in (
        State.FENCING,
        State.CONFIRMING,
        State.LOOKING,
        State.RESTORING,
        State.CLAIMING,
        State.COMMITTING,
    ):
        assert advance(state, Event.UNKNOWN) is State.FENCING


def test_nothing_leads_to_running_but_a_claim_or_a_commit():
    ways = {(s, e) for (s, e), target in TRANSITIONS.items() if target is State.RUNNING}
    assert ways == {(State.CLAIMING, Event.CLAIMED), (State.COMMITTING, Event.COMMITTED)}


def test_a_closed_task_stays_closed():
    with pytest.raises(IllegalTransitionError, match="FENCED"):
        advance(State.CLOSED, Event.FENCED)


# --- an offset that the group had, and has no more --------------------------------------------------------------------


def lost(state=None, offset=40):
    known = LastKnown(offset, "worker-1", 7, 1_700_000_000_000)
    return replace(facts(committed=None, start=3, state=state), last_known=known)


def test_a_start_without_the_offset_that_the_group_had_is_refused_with_or_without_state():
    for case in (lost(), lost(state=0)):
        for held in (rules(), rules(reset=ResetPolicy.LATEST), rules(exactly_once=False)):
            decision = decide_start(case, held)
            assert isinstance(decision, Contradiction)
            assert (
                "worker worker-1 took it over in epoch 7 at 2023-11-14 22:13:20 UTC, last at offset 40"
                in decision.reason
            )
            assert "--to-offset 40" in decision.remedy
            assert 'missing_offset="earliest"' in decision.remedy


def test_state_names_the_last_position_where_the_registry_does_not():
    decision = decide_start(facts(committed=None, state=42), rules(exactly_once=False))
    assert isinstance(decision, Contradiction)
    assert "--to-offset 42" in decision.remedy
    assert "--to-offset 43" in decide_start(lost(state=43), rules(exactly_once=False)).remedy


def test_a_missing_offset_is_where_the_operator_says():
    assert decide_start(lost(), rules(missing_offset=ResetPolicy.EARLIEST)) == Start(3)
    assert decide_start(lost(), rules(missing_offset=ResetPolicy.LATEST)) == Start(100)
    assert decide_start(lost(state=42), rules(allow_reprocessing=True)) == Start(3)
    assert isinstance(decide_start(lost(), rules(allow_reprocessing=True, reset=ResetPolicy.LATEST)), Contradiction)


def test_the_choice_for_a_missing_offset_is_not_for_a_partition_that_never_had_one():
    first = facts(committed=None, start=3)
    assert decide_start(first, rules(missing_offset=ResetPolicy.LATEST)) == Start(3)
    latest = rules(missing_offset=ResetPolicy.EARLIEST, reset=ResetPolicy.LATEST)
    assert decide_start(first, latest) == Start(100)


def test_the_choice_for_a_missing_offset_does_not_reprocess_on_top_of_state():
    decision = decide_start(lost(state=42), rules(missing_offset=ResetPolicy.EARLIEST))
    assert isinstance(decision, Contradiction)
    assert "allow_reprocessing" in decision.remedy
