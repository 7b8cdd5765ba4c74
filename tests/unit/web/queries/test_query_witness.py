"""The judge of the tests on questions sees each kind of wrong answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.kafka.web.query_witness import Answer, Changelog, Question, Told, Witness, read_answer

LOG = Changelog([("a", 0, 10, 1), ("b", 1, 10, 1), ("c", 0, 12, 1), ("a", 0, 14, 2), ("d", 1, 30, 1)])
PAGE = Question("page", "/actors/counts", limit=3)
ANSWER = Answer(
    PAGE, "a worker", (Told("a", 0, 2), Told("b", 1, 1), Told("c", 0, 1)), offsets={0: 15, 1: 20}, ages_s={}
)
A, B, C = ANSWER.told


def test_an_answer_is_what_the_log_has_before_its_position() -> None:
    assert list(LOG.contradictions(ANSWER)) == []
    assert list(LOG.contradictions(replace(ANSWER, told=(Told("a", 0, 1), B, C), offsets={0: 14, 1: 20}))) == []
    assert list(LOG.contradictions(replace(ANSWER, question=replace(PAGE, limit=2), told=(A, B), next="…"))) == []
    behind = replace(PAGE, start="a", after=True)
    assert list(LOG.contradictions(replace(ANSWER, question=behind, told=(B, C)))) == []
    absent = replace(ANSWER, question=Question("key", "", ("d",)), told=(Told("d", 1, 0),))
    assert list(LOG.contradictions(absent)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": {0: 14, 1: 20}},  # not committed by then
        {"told": (Told("a", 0, 1), B, C)},  # lags behind its position
        {"told": (Told("a", 1, 2), B, C)},  # of another partition
        {"told": (A, B)},
        {"told": (A, C), "offsets": {0: 15}},
        {"told": (A, B, B, C)},
        {"told": (B, A, C)},
        {"told": (A, B, C, Told("d", 1, 0))},
        {"told": (A, B), "next": "…"},
        {"question": replace(PAGE, start="a", after=True)},
        {"question": replace(PAGE, end="c")},
    ],
)
def test_what_the_log_contradicts(wrong: dict[str, Any]) -> None:
    assert list(LOG.contradictions(replace(ANSWER, **wrong)))


def test_an_answer_has_what_was_seen_before() -> None:
    def told(number: int, offset: int, *, age_s: float | None = None) -> Answer:
        ages_s = {} if age_s is None else {0: age_s}
        return Answer(Question("key", "", ("a",)), "", (Told("a", 0, number),), {0: offset}, ages_s)

    def wrong(answer: Answer, asked_s: float) -> bool:
        witness.wrong.clear()
        witness.take(answer, asked_s)
        return bool(witness.wrong)

    witness, began_s = Witness(sent={"a": 3}), time.monotonic()
    assert not wrong(told(1, 10), time.monotonic())
    witness.committed("a", 2)
    now_s = time.monotonic()
    assert wrong(told(1, 11), now_s), "it was seen in the output"
    assert not wrong(told(1, 11), began_s), "who asked before needn't have it"
    assert wrong(told(2, 9), now_s), "the partition goes back"
    assert wrong(told(4, 11), now_s), "nobody sent that"
    assert not wrong(told(1, 9, age_s=now_s - began_s + 1), now_s), "it says how old it is"
    assert wrong(told(1, 9, age_s=0.0), now_s), "it is older than it says"
    assert not wrong(told(3, 20), now_s)
    assert wrong(told(2, 20), time.monotonic()), "it was answered already"


POSITION = {"changelog_offset": 15}
SAID = {"key": "a", "partition": 0, "value": 2, "position": POSITION, "read": "committed", "staleness_ms": 0}
MANY = {"results": [{"key": "a", "partition": 0, "value": 2, "found": True}], "positions": {"0": POSITION}}
MANY |= {"read": "committed", "staleness_ms": 0}


@pytest.mark.parametrize(
    ("kind", "status", "wrong"),
    [
        ("key", 200, {"key": "b"}),
        ("key", 200, {"read": "standby"}),
        ("key", 200, {"staleness_ms": 1}),
        ("key", 200, {"read": "standby", "staleness_ms": 1, "position": POSITION | {"staleness_ms": 1}}),
        ("key", 404, {"type": "urn:x:unknown-store"}),
        ("many", 500, {}),
        ("many", 200, {"results": []}),
        ("many", 200, {"results": MANY["results"] * 2}),
        ("many", 200, {"results": [{"key": "a", "partition": 0, "value": 2, "found": False}]}),
    ],
)
def test_an_answer_that_contradicts_itself_or_the_question(kind: str, status: int, wrong: dict[str, Any]) -> None:
    question, said = Question(kind, "", ("a",)), SAID if kind == "key" else MANY
    assert read_answer(question, "", 200, said).told == (A,)
    with pytest.raises(ValueError, match=r"other|age|404|503|found"):
        read_answer(question, "", status, {**said, **wrong})
