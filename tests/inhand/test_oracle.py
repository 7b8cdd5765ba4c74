"""The oracle of the run agrees with the app where nothing fails, and finds each planted damage."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from actors.ports import TopicPartition
from actors.runtime.handlers import expiry
from actors.testing import ActorTestDriver
from tests.crash.checks import Record
from tests.inhand import oracle, rules
from tests.inhand.oracle import FLAWS, KINDS, OUTPUTS, TIMED, Call, Mark
from tests.sim.test_planted_windows import count_what_is_left_as_handled
from tests.unit.runtime.leaving import leave

INPUTS = 300
"""So many that each kind comes due."""
FEW = 100
PARTITIONS = 3
NAME = "inhand"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run without faults leaves, by topic."""

    records: Mapping[str, list[Record]]
    begin_ms: int
    inputs: int

    def flaws(self, others: Mapping[str, list[Record]]) -> set[tuple[str, str]]:
        """Return the kinds and names of what is wrong with it, with other records of some topics."""
        ledger, _ = oracle.account({**self.records, **others}, self.begin_ms, range(self.inputs))
        return {(flaw.kind, flaw.name) for flaw in ledger.flaws()}


@pytest.fixture(scope="module")
def evidence() -> Iterator[Evidence]:
    """A run in which nothing fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APP_NAME", NAME)
        patch.setenv("KAFKA_URL", "kafka://127.0.0.1:9092")
        # The app sets it for its own process.
        patch.setattr(expiry, "PASS_REST_S", 0.3)
        yield play()


def play(inputs: int = INPUTS, stops: int = 0) -> Evidence:
    """Run the app on the test driver, and stop the worker so often meanwhile."""
    app = importlib.import_module("tests.inhand.app")
    with ActorTestDriver(app.app, partitions=PARTITIONS, effects={app.post: app.post}) as driver:
        begin_ms = post_all(driver, app, inputs)
        for _ in range(stops):
            driver.advance(0.2, settle=False)
            leave(driver, settle=False)
        driver.settle()
        driver.advance(10.0)
        return Evidence({topic: read(driver, topic) for topic in (*OUTPUTS, *TIMED)}, begin_ms, inputs)


def post_all(driver: ActorTestDriver, app: Any, inputs: int) -> int:
    """Post what a run sends; return the time of the number 0."""
    now_ms = driver._clock.wall_ms()
    begin_ms = now_ms - inputs * rules.STEP_MS

    def post(topic: Any, key: bytes, message: msgspec.Struct, timestamp_ms: int | None = None) -> None:
        driver.post(topic, key=key, value=msgspec.json.encode(message), raw=True, timestamp_ms=timestamp_ms)

    for number in range(inputs):
        post(app.clicks, rules.click_key(number), rules.click(number, begin_ms, factor=7919))
        for name, factor in rules.HALVES.items():
            post(getattr(app, name), rules.key(number, factor), rules.click(number, begin_ms, factor=factor))
        post(app.chores, rules.chore_key(number), rules.Job(number))
        post(app.questions, rules.key(number), rules.Question(number))
    for number in range(PARTITIONS * 3):
        # One of each partition is among them.
        post(app.chores, b"tick-%d" % number, rules.Tick(), now_ms + 60_000)
    return begin_ms


def read(driver: ActorTestDriver, topic: str) -> list[Record]:
    """Return the committed records of a topic."""
    return [
        Record(partition, record.offset, record.key, record.value)
        for partition in range(PARTITIONS)
        for record in driver._cluster.fetch(TopicPartition(f"{NAME}-{topic}", partition), 0, 1_000_000)[0]
    ]


def kind_of(topic: str, record: Record) -> str:
    """Return of which kind an output is."""
    value = json.loads(record.value or b"")
    if topic == "finals":
        return str(value["store"])
    if topic == "said":
        return str(value["what"])
    return f"{topic} {'lone' if None in (value['left'], value['right']) else 'pairs'}"


def damaged(record: Record) -> Record:
    """Return a record that says something else."""
    value = json.loads(record.value or b"")
    fields = ("sum", "left", "right", "value" if value.get("what") == "heard" else "number")
    field = next(field for field in fields if value.get(field) is not None)
    return record._replace(value=json.dumps({**value, field: value[field] + 1_000_000}).encode())


def test_the_oracle_agrees_with_a_run_in_which_nothing_fails(evidence: Evidence) -> None:
    ledger, late = oracle.account(evidence.records, evidence.begin_ms, range(INPUTS))
    assert (ledger.flaws(), ledger.examples, late) == ({}, [], 0)
    assert [kind for kind in KINDS if not ledger.due[kind]] == []


def test_closes_that_a_worker_drops_before_its_last_commit_are_lost(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "PASS_REST_S", 0.3)
    assert play(FEW, stops=10).flaws({}) == set()
    count_what_is_left_as_handled(monkeypatch)
    assert "lost" in {flaw for _, flaw in play(FEW, stops=10).flaws({})}


@pytest.mark.parametrize("flaw", FLAWS)
def test_each_damage_is_found(evidence: Evidence, flaw: str) -> None:
    records = {topic: list(evidence.records[topic]) for topic in ("finals", "matched", "paid", "said")}
    for kind in KINDS:
        topic = kind.partition(" ")[0] if kind in oracle.JOINS else "finals" if kind in oracle.WINDOWS else "said"
        of_topic = records[topic]
        index = next(at for at, record in enumerate(of_topic) if kind_of(topic, record) == kind)
        record = of_topic[index]
        of_topic[index : index + 1] = {"lost": [], "doubled": [record, record], "wrong": [damaged(record)]}[flaw]
    assert {kind for kind, name in evidence.flaws(records) if name == flaw} == set(KINDS)


def test_messages_of_a_key_that_are_handled_in_another_order_are_found(evidence: Evidence) -> None:
    records = list(evidence.records["said"])
    first, second, *_ = [
        at
        for at, record in enumerate(records)
        if kind_of("said", record) == "handled" and record.key == rules.chore_key(0)
    ]
    values = records[first].value, records[second].value
    records[first], records[second] = (
        records[first]._replace(value=values[1]),
        records[second]._replace(value=values[0]),
    )
    assert evidence.flaws({"said": records}) == {("handled", "wrong")}


CALLS = {
    "ended": (Call("a", 1, 10, 20), Call("a", 2, 40, 50)),
    "ended since": (Call("a", 1, 10, 35), Call("a", 2, 40, 50)),
    "cut off": (Call("a", 1, 10, None), Call("a", 2, 40, 50)),
    "once": (Call("a", 1, 10, 20), Call("b", 2, 40, 50)),
}


@pytest.mark.parametrize(
    ("calls", "marks", "count"),
    [
        ("ended", [Mark(30, "stop")], {("stop", "ended"): 1}),
        ("ended", [], {("start", "ended"): 1}),
        ("ended since", [Mark(30, "stop")], {("stop", "ended"): 1}),
        ("cut off", [Mark(30, "stop")], {("stop", "cut off"): 1}),
        ("once", [Mark(30, "stop")], {}),
        ("ended", [Mark(30, "kill"), Mark(30, "kill", 30, frozenset([1]))], {("kill", "excused"): 1}),
        ("ended", [Mark(30, "kill"), Mark(30, "kill", 30, frozenset([2]))], {("kill", "ended"): 1}),
        ("ended", [Mark(5, "kill"), Mark(5, "kill", 5, frozenset([1])), Mark(30, "stop")], {("stop", "ended"): 1}),
        ("ended", [Mark(15, "bounce_broker", 25), Mark(30, "stop")], {("bounce_broker", "excused"): 1}),
    ],
)
def test_calls_that_are_made_again_are_counted_by_fault(calls: str, marks: list[Mark], count: dict) -> None:
    assert oracle.repeats(CALLS[calls], marks) == count


def test_calls_are_read_with_their_ends() -> None:
    lines = [("a", "begun", 1), ("b", "begun", 2), ("a", "ended", 3), ("a", "begun", 4)]
    raw = b"".join(
        json.dumps({"id": name, "what": what, "pid": 7, "at_ns": at_ns}).encode() + b"\n" for name, what, at_ns in lines
    )
    assert oracle.read_calls(raw) == [Call("a", 7, 1, 3), Call("b", 7, 2, None), Call("a", 7, 4, None)]
