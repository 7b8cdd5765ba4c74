"""Each check of the run over names finds the wrong account that it is there for, and errors are read as they are."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from actors._core.task.takeover import (
    Contradiction,
    InputFacts,
    LastKnown,
    LogBounds,
    ResetPolicy,
    StartRules,
    decide_start,
)
from actors.runtime.state.restore import choice
from tests.crash.checks import Record
from tests.names.checks import Jump, Life, check, may_start_at
from tests.names.remedies import UnknownErrorError, read_remedy

NUMBERS = (1, 5, 7, 9)


def effect(offset: int, number: int, held: int = 0, what: str = "did", app: int = 0) -> Record:
    said = {"what": what, "number": number, "held": held, "app": app}
    return Record(0, offset, b"k", json.dumps(said).encode())


def a_life(**changes: object) -> Life:
    records = [Record(0, offset, b"k", b"%d" % number) for offset, number in enumerate(NUMBERS)]
    return replace(Life("main-0-in", 1, reached={0: 4}, records=records), **changes)  # type: ignore[arg-type]


def good_effects() -> list[Record]:
    said = [effect(offset, number, offset + 1) for offset, number in enumerate(NUMBERS)]
    return [*said, effect(9, 5, what="rang")]


def state(*numbers: int) -> list[Record]:
    return [Record(0, 0, b"k", json.dumps(numbers[:1]).encode()), Record(0, 1, b"k", json.dumps(numbers).encode())]


def found(life: Life, effects: list[Record], held: list[Record], **more: object) -> dict[str, int]:
    return dict(check([life], effects, held, has_timers=True, **more).counts)  # type: ignore[arg-type]


def test_a_good_run_is_clean() -> None:
    assert found(a_life(), good_effects(), state(*NUMBERS)) == {}


def test_a_lost_input() -> None:
    assert found(a_life(), [*good_effects()[:3], good_effects()[4]], state(*NUMBERS[:3])) == {"lost": 1}


def test_a_doubled_input() -> None:
    effects = [*good_effects(), effect(12, 9, 5)]
    assert found(a_life(), effects, state(*NUMBERS, 9)) == {"doubled": 1}


def test_an_input_that_nobody_sent() -> None:
    assert found(a_life(), [*good_effects(), effect(12, 3, 5)], state(*NUMBERS, 3)) == {"doubled": 1}
    assert found(a_life(), [*good_effects(), effect(12, 3, 5)], state(*NUMBERS, 3), unsure=[3]) == {}


def test_an_input_that_came_to_a_topic_while_it_was_deleted_may_ring() -> None:
    effects = [*good_effects(), effect(12, 10, 5), effect(13, 10, what="rang")]
    assert found(a_life(), effects, state(*NUMBERS, 10), unsure=[10]) == {}
    assert found(a_life(), effects[:-1], state(*NUMBERS, 10), unsure=[10]) == {"rings lost": 1}


def test_a_timer_that_hangs_and_one_that_comes_twice() -> None:
    assert found(a_life(), good_effects()[:4], state(*NUMBERS)) == {"rings lost": 1}
    assert found(a_life(), [*good_effects(), effect(12, 5, what="rang")], state(*NUMBERS)) == {"rings doubled": 1}


def test_an_input_that_found_another_state() -> None:
    effects = good_effects()
    effects[2] = effect(2, 7, 1)
    # It differs from the input before, and so does the next one from it.
    assert found(a_life(), effects, state(*NUMBERS)) == {"wrong running values": 2}


@pytest.mark.parametrize("held", [(1, 5, 7), (1, 5, 7, 9, 9), (1, 5, 7, 8), ()])
def test_a_state_that_lacks_or_repeats_an_input(held: tuple[int, ...]) -> None:
    assert found(a_life(), good_effects(), state(*held)) == {"wrong state": 1}


def test_a_state_that_lost_what_a_remedy_gave_up_and_no_other() -> None:
    life = a_life(forgotten=[Jump(0, 2, 3)])
    assert found(life, good_effects(), state(1, 5, 9)) == {}
    assert found(a_life(forgotten=[Jump(0, 7, 9)]), good_effects(), state(1, 5, 9)) == {"wrong state": 1}


def test_offsets_that_an_operator_set_back_or_forward_are_counted() -> None:
    back = a_life(jumps=[Jump(0, 4, 3)])
    twice = [*good_effects(), effect(12, 9, 5)]
    assert found(back, twice, state(*NUMBERS, 9)) == {}
    assert found(back, good_effects(), state(*NUMBERS)) == {"lost": 1}
    ahead = a_life(jumps=[Jump(0, 3, 4)])
    skipped = [*good_effects()[:3], good_effects()[4]]
    assert found(ahead, skipped, state(*NUMBERS[:3])) == {}
    assert found(ahead, good_effects(), state(*NUMBERS)) == {"doubled": 1}


def test_a_deleted_topic_excuses_only_what_was_not_committed() -> None:
    less = [*good_effects()[:3], good_effects()[4]]
    assert found(a_life(end="deleted", reached={0: 3}), less, state(*NUMBERS[:3])) == {}
    assert found(a_life(end="deleted", reached={0: 4}), less, state(*NUMBERS[:3])) == {"lost": 1}


def test_what_was_carried_to_another_topic_is_not_handled_in_the_first() -> None:
    assert found(a_life(end="carried", reached={0: 3}), good_effects(), state(*NUMBERS)) == {"doubled": 1}


def test_a_topic_for_which_nobody_has_chosen_is_not_handled() -> None:
    assert found(a_life(waiting={0}), good_effects(), state(*NUMBERS))["doubled"] == 4


@pytest.mark.parametrize(
    ("offset", "life", "committed", "chosen", "is_right"),
    [
        (4, {}, 4, {}, True),
        (3, {}, 4, {}, False),
        (4, {}, None, {}, True),
        (0, {"waiting": {0}}, None, {}, False),
        (0, {"waiting": {0}, "reached": {}}, None, {"MISSING_OFFSET": "earliest"}, True),
        (9, {"waiting": {0}, "reached": {}}, None, {"MISSING_OFFSET": "latest"}, True),
        (11, {"waiting": {0}, "reached": {}}, None, {"MISSING_OFFSET": "latest"}, False),
        (2, {"tampered": {0}}, 2, {}, False),
        (2, {"tampered": {0}}, 2, {"MOVED_OFFSET": "accept"}, True),
        (3, {"tampered": {0}}, 2, {"MOVED_OFFSET": "accept"}, False),
        (4, {"tampered": {0}}, None, {}, False),
        (0, {"tampered": {0}}, None, {"MISSING_OFFSET": "earliest"}, True),
        (0, {}, 4, {"MISSING_OFFSET": "earliest"}, False),
    ],
)
def test_a_partition_goes_on_where_it_was_or_where_somebody_chose(
    offset: int, life: dict[str, object], committed: int | None, chosen: dict[str, str], is_right: bool
) -> None:
    assert may_start_at(offset, a_life(**life), 0, committed, 10, chosen) == is_right


RULES = StartRules(ResetPolicy.EARLIEST, allow_reprocessing=False, allow_lost_input=False)
TOOL = "kafka-consumer-groups.sh --bootstrap-server BROKER --group g --topic t:0 --reset-offsets --execute --to-offset"


@pytest.mark.parametrize(
    ("facts", "damage", "settings"),
    [
        ({"known_id": str(uuid.UUID(int=1)), "input_id": str(uuid.UUID(int=2))}, "input", {"MISSING_OFFSET"}),
        ({}, "reset", set()),
        ({"state_source_offset": None}, "reset", {"MISSING_OFFSET"}),
        ({"committed": 3, "is_marked": False}, "reset", {"MOVED_OFFSET"}),
    ],
)
def test_the_errors_of_a_takeover_are_read(facts: dict[str, object], damage: str, settings: set[str]) -> None:
    known = InputFacts(None, LogBounds(0, 9), 5, last_known=LastKnown(5, "w", 1, 0), tool=TOOL)
    found = decide_start(replace(known, **facts), RULES)  # type: ignore[arg-type]
    assert isinstance(found, Contradiction)
    remedy = read_remedy(f"{found.reason}. {found.remedy}")
    assert remedy.damage == damage
    assert remedy.settings.keys() == settings
    assert set(remedy.settings.get("MISSING_OFFSET", ())) <= {"earliest", "latest"}
    assert remedy.tool[-1:] == (() if damage == "input" else ("5",))


def test_an_error_that_tells_of_something_else_or_offers_nothing_is_refused() -> None:
    lost = "the changelog was the topic with the id a, and is the topic with the id b now"
    assert read_remedy(choice("t[0]", lost)).settings == {"LOST_CHANGELOG": ("restore", "rebuild")}
    with pytest.raises(UnknownErrorError):
        read_remedy(lost)
    with pytest.raises(UnknownErrorError):
        read_remedy("Traceback: KeyError")
