"""What a takeover decides, case by case."""

import uuid
from dataclasses import replace

import pytest

from actors._core.task.commit import MAX_METADATA_BYTES, CommitMark, largest_mark, parse_mark
from actors._core.task.completed import SPAN, encode_finished
from actors._core.task.lifecycle import TRANSITIONS, Event, IllegalTransitionError, State, advance
from actors._core.task.takeover import (
    Contradiction,
    InputFacts,
    LastKnown,
    LogBounds,
    LostChangelog,
    ResetPolicy,
    Restore,
    RestoreFacts,
    RestoreStep,
    Retention,
    Start,
    StartRules,
    decide_restore,
    decide_start,
    missed_tombstones,
    next_epoch,
    plan_restore,
)
from actors._core.task.topic_ids import TopicIds, show_id
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
        (position(50), LogBounds(51, 90), "starts at 51"),
    ],
)
def test_a_checkpoint_the_log_cannot_continue_is_wiped(checkpoint, bounds, word):
    plan = plan_restore(checkpoint, bounds, "a")
    assert plan.wipe is not None
    assert word in plan.wipe
    assert (plan.start, plan.end) == (bounds.start, bounds.end)


@pytest.mark.parametrize(
    ("checkpoint", "claimed_id", "word"),
    [
        (position(50, changelog_id="b"), "", "with the id b, and is the topic with the id a"),
        (position(50, changelog_id="b"), "b", "with the id b, and is the topic with the id a"),
        (position(50), "b", "with the id b, and is the topic with the id a"),
        (position(50, changelog_id="c"), "b", "with the id b, and is the topic with the id a"),
        (None, "b", "with the id b, and is the topic with the id a"),
        (position(91), "a", "ends at 90"),
    ],
)
def test_a_changelog_that_lost_the_state_is_never_a_reason_to_wipe(checkpoint, claimed_id, word):
    plan = plan_restore(checkpoint, LogBounds(0, 90), "a", claimed_id=claimed_id)
    assert plan.wipe is None
    assert word in plan.lost


def test_a_store_of_a_changelog_that_the_owner_has_left_is_wiped():
    plan = plan_restore(position(50, changelog_id="b"), LogBounds(0, 90), "a", claimed_id="a")
    assert plan.lost is None
    assert "gone on with the topic with the id a" in plan.wipe


STOP, REBUILD, RESTORE, OLDER = LostChangelog


@pytest.mark.parametrize(
    ("known", "steps"),
    [
        ({"position": None}, "read read read read"),
        ({"position": position(50)}, "read read read read"),
        ({"position": position(50), "claimed_id": "a"}, "read read read read"),
        ({"position": position(50), "bounds": LogBounds(60, 90)}, "rebuild rebuild rebuild rebuild"),
        ({"position": position(50, changelog_id="b"), "claimed_id": "a"}, "rebuild rebuild rebuild rebuild"),
        ({"position": position(50), "missed": "too old"}, "rebuild rebuild rebuild rebuild"),
        ({"position": position(91)}, "ask_operator rebuild write_back write_back"),
        ({"position": position(50), "doubt": "a commit"}, "ask_operator rebuild write_back write_back"),
        ({"position": None, "doubt": "a commit"}, "read read read read"),
        ({"position": position(50), "rewritten": "offset 49"}, "ask_operator rebuild write_back write_back"),
        ({"position": position(50, changelog_id="b")}, "ask_operator rebuild write_back write_back"),
        ({"position": position(50), "claimed_id": "b"}, "ask_for_copy rebuild ask_for_copy ask_for_copy"),
        ({"position": None, "claimed_id": "b"}, "ask_for_copy rebuild ask_for_copy ask_for_copy"),
    ],
)
def test_a_restore_reads_rebuilds_or_asks_by_its_facts_and_the_operators_choice(known, steps):
    facts = RestoreFacts(**{"bounds": LogBounds(0, 90), "topic_id": "a", **known})
    for policy, step in zip((STOP, REBUILD, RESTORE, OLDER), steps.split(), strict=True):
        decided, plan = decide_restore(facts, policy)
        assert decided is RestoreStep[step.upper()]
        assert (plan.wipe is not None) is (decided is RestoreStep.REBUILD)
        assert plan.lost is not None or decided in (RestoreStep.READ, RestoreStep.REBUILD)


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
        found = missed_tombstones(plan, Retention("", DAY_MS, 100), since_ms=since_ms, now_ms=now_ms)
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
    assert decide_start(facts(committed=41, state=42), rules(allow_reprocessing=True)) == Start(41, is_anew=True)
    assert decide_start(facts(committed=2, start=3), rules(allow_lost_input=True)) == Start(3)


def test_an_epoch_is_above_all_known_ones():
    assert next_epoch([]) == 1
    assert next_epoch([3, 9, 0]) == 10


def test_a_mark_survives_the_metadata():
    mark = CommitMark(3, 14, "abc")
    assert parse_mark(mark.encode()) == mark


def test_a_mark_has_the_ids_of_its_topics():
    input_id, changelog_id = str(uuid.uuid4()), str(uuid.uuid4())
    ids = TopicIds.of(input_id, {"seen": changelog_id}, since=7)
    assert ids.message_tag == ""
    ids = replace(ids, is_recreated=True)
    assert ids.message_tag == show_id(input_id)[-8:]
    mark = CommitMark(3, 14, "abc", "AQ==", 1_700_000_000_000, ids)
    found = parse_mark(mark.encode())
    assert found == mark
    assert found.topics.changelog_id("seen") == changelog_id
    assert found.topics.changelog_id("other") == ""
    assert parse_mark(CommitMark(3, 14, "abc", topics=TopicIds()).encode()) == CommitMark(
        3, 14, "abc", topics=TopicIds()
    )


@pytest.mark.parametrize(("stores", "is_parallel"), [(0, False), (60, True), (60, False)])
def test_the_largest_mark_fits_into_an_offsets_metadata(stores, is_parallel):
    changelogs = {f"store-{number}": str(uuid.uuid4()) for number in range(stores)}
    ids = replace(TopicIds.of(str(uuid.uuid4()), changelogs, since=1_000_000), is_recreated=True)
    finished = encode_finished(0, range(1, SPAN)) if is_parallel else ""
    mark = CommitMark(1_000_000, 10**9, "n" * 12, finished, 1_700_000_000_000, ids)
    assert len(mark.encode()) <= largest_mark(stores, is_parallel=is_parallel) <= MAX_METADATA_BYTES


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
        for held in (rules(), rules(reset=ResetPolicy.LATEST)):
            decision = decide_start(case, held)
            assert isinstance(decision, Contradiction)
            assert (
                "worker worker-1 took it over in epoch 7 at 2023-11-14 22:13:20 UTC, last at offset 40"
                in decision.reason
            )
            assert "--to-offset 40" in decision.remedy
            assert 'missing_offset="earliest"' in decision.remedy


def test_state_names_the_last_position_where_the_registry_does_not():
    decision = decide_start(facts(committed=None, state=42), rules(reset=ResetPolicy.LATEST, allow_reprocessing=True))
    assert isinstance(decision, Contradiction)
    assert "--to-offset 42" in decision.remedy
    assert "--to-offset 43" in decide_start(lost(state=43), rules()).remedy


def test_a_missing_offset_is_where_the_operator_says():
    assert decide_start(lost(), rules(missing_offset=ResetPolicy.EARLIEST)) == Start(3)
    assert decide_start(lost(), rules(missing_offset=ResetPolicy.LATEST)) == Start(100)
    assert decide_start(lost(state=42), rules(allow_reprocessing=True)) == Start(3, is_anew=True)
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


# --- an input that was re-created -------------------------------------------------------------------------------------

OLD, NEW = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


def recreated(committed=10, state=None, **changes):
    return replace(facts(committed=committed, start=3, state=state), known_id=OLD, input_id=NEW, **changes)


@pytest.mark.parametrize("case", [recreated(), recreated(None), recreated(state=42), recreated(committed=500)])
def test_a_re_created_input_is_refused_with_both_ids_and_what_each_choice_does(case):
    known = LastKnown(40, "worker-1", 7, 1_700_000_000_000)
    for held in (rules(), rules(allow_reprocessing=True), rules(accept_moved=True)):
        decision = decide_start(replace(case, last_known=known), held)
        assert isinstance(decision, Contradiction)
        assert "re-created" in decision.reason
        assert "AAAAAAAAAAAAAAAAAAAAAQ" in decision.reason
        assert "AAAAAAAAAAAAAAAAAAAAAg" in decision.reason
        assert "last at offset 40" in decision.reason
        assert 'missing_offset="earliest", which handles every record of the new topic from offset 3' in decision.remedy
        assert 'missing_offset="latest", which skips the records before offset 100' in decision.remedy


def test_a_re_created_input_begins_where_the_operator_says_and_its_state_no_longer_counts():
    for case in (recreated(), recreated(committed=None, state=42)):
        assert decide_start(case, rules(missing_offset=ResetPolicy.EARLIEST)) == Start(3, is_anew=True)
        assert decide_start(case, rules(missing_offset=ResetPolicy.LATEST)) == Start(100, is_anew=True)
    moved = recreated(committed=20, state=42, is_marked=False)
    assert isinstance(decide_start(moved, rules()), Contradiction)
    assert decide_start(moved, rules(accept_moved=True)) == Start(20, is_anew=True)


def test_an_unknown_id_contradicts_nothing():
    for known, now in ((OLD, ""), ("", NEW), ("", ""), (OLD, OLD)):
        assert decide_start(replace(facts(), known_id=known, input_id=now), rules()) == Start(10)


# --- an offset that was set by hand -----------------------------------------------------------------------------------


def moved(committed=10, state=None, offset=40):
    known = None if offset is None else LastKnown(offset, "worker-1", 7, 1_700_000_000_000)
    return replace(facts(committed=committed, state=state), is_marked=False, last_known=known)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (moved(10), "handles the inputs 10 to 39 again"),
        (moved(60), "skips the inputs 40 to 59"),
        (moved(40), "the last known position"),
        (moved(10, state=42, offset=None), "handles the inputs 10 to 41 again"),
        (moved(60, state=42), "skips the inputs 42 to 59"),
    ],
)
def test_an_offset_without_a_mark_is_refused_with_the_numbers(case, words):
    for held in (rules(), rules(missing_offset=ResetPolicy.EARLIEST)):
        decision = decide_start(case, held)
        assert isinstance(decision, Contradiction)
        assert f"the group's committed offset {case.committed} was set by hand" in decision.reason
        assert words in decision.remedy
        assert f"--to-offset {case.last_position}" in decision.remedy
        assert 'moved_offset="accept"' in decision.remedy


def test_an_offset_that_was_set_by_hand_is_taken_when_it_is_wanted():
    wanted = rules(accept_moved=True)
    assert decide_start(moved(10), wanted) == Start(10)
    assert decide_start(moved(60, state=42), wanted) == Start(60)
    assert decide_start(moved(10, state=42), wanted) == Start(10, is_anew=True)
    assert decide_start(moved(10, state=42), rules(allow_reprocessing=True)) == Start(10, is_anew=True)
    assert isinstance(decide_start(moved(101), wanted), Contradiction)


def test_an_offset_without_a_mark_is_where_an_app_begins_that_never_committed():
    assert decide_start(moved(10, offset=None), rules()) == Start(10)
    assert decide_start(moved(10, state=0, offset=None), rules()) == Start(10)


def test_accepting_moved_offsets_does_not_reprocess_a_marked_one():
    assert isinstance(decide_start(facts(committed=41, state=42), rules(accept_moved=True)), Contradiction)
    assert isinstance(decide_start(facts(committed=None, state=42), rules(accept_moved=True)), Contradiction)


@pytest.mark.parametrize("case", [facts(committed=None, state=42), lost(), facts(committed=101), moved()])
def test_a_remedy_that_sets_the_offset_names_the_flag_that_has_it_taken(case):
    decision = decide_start(case, rules())
    assert "--to-offset" in decision.remedy
    assert "MOVED_OFFSET=accept" in decision.remedy


@pytest.mark.parametrize("case", [recreated(), facts(committed=101), facts(committed=None, state=42), facts(state=42)])
def test_a_remedy_that_deletes_changelogs_names_the_flag_that_has_the_state_given_up(case):
    decision = decide_start(case, rules())
    assert "delete the changelog topics" in decision.remedy
    assert 'lost_changelog="rebuild" (or LOST_CHANGELOG)' in decision.remedy
    # Without state, the group's missing offset is the next reason to stop.
    needs_offset = case.committed is None
    assert ('missing_offset="earliest" or "latest"' in decision.remedy) == needs_offset


@pytest.mark.parametrize("case", [facts(committed=None, state=42), lost(), facts(committed=10, state=42), moved()])
def test_a_position_to_go_back_to_is_said_to_skip_unfinished_inputs_where_there_may_be_some(case):
    caveat = f"up to {SPAN} inputs before it may be unprocessed"
    assert caveat not in decide_start(case, rules()).remedy
    assert caveat in decide_start(replace(case, is_parallel=True), rules()).remedy
