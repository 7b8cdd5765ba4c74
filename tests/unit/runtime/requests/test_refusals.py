"""Errors go to who asked: what an asker gets, what becomes of the message, and that both are committed once."""

from typing import Any

import msgspec
import pytest

from actors import App, AskFailedError, AskRejectedError, Context, HandlerFailedError, OnError, Rejected
from actors.testing import ActorTestDriver

Strange = type("Strange", (LookupError,), {"__str__": lambda _: 1 / 0})


class Missing(msgspec.Struct):
    cents: int


class NotEnough(Rejected):
    """A refusal of the user's own, which keeps its constructor to itself."""

    def __init__(self, cents: int) -> None:
        self.data = Missing(cents)


ERRORS: dict[str, Any] = {
    "value": lambda: ValueError("no hats"),
    "lookup": lambda: KeyError("hat"),
    "os": lambda: ConnectionError("away"),
    "data": lambda: Rejected("too little", data=Missing(5)),
    "own": lambda: NotEnough(7),
    "object": lambda: Rejected("odd", data=object()),
    "large": lambda: Rejected("large", data="x" * 2_000_000),
    "strange": lambda: Strange(),
}


def a_shop(on_error: Any = "stop", **options: Any):
    app, calls = App("shop", broker="kafka://127.0.0.1:9092"), []
    sold = app.topic("sold", key_type=str, value_type=str)
    kept = app.store("kept", value_type=str)

    @app.actor(app.topic("orders", key_type=str, value_type=str), stores=[kept], on_error=on_error, **options)
    async def sell(ctx: Context, what: str) -> str:
        calls.append(what)
        kept[ctx.key] = what
        ctx.send(sold, key=ctx.key, value=what)
        if what in ERRORS:
            raise ERRORS[what]()
        return f"sold {what}"

    return app, sell, sold, kept, calls


def refusal(driver: ActorTestDriver, sell: Any, what: str, kind: Any = AskRejectedError) -> tuple[str, str, Any]:
    with pytest.raises(kind) as caught:
        driver.run(sell.at("ada")(what))
    assert type(caught.value) is kind
    return caught.value.reason, caught.value.type, caught.value.data


def test_an_asker_gets_reason_type_and_data():
    app, sell, sold, kept, _ = a_shop(OnError(reject=(ValueError,)))
    with ActorTestDriver(app) as driver:
        assert refusal(driver, sell, "value") == ("no hats", "ValueError", None)
        assert refusal(driver, sell, "data") == ("too little", "Rejected", {"cents": 5})
        assert refusal(driver, sell, "own")[1:] == ("NotEnough", {"cents": 7})
        assert driver.outputs(sold) == []
        assert driver.get(kept, "ada") is None
        assert driver.run(sell.at("ada")("hat")) == "sold hat"


def test_what_cannot_be_encoded_still_refuses():
    app, sell, _, _, _ = a_shop(OnError(reject=(LookupError,)))
    with ActorTestDriver(app) as driver:
        reason, kind, data = refusal(driver, sell, "object")
        assert reason.startswith("odd (its data isn't JSON: ")
        assert (kind, data) == ("Rejected", None)
        assert refusal(driver, sell, "large") == ("large (its data is too large for an answer)", "Rejected", None)
        assert refusal(driver, sell, "strange")[1] == "Strange"


@pytest.mark.parametrize(("on_error", "is_parked"), [("stop", False), ("skip", False), ("park", True)])
def test_an_error_that_nobody_named_fails_the_question_and_stops_nothing(on_error: Any, is_parked: bool):
    app, sell, _, _, calls = a_shop(on_error)
    with ActorTestDriver(app) as driver:
        reason, kind, _ = refusal(driver, sell, "lookup", AskFailedError)
        assert "the handler of actor sell raised KeyError" in reason
        assert kind == "KeyError"
        if is_parked:
            assert [entry.value for entry in driver.parked(sell)] == ["lookup"]
        assert calls == ["lookup"]


def test_errors_are_told_apart_by_their_classes():
    policy = OnError(reject=(ValueError,), retries=2, retry=(ConnectionError,), skip=(OSError,), park=(LookupError,))
    app, sell, _, _, calls = a_shop(policy)
    with ActorTestDriver(app) as driver:
        for what in ("value", "lookup", "os"):
            driver.tell(sell, f"key of {what}", what)
        assert calls == ["value", "lookup", "os", "os", "os"]
        assert [entry.key for entry in driver.parked(sell)] == ["key of lookup"]


def test_a_told_message_that_nobody_named_stops():
    app, sell, _, _, _ = a_shop(OnError(reject=(ValueError,)))
    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match="KeyError"):
        driver.tell(sell, "ada", "lookup")


def test_a_question_stops_the_partition_where_the_actor_wants_that():
    app, sell, _, _, _ = a_shop(OnError(asked="stop"))
    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match="KeyError"):
        driver.run(sell.at("ada")("lookup"))


@pytest.mark.parametrize("what", ["value", "lookup", "data"])
@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_refusal_is_committed_once_and_given_again(what: str, concurrency: int):
    app, sell, _, _, calls = a_shop(OnError(reject=(ValueError,)), concurrency=concurrency)
    headers = {"fa-ask": b"q1", "fa-reply-to": b"shop-replies/3/me"}
    topic = app.definition_of(sell).topic
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="ada", value=what, headers=headers)
        driver.crash(keep_disk=False)
        driver.send(topic, key="ada", value=what, headers=headers)
        driver.crash()
        driver.send(topic, key="ada", value="hat", headers=headers)
        assert calls == [what]
        assert len({sent.value for sent in driver.changelog(app.definition_of(sell).answers)}) == 1


def test_a_question_that_does_not_decode_is_answered():
    app, sell, _, _, _ = a_shop()
    number = app.topic("numbers", key_type=str, value_type=int)

    @app.actor(number)
    async def double(ctx: Context, count: int) -> int:
        return 2 * count

    with ActorTestDriver(app) as driver:
        headers = {"fa-ask": b"q1", "fa-reply-to": b"shop-replies/3/me"}
        driver.send(number, key=b"ada", value=b"{", headers=headers, raw=True)
        assert driver.run(double.at("ada")(4)) == 8
        assert driver.run(sell.at("ada")("hat")) == "sold hat"


def test_a_parked_question_that_is_rejected_at_last_is_done_with():
    app, sell, _, _, _ = a_shop(OnError(then="park"))
    with ActorTestDriver(app) as driver:
        refusal(driver, sell, "lookup", AskFailedError)
        ERRORS["lookup"], before = lambda: ValueError("gone"), ERRORS["lookup"]
        try:
            driver.restart(a_shop(OnError(then="park", reject=(ValueError,)))[0])
            driver.retry_parked("sell", "ada")
        finally:
            ERRORS["lookup"] = before
        assert driver.parked("sell") == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reject": ValueError}, "write reject=.ValueError,."),
        ({"skip": (KeyboardInterrupt,)}, "KeyboardInterrupt.* is no subclass of Exception"),
        ({"park": ("ValueError",)}, "'ValueError' is no subclass"),
        ({"retry": (ValueError,)}, "retry=.ValueError,..: say how often"),
        ({"asked": "retry"}, "asked='retry'.: it is one of stop, skip, park"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(options: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=text):
        OnError(**options)
