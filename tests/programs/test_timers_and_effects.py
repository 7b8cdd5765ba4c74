"""Whole programs of timers and effects: what they do whoever crashes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors import EffectCall
from actors.testing import ActorTestDriver
from tests.documents import Block, block
from tests.programs import agent, jobs, order_validation, trip_saga

FOLDER = Path(__file__).parent
DAY_S = 86_400.0
FAR_S = 60.0
"""Longer than all attempts of an effect take."""


def crashed_at(seconds: float, *, keep_disk: bool) -> Callable[[ActorTestDriver], None]:
    def crash(driver: ActorTestDriver) -> None:
        driver.advance(seconds, settle=False)
        driver.crash(keep_disk=keep_disk)

    return crash


CRASHES = [crashed_at(0.02 * place, keep_disk=bool(place % 2)) for place in range(8)]


class Model:
    """Answers a prompt after a moment, in capitals; fails as often as it is told."""

    def __init__(self, fails: int = 0) -> None:
        self.prompts, self.fails = list[str](), fails

    async def ask(self, call: EffectCall, prompt: str) -> str:
        if call.attempt <= self.fails:
            raise ConnectionError("overloaded")
        self.prompts.append(prompt)
        return prompt.upper()


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("is_approved", [True, False])
def test_an_agent_sends_what_was_approved(crash: Any, is_approved: bool) -> None:
    model = Model(fails=1)
    with ActorTestDriver(agent.app, effects={agent.ask_model: model.ask}) as driver:
        driver.tell(agent.Agent, "a", agent.Task("bees"), settle=False)
        crash(driver)
        driver.advance(10)
        driver.crash(keep_disk=False)
        driver.tell(agent.Agent, "a", agent.Decision(is_approved))
        results = [record.value for record in driver.outputs(agent.results)]
    final = "REVISE DRAFT BEES: REVIEW DRAFT BEES"
    assert results == [final if is_approved else "rejected"]
    assert list(dict.fromkeys(model.prompts)) == [
        "draft bees",
        "review DRAFT BEES",
        "revise DRAFT BEES: REVIEW DRAFT BEES",
    ]


def test_an_agent_that_nobody_answers_gives_up_after_a_week_and_one_without_a_model_at_once() -> None:
    with ActorTestDriver(agent.app, effects={agent.ask_model: Model().ask}) as driver:
        driver.tell(agent.Agent, "a", agent.Task("bees"))
        driver.advance(6 * DAY_S)
        driver.crash(keep_disk=False)
        assert driver.outputs(agent.results) == []
        driver.advance(DAY_S)
        driver.tell(agent.Agent, "a", agent.Decision(True))
        assert [record.value for record in driver.outputs(agent.results)] == ["nobody approved it"]
    with ActorTestDriver(agent.app, effects={agent.ask_model: Model(fails=4).ask}) as driver:
        driver.tell(agent.Agent, "a", agent.Task("bees"))
        driver.advance(FAR_S)
        assert [record.value for record in driver.outputs(agent.results)] == ["failed: ConnectionError: overloaded"]


class Travel:
    """Reserves and cancels; has nothing of `missing`."""

    def __init__(self, missing: str = "") -> None:
        self.reserved, self.cancelled, self.missing = list[str](), Counter[str](), missing

    async def reserve(self, call: EffectCall, what: str, trip: str) -> str:
        if what == self.missing:
            raise LookupError(f"no {what}")
        if what not in self.reserved:
            self.reserved.append(what)
        return what

    async def cancel(self, call: EffectCall, reservation: str) -> None:
        self.cancelled[reservation] += 1


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("missing", ["", "hotel", "car"])
def test_a_saga_books_all_or_cancels_what_it_booked(crash: Any, missing: str) -> None:
    travel = Travel(missing)
    effects = {trip_saga.reserve: travel.reserve, trip_saga.cancel: travel.cancel}
    with ActorTestDriver(trip_saga.app, effects=effects) as driver:
        driver.tell(trip_saga.Trip, "t", "ada", settle=False)
        crash(driver)
        driver.advance(FAR_S)
        (outcome,) = [record.value for record in driver.outputs(trip_saga.outcomes)]
    place = trip_saga.STEPS.index(missing) if missing else 3
    assert travel.reserved == list(trip_saga.STEPS[:place])
    assert outcome == (f"LookupError: no {missing}" if missing else "booked")
    assert set(travel.cancelled) == (set(travel.reserved) if missing else set())


def test_a_saga_that_is_too_late_cancels_what_comes_then() -> None:
    travel, is_slow = Travel(), [True]

    async def reserve(call: EffectCall, what: str, trip: str) -> str:
        if what == "hotel" and is_slow[0]:
            raise TimeoutError
        return await travel.reserve(call, what, trip)

    effects = {trip_saga.reserve: reserve, trip_saga.cancel: travel.cancel}
    with ActorTestDriver(trip_saga.app, effects=effects) as driver:
        (trip,) = (spec for spec in driver._specs if spec.name == "Trip")
        object.__setattr__(trip.effect_functions["reserve"], "attempts", 0)
        driver.tell(trip_saga.Trip, "t", "ada")
        driver.advance(3_601)
        assert [record.value for record in driver.outputs(trip_saga.outcomes)] == ["too late for ada"]
        is_slow[0] = False
        driver.advance(301)
        assert driver.outputs(trip_saga.outcomes) == []
    assert set(travel.cancelled) == {"flight", "hotel"}


@pytest.mark.parametrize("keep_disk", [True, False])
def test_an_order_is_validated_by_all_or_refused_or_late(keep_disk: bool) -> None:
    checked, order = order_validation.Checked, order_validation.Order
    with ActorTestDriver(order_validation.app) as driver:
        for key in ("valid", "refused", "late"):
            driver.tell(order_validation.Validation, key, order(5))
        driver.crash(keep_disk=keep_disk)
        for service in sorted(order_validation.SERVICES):
            driver.tell(order_validation.Validation, "valid", checked(service, True))
            driver.tell(order_validation.Validation, "refused", checked(service, service != "fraud"))
            driver.crash(keep_disk=keep_disk)
        driver.advance(301)
        outcomes = {record.key: record.value for record in driver.outputs(order_validation.validations)}
        assert sorted(record.key for record in driver.outputs(order_validation.checks)) == ["late", "refused", "valid"]
    assert outcomes == {"valid": "valid", "refused": "refused: fraud", "late": "late"}


def test_a_job_has_a_status_and_says_why_it_failed() -> None:
    fails = [True]

    async def convert(call: EffectCall, source: str) -> str:
        if fails[0]:
            raise ValueError(f"no {source}")
        return source.upper()

    with ActorTestDriver(jobs.app, effects={jobs.convert: convert}) as driver:
        driver.tell(jobs.Jobs, "j", jobs.Submit("a.txt"))
        driver.advance(0.5)
        job, (pending,) = driver.query(jobs.Jobs.at("j").status)
        assert (job, pending.attempts) == (jobs.Job("pending"), 1)
        driver.crash(keep_disk=False)
        driver.advance(FAR_S)
        assert driver.query(jobs.Jobs.at("j").status) == (jobs.Job("failed", "ValueError: no a.txt"), [])
        fails[0] = False
        driver.tell(jobs.Jobs, "j", jobs.Submit("b.txt"))
        assert driver.query(jobs.Jobs.at("j").status) == (jobs.Job("done", "B.TXT"), [])


@pytest.mark.parametrize(
    ("name", "before", "shown"),
    [
        (
            "agent",
            block("docs/how-to/from-temporal.md", "An agent"),
            block("docs/how-to/from-temporal.md", "An agent", 2),
        ),
        (
            "trip_saga",
            block("docs/how-to/from-temporal.md", "A saga"),
            block("docs/how-to/from-temporal.md", "A saga", 2),
        ),
    ],
)
def test_the_page_shows_the_programs_behind_those_of_others(name: str, before: Block, shown: Block) -> None:
    assert (FOLDER / f"{name}.py").read_text().endswith(shown.code)
    assert ast.parse(before.code).body
