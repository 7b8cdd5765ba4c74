"""Every invariant of queries, programs of two versions and expired offsets fails on the damage it is there for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import actors._core.task.takeover as takeover
import actors._core.task.topic_ids as topic_ids
import actors.runtime.message.failures as failures
import actors.runtime.task.identity as identity
from actors.runtime.inputs.inbox import PlacedRecords
from actors.runtime.message.store import Store
from actors.runtime.queries.queries import StateReader
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.task.identity import FoundInput
from tests.sim.fakes.source import FakeSource
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten

# --- queries ----------------------------------------------------------------------------------------------------------


def keep_a_lease_for_ever(patch: Patch) -> None:
    """Who was a member once answers for its partitions, whoever has them now."""
    patch.setattr(ReadLease, "holds", lambda *_: True)


def answer_during_a_commit(patch: Patch) -> None:
    """An answer doesn't wait for the end of a commit that others may have seen."""
    edit = ("await self._commit_ended(task, since_s)", "task.context")
    patch.setattr(StateReader, "hold", rewritten(StateReader.hold, edit))


# --- programs of two versions -----------------------------------------------------------------------------------------


def take_a_newer_value_for_a_failure(patch: Patch) -> None:
    """`on_error` decides of messages that meet a newer program's value."""
    patch.setattr(failures, "newer_in", lambda error: None)
    patch.setattr(Store, "_decoded", lambda self, raw, state, read=None: (read or self.decode_value)(raw))


def write_over_newer_values(patch: Patch) -> None:
    """A write doesn't look at what it replaces."""
    patch.setattr(Store, "_check_held", lambda self, overlay, state, raw_key: overlay.get(raw_key))


def let_the_handler_go_on(patch: Patch) -> None:
    """A handler that catches the error of a newer value goes on."""
    patch.setattr(Store, "_decoded", lambda self, raw, state, read=None: (read or self.decode_value)(raw))
    patch.setattr(Store, "_check_held", lambda self, overlay, state, raw_key: overlay.get(raw_key))


# --- expired offsets --------------------------------------------------------------------------------------------------


def forget_that_there_was_an_offset(patch: Patch) -> None:
    """The registry isn't asked: no offset and no state is a first start."""
    patch.setattr(identity, "_input_of", lambda *_: None)


def begin_again_on_top_of_state(patch: Patch) -> None:
    """The choice for a missing offset is taken wherever it is missing."""
    edit = ("is_below and rules.allow_reprocessing", "is_below and (rules.missing_offset or rules.allow_reprocessing)")
    patch.setattr(takeover, "_reset_by_operator", rewritten(takeover._reset_by_operator, edit))


# --- inputs that were re-created, offsets that were set ---------------------------------------------------------------


def take_a_name_for_a_topic(patch: Patch) -> None:
    """A takeover doesn't compare the ids of the input of its last commit and of now."""
    patch.setattr(takeover.InputFacts, "is_recreated", False)


def fetch_by_name(patch: Patch) -> None:
    """Records of another topic of the same name are delivered."""
    start_from = FakeSource.start_from
    patch.setattr(FakeSource, "start_from", lambda self, source, offset, topic_id: start_from(self, source, offset))


def _told(patch: Patch, **facts: Any) -> None:
    """Have a takeover know something else of the topics before."""
    of = FoundInput.of

    def found(*arguments: Any, **options: Any) -> FoundInput:
        one = of(*arguments, **options)
        return replace(one, topics=replace(one.topics, **facts))

    patch.setattr(FoundInput, "of", found)


def count_the_state_of_the_former_input(patch: Patch) -> None:
    """The choice for an input that was re-created doesn't outlast the takeover: offsets of its state still count."""
    _told(patch, since=0, is_recreated=False)


def name_messages_by_topic_and_offset(patch: Patch) -> None:
    """Ids of messages don't tell an input from a former one of its name."""
    patch.setattr(topic_ids.TopicIds, "message_tag", property(lambda self: "", lambda self, _: None))


def forget_that_the_input_was_re_created(patch: Patch) -> None:
    """The claim that goes on in a re-created input says so, and later ones don't."""
    _told(patch, is_recreated=False)


def handle_what_is_misplaced(patch: Patch) -> None:
    """Records are handled wherever producers put them."""
    patch.setattr(PlacedRecords, "checked", lambda self, records: records)


def believe_any_offset(patch: Patch) -> None:
    """An offset without the app's mark is taken where the state doesn't contradict it."""
    patch.setattr(takeover.InputFacts, "is_moved", False)


PLANTED = (
    Planted(take_a_name_for_a_topic, "exactly once", ("recreate_input",), first_seed=16, features=("recreate",)),
    Planted(fetch_by_name, "exactly once", ("recreate_input",), first_seed=23, features=("recreate",)),
    Planted(
        count_the_state_of_the_former_input,
        "progress",
        ("recreate_input", "crash"),
        first_seed=103,
        features=("recreate",),
    ),
    Planted(name_messages_by_topic_and_offset, "ids", ("recreate_input",), first_seed=2, features=("recreate",)),
    Planted(
        forget_that_the_input_was_re_created, "ids", ("recreate_input", "crash"), first_seed=9, features=("recreate",)
    ),
    Planted(handle_what_is_misplaced, "home", features=("grow",)),
    Planted(believe_any_offset, "exactly once", ("reset_offset",), first_seed=4, features=("operator",)),
    Planted(keep_a_lease_for_ever, "queries", ("cut_off", "pause"), first_seed=2, features=("queries",)),
    Planted(answer_during_a_commit, "queries", ("bad_network",), first_seed=73, features=("queries",)),
    Planted(take_a_newer_value_for_a_failure, "offender", first_seed=25, features=("versions",)),
    Planted(take_a_newer_value_for_a_failure, "versions", first_seed=25, features=("park", "versions")),
    Planted(write_over_newer_values, "versions", features=("versions",)),
    Planted(let_the_handler_go_on, "versions", first_seed=25, features=("versions",)),
    Planted(forget_that_there_was_an_offset, "exactly once", ("expire_offsets",), first_seed=2, features=("expired",)),
    Planted(begin_again_on_top_of_state, "operator", ("expire_offsets",), features=("expired",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
