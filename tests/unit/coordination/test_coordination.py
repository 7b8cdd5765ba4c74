"""The lock service on the test driver: requests as they come over the wire, and what becomes of them."""

import importlib
import json
import sys
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import App
from actors.coordination import messages as m
from actors.coordination.messages import ACTOR
from actors.coordination.service.coordinator import PARTITIONS, coordination
from actors.errors import ConfigurationError
from actors.testing import ActorTestDriver
from tests.unit.runtime.requests.test_asks import asked

APP = "locks"


def an_app() -> App:
    app = App(APP, broker="kafka://127.0.0.1:1")
    coordination(app)
    return app


@pytest.fixture
def driver():
    with ActorTestDriver(an_app(), partitions=1) as made:
        yield made


def ask(driver: ActorTestDriver, key: str, request: Any, *, timeout_s: float = 100.0) -> Any:
    return m.decode_reply(driver.ask(ACTOR, key, m.encode(request), timeout=timedelta(seconds=timeout_s)))


def post(driver: ActorTestDriver, key: str, request: Any, question: bytes, partition: int = 0) -> None:
    """Ask without waiting."""
    topic = driver._app.definition_of(ACTOR).topic
    raw = request if isinstance(request, bytes) else m.encode(request)
    reply_to = f"{APP}-replies/{partition}/me".encode()
    driver.send(topic, key=key, value=raw, headers=asked(question, reply_to=reply_to))


def replies(driver: ActorTestDriver) -> dict[bytes, Any]:
    """The last answer to each question that was posted."""
    found = {}
    for log in driver._cluster.topic(f"{APP}-replies").partitions:
        for record in log.history:
            headers = dict(record.headers)
            if record.is_committed and record.key == b"me":
                assert headers["fa-status"] == b"ok", record.value
                found[headers["fa-ask"]] = m.decode_reply(record.value)
    return found


def acquire(owner: str, **options: Any) -> m.Acquire:
    return m.Acquire(**{"owner": owner, "ttl_ms": 10_000, "wait_ms": 60_000, **options})


def test_waiters_are_answered_at_their_turn_also_after_a_crash(driver):
    first = ask(driver, "printer", acquire("a", ttl_ms=3_600_000))
    assert first.count == 1
    post(driver, "printer", acquire("b", wait_ms=3_600_000), b"b")
    post(driver, "printer", acquire("c", wait_ms=3_600_000), b"c")
    assert replies(driver) == {}
    driver.crash(keep_disk=False)
    assert ask(driver, "printer", m.Release(owner="a", token=first.token)) == m.Done(0)
    granted = replies(driver)[b"b"]
    assert granted.token > first.token
    assert b"c" not in replies(driver)
    # b says nothing any more: its lease ends, and the timer tells c.
    driver.advance(9.9)
    assert b"c" not in replies(driver)
    driver.advance(0.3)
    assert replies(driver)[b"c"].token > granted.token
    assert ask(driver, "printer", m.Renew(owner="b", token=granted.token, ttl_ms=1000)).reason == "expired"


def test_leases_that_ended_while_no_worker_ran_are_over(driver):
    token = ask(driver, "x", acquire("a")).token
    post(driver, "x", acquire("b", wait_ms=5_000), b"b")
    driver._kill()
    driver.advance(30, settle=False)
    driver._run(driver._restart())
    assert replies(driver)[b"b"].reason == "timeout"
    assert ask(driver, "x", m.Renew(owner="a", token=token, ttl_ms=1000)).reason == "expired"


def test_a_lease_lives_as_long_as_it_is_renewed(driver):
    token = ask(driver, "x", acquire("a")).token
    for _ in range(5):
        driver.advance(8)
        assert ask(driver, "x", m.Renew(owner="a", token=token, ttl_ms=10_000)) == m.Done(token)
    assert ask(driver, "x", acquire("b", wait_ms=0)).reason == "busy"
    driver.advance(10.5)
    assert ask(driver, "x", acquire("b", wait_ms=0)).count == 1


def test_a_request_that_comes_again_takes_no_second_place_and_is_answered_at_its_new_address(driver):
    token = ask(driver, "x", acquire("a")).token
    for partition in (1, 2):
        post(driver, "x", acquire("b"), b"b", partition)
    post(driver, "x", acquire("c"), b"c")
    assert ask(driver, "x", m.Look()).waiting == 2
    ask(driver, "x", m.Release(owner="a", token=token))
    logs = driver._cluster.topic(f"{APP}-replies").partitions
    assert [sum(record.key == b"me" for record in logs[number].history) for number in (1, 2)] == [0, 1]
    granted = replies(driver)[b"b"]
    post(driver, "x", acquire("b"), b"b", 3)
    assert ask(driver, "x", m.Look()).holders[0].count == 1
    assert replies(driver)[b"b"] == granted


def test_tokens_grow_though_the_topic_is_made_anew(driver):
    token = ask(driver, "x", acquire("a")).token
    ask(driver, "x", m.Release(owner="a", token=token))
    again = ask(driver, "x", acquire("a")).token
    assert again > token


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "malformed"),
        (b'{"v":1}', "malformed"),
        (b'{"v":1,"type":"steal"}', "malformed"),
        (b'{"v":1,"type":"renew","owner":"a"}', "malformed"),
        (b'{"v":0,"type":"break"}', "protocol"),
        (b'{"v":2,"type":"something new"}', "protocol"),
        (b'{"type":"break"}', "protocol"),
        (m.encode(acquire("b", ttl_ms=-1)), "ttl"),
        (m.encode(acquire("b", ttl_ms=0)), "ttl"),
        (m.encode(acquire("b", ttl_ms=499)), "short-ttl"),
        (m.encode(acquire("")), "argument"),
        (m.encode(acquire("b", wait_ms=-1)), "argument"),
        (m.encode(acquire("b", permits=0)), "argument"),
        (m.encode(acquire("b", kind="semaphore", limit=2)), "mismatch"),
        (m.encode(m.Release(owner="b", token=1)), "not-holder"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_lock_is_untouched(driver, raw, reason):
    ask(driver, "x", acquire("a"))
    before = driver.get(ACTOR, "x").lock
    post(driver, "x", raw, b"q")
    assert replies(driver)[b"q"].reason == reason
    assert replies(driver)[b"q"].text
    assert driver.get(ACTOR, "x").lock == before
    assert [sent.value for sent in letters(driver)] == []


def letters(driver: ActorTestDriver) -> list[Any]:
    topic = next(t for t in driver._app.declared_topics if t.get_topic_name() == f"{APP}-dead-letters")
    return driver.outputs(topic)


def test_what_nobody_asked_goes_to_the_dead_letters(driver):
    topic = driver._app.definition_of(ACTOR).topic
    driver.send(topic, key="x", value=b"rubbish")
    assert ask(driver, "x", acquire("a")).count == 1
    (letter,) = letters(driver)
    assert (letter.key, letter.value) == (b"x", b"rubbish")
    assert dict(letter.headers)["fa-origin"] == f"{APP}-coordination/0/0".encode()


def test_unknown_locks(driver):
    assert ask(driver, "nobody", m.Renew(owner="a", token=1, ttl_ms=1000)).reason == "unknown"
    assert ask(driver, "nobody", m.Look()).last_token == 0


def test_who_gives_up_is_passed_over(driver):
    token = ask(driver, "x", acquire("a")).token
    post(driver, "x", acquire("b"), b"b")
    post(driver, "x", acquire("c"), b"c")
    ask(driver, "x", m.GiveUp(owner="b"))
    ask(driver, "x", m.Release(owner="a", token=token))
    assert replies(driver)[b"b"].reason == "broken"
    assert replies(driver)[b"c"].count == 1


def test_nodes_have_versions_and_compare_and_set(driver):
    put = m.Put
    assert ask(driver, "n", put(data="one", expected=0)) == m.Done(1)
    assert ask(driver, "n", put(data="two", expected=0)).reason == "conflict"
    assert ask(driver, "n", put(data="two", expected=1)) == m.Done(2)
    assert ask(driver, "n", put(data=None)) == m.Done(3)
    assert ask(driver, "n", put(data="three", expected=2)).reason == "conflict"
    assert ask(driver, "n", put(data="three", expected=0)) == m.Done(4)
    assert ask(driver, "n", m.Look()).data == "three"


def test_an_ephemeral_node_ends_with_its_session_and_watchers_are_told(driver):
    ask(driver, "n", m.Put(data="here", session="s", ttl_ms=5_000))
    seen = ask(driver, "n", m.Look())
    post(driver, "n", m.Watch(after=seen.version, wait_ms=60_000), b"w")
    driver.advance(4)
    assert ask(driver, "n", m.Keep(session="s", ttl_ms=5_000)) == m.Done(1)
    assert ask(driver, "n", m.Keep(session="other", ttl_ms=5_000)).reason == "absent"
    driver.advance(4)
    assert b"w" not in replies(driver)
    driver.advance(2)
    assert replies(driver)[b"w"].data is None
    assert ask(driver, "n", m.Keep(session="s", ttl_ms=5_000)).reason == "absent"


def test_a_watch_ends_without_a_change_too_and_sees_leaders(driver):
    post(driver, "e", m.Watch(after=0, wait_ms=3_000), b"w1")
    driver.advance(3.2)
    assert replies(driver)[b"w1"].version == 0
    post(driver, "e", m.Watch(after=0, wait_ms=3_000), b"w2")
    ask(driver, "e", acquire("a", data="10.0.0.1"))
    assert [holder.data for holder in replies(driver)[b"w2"].holders] == ["10.0.0.1"]


def test_members_join_beat_and_fall_out(driver):
    for name in ("one", "two"):
        ask(driver, "g", m.Join(member=name, ttl_ms=5_000, data=name.upper()))
    driver.advance(3)
    ask(driver, "g", m.Beat(member="two", ttl_ms=5_000))
    driver.advance(3)
    assert [(member.name, member.data) for member in ask(driver, "g", m.Look()).members] == [("two", "TWO")]
    assert ask(driver, "g", m.Beat(member="one", ttl_ms=5_000)).reason == "absent"
    ask(driver, "g", m.Leave(member="two"))
    assert ask(driver, "g", m.Look()).members == ()


def test_a_barrier_opens_when_all_are_there_and_again(driver):
    for round in (1, 2):
        post(driver, "b", m.Enter(party="one", parties=3, wait_ms=60_000), b"1%d" % round)
        post(driver, "b", m.Enter(party="two", parties=3, wait_ms=60_000), b"2%d" % round)
        assert b"1%d" % round not in replies(driver)
        assert ask(driver, "b", m.Enter(party="three", parties=3, wait_ms=60_000)) == m.Done(round)
        assert replies(driver)[b"1%d" % round] == replies(driver)[b"2%d" % round] == m.Done(round)
    post(driver, "b", m.Enter(party="one", parties=2, wait_ms=1_000), b"late")
    assert ask(driver, "b", m.Enter(party="two", parties=3, wait_ms=1_000)).reason == "parties"
    driver.advance(1.2)
    assert replies(driver)[b"late"].reason == "timeout"


def test_holders_keep_their_order_and_renewals_tell_watchers_nothing(driver):
    tokens = {name: ask(driver, "g", acquire(name, shared=True, data=name.upper())).token for name in "abc"}
    view = ask(driver, "g", m.Look())
    post(driver, "g", m.Watch(after=view.version, wait_ms=60_000), b"w")
    assert ask(driver, "g", m.Renew(owner="a", token=tokens["a"], ttl_ms=30_000)) == m.Done(tokens["a"])
    assert b"w" not in replies(driver)
    assert [holder.owner for holder in ask(driver, "g", m.Look()).holders] == ["a", "b", "c"]
    ask(driver, "g", m.Release(owner="b", token=tokens["b"]))
    assert [holder.data for holder in replies(driver)[b"w"].holders] == ["A", "C"]


def test_nothing_is_left_behind_for_those_who_wait(driver):
    token = ask(driver, "x", acquire("a")).token
    for number in range(5):
        post(driver, "x", acquire(f"w{number}", wait_ms=1_000), b"%d" % number)
    post(driver, "x", m.Watch(after=1_000, wait_ms=1_000), b"w")
    assert len(driver.get(ACTOR, "x").later) == 6
    driver.advance(1.5)
    ask(driver, "x", m.Release(owner="a", token=token))
    kept = driver.get(ACTOR, "x")
    assert (kept.later, kept.watchers, kept.lock.holders, kept.lock.waiters) == ({}, [], (), ())


def test_the_wire_is_plain_json_with_a_version():
    assert json.loads(m.encode(m.Look())) == {"type": "look", "v": m.VERSION}
    assert an_app().made_topics == {f"{APP}-coordination": PARTITIONS, f"{APP}-dead-letters": 1}
    with pytest.raises(msgspec.MsgspecError):
        m.decode_request(b"[]")


@pytest.mark.parametrize(("given", "made"), [(None, PARTITIONS), ("3", 3), ("0", None), ("many", None)])
def test_the_ready_made_app_takes_its_partitions_from_the_environment(monkeypatch, given, made):
    monkeypatch.delitem(sys.modules, "actors.coordination.app", raising=False)
    monkeypatch.delenv("COORDINATION_PARTITIONS", raising=False)
    if given is not None:
        monkeypatch.setenv("COORDINATION_PARTITIONS", given)
    if made is None:
        with pytest.raises(ConfigurationError, match="COORDINATION_PARTITIONS"):
            importlib.import_module("actors.coordination.app")
    else:
        app = importlib.import_module("actors.coordination.app").app
        assert app.made_topics["coordination-coordination"] == made
