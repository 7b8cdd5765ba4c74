"""What becomes of an effect is told: its result to a method, its failure, and that its outcome is unknown."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    EffectCall,
    GivenUp,
    HandlerFailedError,
    NewerProgramError,
    OnError,
    PendingEffect,
    Unknown,
    query,
    receive,
)
from actors.errors import BatchesRefusedError, CommitRefusedError, OutcomeUnknownError
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeWriter
from tests.unit.runtime.leaving import leave


class Order(msgspec.Struct, tag="order"):
    number: int


class Receipt(msgspec.Struct):
    number: int
    text: str = ""


class Till(Actor[list[str]]):
    """Has orders charged, and keeps what it is told."""

    effect: Any = None
    then = "charged"

    @receive
    async def order(self, message: Order) -> None:
        self.ctx.effect(self.effect, message.number, then=getattr(self, self.then))

    async def charged(self, receipt: Receipt) -> None:
        self.state.append(f"charged {receipt.number} {receipt.text}")

    async def done(self) -> None:
        self.state.append("done")

    async def failed(self, outcome: GivenUp) -> None:
        self.state.append(f"failed {outcome.effect} {outcome.attempts} {outcome.error}")

    async def unclear(self, outcome: Unknown) -> None:
        self.state.append(f"unclear {outcome.effect} {outcome.error}")

    @query
    def pending(self, limit: int = 100) -> list[PendingEffect]:
        return self.ctx.effects(limit=limit)


FIRST_WAIT = timedelta(seconds=10)


def make(
    function: Callable[..., Any],
    *,
    then: str = "charged",
    actor: dict[str, Any] | None = None,
    partitions: int = 3,
    **options: Any,
) -> tuple[ActorTestDriver, type[Till]]:
    """Return a driver of an app with one effect."""
    app = App("shop", broker="kafka://127.0.0.1:1")
    effect = app.effect(name="charge", first_wait=FIRST_WAIT, longest_wait=FIRST_WAIT, **options)(function)
    till = type("Till", (Till,), {"effect": effect, "then": then})
    app.actor(app.topic("orders", key_type=str), effects=[effect], **(actor or {}))(till)
    return ActorTestDriver(app, effects={effect: effect}, partitions=partitions), till


async def charge(call: EffectCall, number: int) -> Receipt:
    return Receipt(number, call.decoded_key)


async def refuse(call: EffectCall, number: int) -> Receipt:
    raise ValueError(f"no {number}")


@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_result_goes_to_a_method_as_its_type(concurrency: int) -> None:
    driver, till = make(charge, actor={"concurrency": concurrency})
    with driver:
        driver.tell(till, "a", Order(1))
        driver.tell(till, "a", Order(2))
        assert driver.get(till, "a") == ["charged 1 a", "charged 2 a"]
        assert driver.query(till, "pending", "a") == []


def test_a_method_without_a_parameter_is_told_that_it_is_done_also_where_nothing_was_returned() -> None:
    async def nothing(call: EffectCall, number: int) -> None: ...

    for function in (nothing, charge):
        driver, till = make(function, then="done")
        with driver:
            driver.tell(till, "a", Order(1))
            assert driver.get(till, "a") == ["done"]


def test_the_effects_of_a_function_actor_call_its_functions() -> None:
    app, calls = App("shop", broker="kafka://127.0.0.1:1"), list[Any]()
    charging = app.effect()(charge)
    refusing = app.effect(attempts=1, on_give_up="failed")(refuse)

    @app.actor(app.topic("orders", key_type=str, value_type=int), effects=[charging, refusing])
    async def take(ctx: Context, number: int) -> None:
        ctx.effect(charging if number else refusing, number, then=charged)

    @take.timer
    async def charged(ctx: Context, receipt: Receipt) -> None:
        calls.append((ctx.key, receipt))

    @take.timer
    async def failed(ctx: Context, outcome: GivenUp) -> None:
        calls.append((ctx.key, outcome.error))

    with ActorTestDriver(app, effects={charging: charging, refusing: refusing}) as driver:
        driver.tell(take, "a", 1)
        driver.tell(take, "b", 0)
    assert calls == [("a", Receipt(1, "a")), ("b", "ValueError: no 0")]


@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_call_that_fails_for_good_is_told_and_the_next_goes_on(concurrency: int) -> None:
    async def refuse_the_first(call: EffectCall, number: int) -> Receipt:
        return await (refuse if number == 1 else charge)(call, number)

    actor = {"concurrency": concurrency, "on_error": OnError(then="skip", dead_letters=True)}
    driver, till = make(refuse_the_first, attempts=3, on_give_up="failed", actor=actor)
    with driver:
        for number in (1, 2):
            driver.tell(till, "a", Order(number))
        driver.advance(15)
        assert driver.get(till, "a") is None
        first, second = driver.query(till, "pending", "a")
        assert (first.effect, first.attempts, first.error, first.is_parked) == ("charge", 2, "ValueError: no 1", False)
        assert first.next_ms > second.next_ms == 0
        assert (second.attempts, second.error) == (0, None)
        assert driver.query(till, "pending", "a", limit=1) == [first]
        assert driver.query(till, "pending", "b") == []
        driver.advance(6)
        assert driver.get(till, "a") == ["failed charge 3 ValueError: no 1", "charged 2 a"]
        assert driver.query(till, "pending", "a") == []
        (letter,) = driver.dead_letters()
    headers = dict(letter.headers)
    assert (headers["fa-effect"], headers["fa-attempts"]) == (b"charge", b"3")
    assert headers["fa-error"] == b"effect charge: ValueError: no 1"
    assert json.loads(letter.value) == {"args": [1], "kwargs": {}}


def test_a_parked_call_has_a_dead_letter_too() -> None:
    driver, till = make(refuse, attempts=1, actor={"on_error": "park"})
    with driver:
        driver.tell(till, "a", Order(1))
        (letter,) = driver.dead_letters()
        (pending,) = driver.query(till, "pending", "a")
    assert dict(letter.headers)["fa-effect"] == b"charge"
    assert pending.is_parked


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (object(), "it succeeded, but what it returned can't be a message to its actor"),
        (float("nan"), "it succeeded, but what it returned can't be a message to its actor"),
        (Receipt(1, "x" * 5_000_000), r"5000.* bytes don't fit into the changelog of its outbox"),
        ("text", "Expected `object`, got `str`"),
    ],
)
@pytest.mark.parametrize("repeat", ["until_done", "never"])
def test_a_result_that_can_not_be_kept_goes_the_give_up_way(result: Any, reason: str, repeat: Any) -> None:
    calls = Counter[int]()

    async def useless(call: EffectCall, number: int) -> Any:
        calls[number] += 1
        return result

    driver, till = make(useless, repeat=repeat, on_give_up="failed")
    with driver:
        driver.tell(till, "a", Order(1))
        (text,) = driver.get(till, "a")
    assert text.startswith("failed charge 1 it succeeded, but")
    assert re.search(reason, text), text
    assert calls == {1: 1}


def test_a_result_that_is_too_large_parks_a_call_whose_actor_is_not_told() -> None:
    async def large(call: EffectCall, number: int) -> Receipt:
        return Receipt(number, "x" * 5_000_000)

    driver, till = make(large)
    with driver:
        driver.tell(till, "a", Order(1))
        (parked,) = driver.parked(till)
    assert "don't fit into the changelog" in str(parked.error)


def test_a_method_that_raises_when_it_is_told_is_parked_and_the_next_call_goes_on() -> None:
    driver, till = make(refuse, attempts=1, on_give_up="failed", actor={"on_error": "park"})
    failed, is_broken = till.failed, [True]

    async def fail(self: Any, outcome: GivenUp) -> None:
        if is_broken[0]:
            raise ValueError("can't take it")
        await failed(self, outcome)

    till.failed = fail  # type: ignore[method-assign]
    with driver:
        driver.tell(till, "a", Order(1))
        driver.tell(till, "a", Order(2))
        assert len(driver.parked(till)) >= 1
        is_broken[0] = False
        driver.crash(keep_disk=False)
        for _ in range(3):
            driver.retry_parked(till, "a")
        assert driver.get(till, "a") == [f"failed charge 1 ValueError: no {number}" for number in (1, 2)]


def test_a_result_whose_method_is_gone_names_it_and_waits_for_a_program_that_has_it() -> None:
    driver, till = make(charge)
    app, renamed = driver._app, App("shop", broker="kafka://127.0.0.1:1")

    class Renamed(Actor[list[str]]):
        @receive
        async def order(self, message: Order) -> None: ...

    effect = renamed.effect(name="charge")(charge)
    renamed.actor(renamed.topic("orders", key_type=str), name="Till", effects=[effect])(Renamed)

    async def hang(call: EffectCall, number: int) -> None:
        await asyncio.sleep(20)

    with driver:
        driver._effects["charge"] = hang
        driver.restart()
        driver.tell(till, "a", Order(1), settle=False)
        driver.advance(1, settle=False)
        driver._effects["charge"] = charge
        with pytest.raises(NewerProgramError, match="a call of charged, which actor Till doesn't have"):
            driver.restart(renamed)
        driver.restart(app)
        assert driver.get(till, "a") == ["charged 1 a"]


# --- calls that are never repeated -----------------------------------------------------------------------------------


class Outside:
    """Counts calls; each takes some seconds, and ends as it is told."""

    def __init__(self, takes_s: float = 2.0, fails: str = "") -> None:
        self.takes_s, self.fails = takes_s, fails
        self.begun, self.ended = Counter[str](), Counter[str]()

    async def charge(self, call: EffectCall, number: int) -> Receipt:
        self.begun[call.idempotency_key] += 1
        await asyncio.sleep(self.takes_s)
        self.ended[call.idempotency_key] += 1
        if self.fails:
            raise ValueError(self.fails)
        return Receipt(number, "x")


NEVER: dict[str, Any] = {"repeat": "never", "on_give_up": "failed", "on_unknown": "unclear"}


@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_call_that_is_never_repeated_is_made_and_its_result_told(concurrency: int) -> None:
    outside = Outside()
    driver, till = make(outside.charge, actor={"concurrency": concurrency}, **NEVER)
    with driver:
        for number in range(40):
            driver.tell(till, f"key-{number}", Order(number), settle=False)
        driver.settle()
        assert sum(len(texts) for texts in driver.items(till).values()) == 40
        assert driver.get(till, "key-7") == ["charged 7 x"]
    assert set(outside.begun.values()) == {1}


@pytest.mark.parametrize("keep_disk", [True, False])
def test_after_a_crash_in_the_middle_of_a_call_its_actor_is_told_that_its_outcome_is_unknown(keep_disk: bool) -> None:
    outside = Outside()
    driver, till = make(outside.charge, **NEVER)
    with driver:
        driver.tell(till, "a", Order(1), settle=False)
        driver.tell(till, "a", Order(2), settle=False)
        driver.advance(1, settle=False)
        driver.crash(keep_disk=keep_disk)
        unknown, charged = driver.get(till, "a")
    assert unknown == "unclear charge its worker ended before the outcome was committed"
    assert charged == "charged 2 x"
    assert set(outside.begun.values()) == {1}
    assert len(outside.begun) == 2


def test_a_crash_at_any_time_repeats_no_call_and_tells_each_order_once() -> None:
    for place in range(30):
        outside = Outside(takes_s=0.05)
        driver, till = make(outside.charge, partitions=1, **NEVER)
        with driver:
            for number in range(30):
                driver.tell(till, f"key-{number}", Order(number), settle=False)
            driver.advance(0.01 * place, settle=False)
            driver.crash(keep_disk=bool(place % 2))
            items = driver.items(till)
        assert {key: len(texts) for key, texts in items.items()} == {f"key-{number}": 1 for number in range(30)}
        assert max(outside.begun.values()) == 1
        unclear = sum(text.startswith("unclear") for (text,) in items.values())
        assert unclear <= 16, "more were unknown than may run at once"
        assert len(outside.begun) >= 30 - unclear


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_worker_that_leaves_takes_back_starts_without_a_call(keep_disk: bool) -> None:
    for place in range(10):
        outside = Outside(takes_s=0.05)
        driver, till = make(outside.charge, **NEVER)
        with driver:
            for number in range(60):
                driver.tell(till, f"key-{number}", Order(number), settle=False)
            driver.advance(0.03 * place, settle=False)
            leave(driver, keep_disk=keep_disk)
            items = driver.items(till)
        assert {key: len(texts) for key, texts in items.items()} == {f"key-{number}": 1 for number in range(60)}
        assert max(outside.begun.values()) == 1
        unclear = {key for key, (text,) in items.items() if text.startswith("unclear")}
        # Those alone that were under way.
        assert len(outside.begun) == 60
        assert len(unclear) == sum((outside.begun - outside.ended).values())


@pytest.mark.parametrize(
    "error", [OutcomeUnknownError("no answer"), BatchesRefusedError({0: CommitRefusedError("no")})]
)
def test_commits_that_fail_repeat_no_call(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    outside, write = Outside(takes_s=0.05), FakeWriter._write
    driver, till = make(outside.charge, **NEVER)
    errors: list[Exception] = []

    async def fail_or_write(writer: Any, producer: Any, identity: Any, batches: Any) -> Any:
        if errors and any(batch.offsets for batch in batches):
            raise errors.pop()
        return await write(writer, producer, identity, batches)

    monkeypatch.setattr(FakeWriter, "_write", fail_or_write)
    with driver:
        for number in range(60):
            driver.tell(till, f"key-{number}", Order(number), settle=False)
        for _ in range(4):
            driver.advance(0.06, settle=False)
            errors.append(error)
        driver.settle()
        items = driver.items(till)
    assert {key: len(texts) for key, texts in items.items()} == {f"key-{number}": 1 for number in range(60)}
    assert max(outside.begun.values()) == 1


def test_a_call_that_is_never_repeated_and_fails_is_given_up_at_once() -> None:
    outside = Outside(fails="card refused")
    driver, till = make(outside.charge, **NEVER)
    with driver:
        driver.tell(till, "a", Order(1))
        assert driver.get(till, "a") == ["failed charge 1 ValueError: card refused"]


def test_a_call_that_is_over_its_time_is_unknown_if_it_is_never_repeated() -> None:
    outside = Outside(takes_s=100)
    driver, till = make(outside.charge, timeout=timedelta(seconds=5), **NEVER)
    with driver:
        driver.tell(till, "a", Order(1))
        assert driver.get(till, "a") == ["unclear charge no end after 5 s"]


def test_without_a_method_an_unknown_outcome_waits_for_an_operator() -> None:
    outside = Outside()
    driver, till = make(outside.charge, repeat="never")
    with driver:
        driver.tell(till, "a", Order(1), settle=False)
        driver.advance(1, settle=False)
        driver.crash()
        (parked,) = driver.parked(till)
        assert parked.error == "its worker ended before the outcome was committed"
        driver.retry_parked(till, "a")
        assert driver.get(till, "a") == ["charged 1 x"]
    assert list(outside.begun.values()) == [2]


# --- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"repeat": "sometimes"}, r"repeat='sometimes': it is 'until_done' or 'never'"),
        ({"repeat": "never", "attempts": 3}, r'attempts=3: a call with repeat="never" has one'),
        ({"on_unknown": "unclear"}, r'on_unknown= is for repeat="never"'),
    ],
)
def test_options_that_can_not_be_meant_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make(charge, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"on_give_up": "missing"},
            r"actor Till: effect charge has on_give_up='missing': the actor has no such method",
        ),
        (
            {"on_give_up": "charged"},
            r"effect charge has on_give_up='charged'.*Write `async def charged\(self, outcome: G",
        ),
        ({"repeat": "never", "on_unknown": "failed"}, r"on_unknown='failed'"),
        ({"on_give_up": "order"}, r"on_give_up='order'"),
    ],
)
def test_a_start_refuses_outcomes_that_no_method_takes(options: dict[str, Any], reason: str) -> None:
    driver, _ = make(charge, **options)
    with pytest.raises(ConfigurationError, match=reason), driver:
        pass


def test_what_is_no_method_of_the_actor_is_refused() -> None:
    driver, till = make(charge, then="ctx")
    with driver, pytest.raises(HandlerFailedError, match="Context isn't called by actor Till itself: take a method of"):
        driver.tell(till, "a", Order(1))
