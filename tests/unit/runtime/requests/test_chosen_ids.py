"""Questions whose ids the asker chose, as an Idempotency-Key: the same id is for one content only."""

import pytest

from actors.runtime.requests.replies import answer_of
from actors.runtime.requests.requests import CONTENT_BYTES, NOBODY, OK, REUSED, Refusal
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES
from tests.unit.runtime.requests.test_answers_later import Open, doors, wait
from tests.unit.runtime.requests.test_asks import Count, asked, counters, driver_topic, replies

FIRST, SECOND = b"q;" + b"a" * CONTENT_BYTES, b"q;" + b"b" * CONTENT_BYTES


def add(amount: int) -> dict[str, object]:
    return {"type": "add", "amount": amount}


def entry(driver: ActorTestDriver, store: str, key: bytes) -> bytes | None:
    """What a store of answers has."""
    entries = (files.data.get(key) for files in driver._disk.files() if files.store == store)
    return next((raw[METADATA_BYTES:] for raw in entries if raw is not None), None)


@pytest.mark.parametrize("amount", [5, 13, 99])
def test_the_same_content_gets_the_first_answer_and_another_one_is_rejected(amount):
    app, counter, _, seen, _ = counters(on_error="skip")
    topic = driver_topic(app, counter)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value=add(amount), headers=asked(FIRST))
        driver.crash(keep_disk=False)
        driver.send(topic, key="a", value=add(6), headers=asked(SECOND))
        driver.send(topic, key="a", value=add(amount), headers=asked(FIRST))
        first, other, again = replies(driver)
        assert first == again
        assert (other[0], other[1], Refusal.read(other[2]).type) == (SECOND, b"rejected", REUSED)
        assert seen["handled"] == [("a", amount)]


def test_a_question_that_nobody_waits_for_is_answered_when_it_is_asked():
    app, counter, _, seen, _ = counters()
    topic = driver_topic(app, counter)
    with ActorTestDriver(app) as driver:
        for _ in range(2):
            driver.send(topic, key="a", value=add(5), headers=asked(FIRST, reply_to=NOBODY.encode()))
        assert replies(driver) == []
        driver.send(topic, key="a", value=add(5), headers=asked(FIRST))
        assert [(id_, status) for id_, status, _ in replies(driver)] == [(FIRST, b"ok")]
        assert seen["handled"] == [("a", 5)]
        assert driver.get(counter, "a") == Count(5)
        assert answer_of(entry(driver, "Counter-answers", b"q")).status == OK


def test_an_open_question_is_of_one_content_too():
    app, gate = doors()
    topic = driver_topic(app, gate)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="g", value=wait(), headers=asked(FIRST, reply_to=NOBODY.encode()))
        assert answer_of(entry(driver, "Gate-answers", b"q")) is None
        driver.send(topic, key="g", value=wait("b"), headers=asked(SECOND))
        driver.crash(keep_disk=False)
        # Who asks again is who waits now.
        driver.send(topic, key="g", value=wait(), headers=asked(FIRST))
        assert driver.ask(gate, "g", Open("hello")) == 1
        driver.send(topic, key="g", value=wait(), headers=asked(FIRST))
        sent = [(id_, status) for id_, status, _ in replies(driver) if id_ in (FIRST, SECOND)]
        assert sent == [(SECOND, b"rejected"), (FIRST, b"ok"), (FIRST, b"ok")]


def test_an_id_without_a_digest_is_what_it_was():
    app, counter, _, seen, _ = counters()
    topic = driver_topic(app, counter)
    with ActorTestDriver(app) as driver:
        for id_ in (b"q", b"q;short", b";", b"q;" + b"x" * (CONTENT_BYTES + 1)):
            driver.send(topic, key="a", value=add(1), headers=asked(id_))
        assert len(seen["handled"]) == 4
        assert driver.get(counter, "a") == Count(4)
