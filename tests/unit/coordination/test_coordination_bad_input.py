"""What can't be meant, or would cost too much: who asked gets a typed error, and the lock is as it was."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from actors import App
from actors._core.partitioner import partition_for
from actors.coordination import (
    BusyError,
    ConflictError,
    CoordinationError,
    LockMismatchError,
    NotHolderError,
    ProtocolError,
    Sharing,
    TtlError,
    UnknownLockError,
    coordination,
    registry,
)
from actors.coordination import messages as m
from actors.coordination.messages import ACTOR
from actors.coordination.service.resource import MAX_STATE_BYTES
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver
from tests.unit.coordination.test_coordination import APP, acquire, an_app, ask, letters, post, replies
from tests.unit.coordination.test_coordination_client import client, run
from tests.unit.coordination.test_coordination_faults import until
from tests.unit.runtime.requests.test_asks import asked


@pytest.fixture
def driver():
    with ActorTestDriver(an_app(), partitions=2) as made:
        yield made


def written(driver: ActorTestDriver, topic: str) -> int:
    """How many bytes a topic has got so far."""
    logs = driver._cluster.topic(topic).partitions
    return sum(len(record.value or b"") + len(record.key or b"") for log in logs for record in log.history)


def raw_send(driver: ActorTestDriver, key: Any, value: Any, question: bytes | None = None, partition: int = 0) -> None:
    """Send bytes to a partition of the service's input, whatever they are."""
    headers = [] if question is None else [*asked(question, reply_to=f"{APP}-replies/0/me".encode()).items()]

    async def produce() -> None:
        source = TopicPartition(f"{APP}-coordination", partition)
        driver._cluster.produce(source, [(key, value, headers)])

    driver._run(produce())
    driver.settle()


def statuses(driver: ActorTestDriver) -> list[bytes]:
    """How the questions were answered."""
    logs = driver._cluster.topic(f"{APP}-replies").partitions
    return [dict(r.headers)["fa-status"] for log in logs for r in log.history if r.is_committed and r.key == b"me"]


# --- over the client ------------------------------------------------------------------------------------------------

Call = Callable[[Sharing], Awaitable[Any]]


def raw(request: m.AnyRequest) -> Call:
    return lambda who: who._done("x", request)


BAD: dict[str, tuple[Call, type[CoordinationError], str]] = {
    "nothing to live": (lambda who: who.acquire("x", ttl=0), TtlError, "ttl"),
    "less than nothing": (lambda who: who.acquire("x", ttl=-1), TtlError, "ttl"),
    "too short": (lambda who: who.acquire("x", ttl=0.1), TtlError, "short-ttl"),
    "too long": (lambda who: who.acquire("x", ttl=1e9), TtlError, "ttl"),
    "not a ttl": (lambda who: who.acquire("x", ttl=float("nan")), TtlError, "ttl"),
    "a negative wait": (lambda who: who.acquire("x", timeout=-1), CoordinationError, "argument"),
    "no wait": (lambda who: who.acquire("x", timeout=float("nan")), CoordinationError, "argument"),
    "no owner": (lambda who: raw(acquire(""))(who), CoordinationError, "argument"),
    "a long owner": (lambda who: who.acquire("x", owner="o" * 201), CoordinationError, "argument"),
    "an owner that isn't Unicode": (lambda who: who.acquire("x", owner="\udc80"), CoordinationError, "argument"),
    "data that isn't Unicode": (lambda who: who.acquire("x", data="\udc80"), CoordinationError, "argument"),
    "much data": (lambda who: who.acquire("x", data="d" * 65_537), CoordinationError, "argument"),
    "much data in bytes": (lambda who: who.acquire("x", data="é" * 40_000), CoordinationError, "argument"),
    "very much data": (lambda who: who.put("x", "d" * 3_000_000), CoordinationError, "argument"),
    "no name": (lambda who: who.acquire(""), CoordinationError, "argument"),
    "a long name": (lambda who: who.acquire("n" * 201), CoordinationError, "argument"),
    "a very long name": (lambda who: who.look("n" * 2_000_000), CoordinationError, "argument"),
    "a name that isn't Unicode": (lambda who: who.look("\udc80"), CoordinationError, "argument"),
    "no permits": (lambda who: who.acquire("x", limit=1, permits=0), CoordinationError, "argument"),
    "another kind": (lambda who: who.acquire("x", limit=2), LockMismatchError, "mismatch"),
    "the holder, otherwise": (lambda who: who.acquire("x", owner="a", shared=True), LockMismatchError, "mismatch"),
    "a second try": (lambda who: who.acquire("x", timeout=0), BusyError, "busy"),
    "another's release": (raw(m.Release(owner="b", token=1)), NotHolderError, "not-holder"),
    "another's token": (raw(m.Release(owner="a", token=99)), NotHolderError, "not-holder"),
    "another's renewal": (raw(m.Renew(owner="b", token=1, ttl_ms=5_000)), NotHolderError, "not-holder"),
    "a lock that isn't": (lambda who: who.break_lock("nobody's"), UnknownLockError, "unknown"),
    "nobody's release": (
        lambda who: who._done("nobody's", m.Release(owner="a", token=1)),
        UnknownLockError,
        "unknown",
    ),
    "another version of the node": (lambda who: who.put("x", "data", version=7), ConflictError, "conflict"),
    "a withdrawal of nothing": (raw(m.Withdraw(claim="")), CoordinationError, "argument"),
    "an older client": (raw(m.Break(v=m.VERSION - 1)), ProtocolError, "protocol"),
    "a newer client": (raw(m.Break(v=m.VERSION + 1)), ProtocolError, "protocol"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_meant_is_a_typed_error_and_changes_nothing(driver, what):
    call, kind, reason = BAD[what]
    one = client(driver)

    async def work() -> None:
        lease = await one.acquire("x", ttl=60, owner="a", data="shown")
        before = await one.look("x")
        with pytest.raises(CoordinationError) as caught:
            await call(client(driver))
        assert (type(caught.value), caught.value.reason) == (kind, reason)
        assert str(caught.value)
        assert await one.look("x") == before
        lease.check()

    run(driver, work)
    assert set(driver.items(ACTOR)) == {"x"}
    assert letters(driver) == []


@pytest.mark.parametrize(
    ("interval_s", "ttl", "is_long_enough"), [(0.5, 2.4, False), (0.5, 2.5, True), (2.0, 9, False)]
)
def test_the_shortest_ttl_is_that_of_the_services_commits(interval_s, ttl, is_long_enough):
    app = App(APP, broker="kafka://127.0.0.1:1", broker_commit_interval=interval_s)
    coordination(app)
    with ActorTestDriver(app, partitions=2) as driver:
        if is_long_enough:
            assert run(driver, lambda: client(driver).acquire("x", ttl=ttl)).token
            return
        with pytest.raises(TtlError, match="shorter than") as caught:
            run(driver, lambda: client(driver).acquire("x", ttl=ttl))
        assert caught.value.reason == "short-ttl"
        assert driver.items(ACTOR) == {}


@pytest.mark.parametrize("answer", [b'{"type":"later","what":1}', b"\xff", b'{"type":"view","version":1}', b""])
def test_an_answer_of_another_version_is_a_protocol_error(driver, answer, monkeypatch):
    monkeypatch.setattr(m, "encode", lambda message, encode=m.encode: answer if is_reply(message) else encode(message))
    with pytest.raises(ProtocolError, match="use its version") as caught:
        run(driver, lambda: client(driver).try_lock("x"))
    assert caught.value.reason == "protocol"


def test_an_answer_to_another_request_is_a_protocol_error(driver, monkeypatch):
    monkeypatch.setattr(
        m, "encode", lambda message, encode=m.encode: encode(m.Done() if is_reply(message) else message)
    )
    with pytest.raises(ProtocolError, match="answered with Done"):
        run(driver, lambda: client(driver).try_lock("x"))


def is_reply(message: Any) -> bool:
    return isinstance(message, m.Grant | m.Refusal | m.View)


# --- as it comes over the wire --------------------------------------------------------------------------------------

DEEP = b'{"v":1,"type":"break","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"v":1,"type":"\xff"}',
        b'{"v":"1","type":"look"}',
        b'{"v":1e400,"type":"look"}',
        b'{"v":1,"type":"acquire","owner":"\xff","ttl_ms":5000}',
        b'{"v":1,"type":"acquire","owner":"\\ud800","ttl_ms":5000}',
        b'{"v":1,"type":"acquire","owner":"b","ttl_ms":99999999999999999999999999}',
        b'{"v":1,"type":"acquire","owner":"b","ttl_ms":5000,"limit":9223372036854775807}',
        b'{"v":1,"type":"acquire","owner":"b","ttl_ms":true}',
        DEEP,
    ],
    ids=lambda value: repr(value[:50]),
)
def test_bytes_that_are_no_request_are_refused_or_dead_letters(value):
    with ActorTestDriver(an_app()) as driver:
        ask(driver, "x", acquire("a"))
        before = driver.get(ACTOR, "x")
        raw_send(driver, b"x", value, b"q")
        assert isinstance(replies(driver)[b"q"], m.Refusal)
        raw_send(driver, b"x", value)
        assert [letter.value for letter in letters(driver)] == [value]
        assert driver.get(ACTOR, "x") == before


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b'{"v":1,"type":"look"}'), (b"\xff\xfe", b'{"v":1,"type":"look"}'), (b"x", None)],
)
def test_records_that_are_no_message_are_dead_letters_and_stop_nobody(key, value):
    with ActorTestDriver(an_app()) as driver:
        raw_send(driver, key, value)
        assert [(letter.key, letter.value) for letter in letters(driver)] == [(key, value)]
        raw_send(driver, key, value, b"q")
        assert statuses(driver) == [b"failed"]
        assert ask(driver, "x", acquire("a")).count == 1


@pytest.mark.parametrize("name", ["", "n" * 201])
def test_a_name_that_cannot_be_one_is_refused_over_the_wire_too(name):
    with ActorTestDriver(an_app()) as driver:
        assert ask(driver, name, acquire("a")).reason == "argument"
        assert driver.items(ACTOR) == {}


def test_a_request_in_another_partition_than_its_keys_is_no_second_lock(driver):
    for partition in range(2):
        raw_send(driver, b"x", m.encode(acquire(f"o{partition}", wait_ms=0)), b"%d" % partition, partition)
    assert sorted(type(reply).__name__ for reply in replies(driver).values()) == ["Grant", "Refusal"]
    (refusal,) = (reply for reply in replies(driver).values() if isinstance(reply, m.Refusal))
    assert refusal.reason == "misplaced"
    assert len(driver.items(ACTOR)) == 1


def test_a_client_that_counts_other_partitions_is_told(driver):
    who = client(driver)

    async def one_partition() -> int:
        return 1

    who._transport._partitions = one_partition

    name = next(name for name in "abcdef" if partition_for(name.encode(), 2) == 1)
    with pytest.raises(ProtocolError, match="create a new client") as caught:
        run(driver, lambda: who.try_lock(name))
    assert caught.value.reason == "misplaced"


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        m.Renew(owner="a", token=1, ttl_ms=1000),
        m.Release(owner="a", token=1),
        m.GiveUp(owner="a"),
        m.Break(),
        m.Look(),
        m.Watch(after=-1, wait_ms=0),
        m.Watch(after=0, wait_ms=1_000),
        m.Keep(session="s", ttl_ms=1000),
        m.Drop(session="s"),
        m.Beat(member="a", ttl_ms=1000),
        m.Leave(member="a"),
        m.Put(data="x", expected=5),
        m.Put(data=None, expected=5),
        m.Enter(party="a", parties=2, wait_ms=1_000),
        m.Withdraw(claim="c"),
        m.Tick(),
        m.Acquire(owner="a", ttl_ms=5_000, kind="semaphore", limit=2, permits=3),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_that_does_nothing_keeps_nothing(request_):
    with ActorTestDriver(an_app()) as driver:
        ask(driver, "never-used", request_)
        driver.advance(5)
        assert driver.get(ACTOR, "never-used") is None
        assert ask(driver, "never-used", m.Look()).version == 0


def test_to_look_or_watch_writes_no_data_anywhere():
    with ActorTestDriver(an_app()) as driver:
        ask(driver, "config", m.Put(data="d" * 64_000))
        seen = ask(driver, "config", m.Look())
        logs = [f"{APP}--coordination-answers-changelog", f"{APP}--coordination-changelog"]
        before = [written(driver, log) for log in logs]
        for _ in range(20):
            assert ask(driver, "config", m.Look()) == seen
            ask(driver, "config", m.Watch(after=0, wait_ms=0))
        assert [written(driver, log) for log in logs] == before


def test_many_watch_much_and_each_fetches_it_by_itself(driver):
    writer, watchers = client(driver), [client(driver) for _ in range(20)]
    seen: list[m.View] = []

    async def watch(who: Sharing, after: int) -> None:
        async for view in who.watch("n", after):
            seen.append(view)
            if view.data_version == 3:
                return

    async def work() -> None:
        await writer.put("n", "small")
        after = (await writer.look("n")).version
        tasks = [asyncio.create_task(watch(who, after)) for who in watchers]
        await asyncio.sleep(100)
        before = written(driver, f"{APP}--coordination-answers-changelog")
        await writer.put("n", "d" * 64_000)
        await until(lambda: len(seen) == len(watchers))
        assert written(driver, f"{APP}--coordination-answers-changelog") - before < 64_000
        await writer.put("n", "end")
        await asyncio.gather(*tasks)

    run(driver, work)
    assert {len(view.data) for view in seen} == {64_000, 3}


def test_who_watches_something_large_is_told_its_version_only():
    with ActorTestDriver(an_app()) as driver:
        ask(driver, "n", m.Put(data="small"))
        for data, is_large in (("small too", False), ("d" * 2_000, True)):
            seen = ask(driver, "n", m.Look()).version
            question = b"w%d" % seen
            post(driver, "n", m.Watch(after=seen, wait_ms=60_000), question)
            ask(driver, "n", m.Put(data=data))
            told = replies(driver)[question]
            assert told == (m.Changed(seen + 1) if is_large else ask(driver, "n", m.Look()))


def test_more_than_a_record_holds_is_refused_with_a_typed_error():
    with ActorTestDriver(an_app()) as driver:
        ask(driver, "x", acquire("a", ttl_ms=3_600_000))
        for number in range(30):
            post(driver, "x", acquire(f"o{number}", data="d" * 64_000, wait_ms=3_600_000), b"q%d" % number)
        refused = replies(driver)
        assert {reply.reason for reply in refused.values()} == {"crowded"}
        state = driver.get(ACTOR, "x")
        assert 10 < len(state.lock.waiters) == 30 - len(refused)
        assert len(msgspec.json.encode(state)) < MAX_STATE_BYTES
        # A node of the name can be written still, again and again, as long as it is small.
        for _ in range(3):
            assert isinstance(ask(driver, "x", m.Put(data="small")), m.Done)


def test_a_large_node_can_be_replaced():
    with ActorTestDriver(an_app()) as driver:
        for data in ("\x00" * m.MAX_DATA, "\x01" * m.MAX_DATA):
            assert isinstance(ask(driver, "x", m.Put(data=data)), m.Done)
        assert ask(driver, "x", m.Look()).data == data


def test_a_group_has_a_limit(monkeypatch):
    monkeypatch.setattr(registry, "MAX_MEMBERS", 2)
    with ActorTestDriver(an_app(), partitions=2) as driver:
        one = client(driver)

        async def work() -> None:
            async with one.join("g", "a"), one.join("g", "b"):
                with pytest.raises(BusyError, match="2 members already") as caught:
                    await one.join("g", "c").__aenter__()
                assert caught.value.reason == "crowded"
                async with one.join("g", "b", "again"):
                    assert [member.data for member in await one.members("g")] == ["", "again"]

        run(driver, work)


def test_a_node_that_is_deleted_in_a_session_changes_once():
    with ActorTestDriver(an_app()) as driver:
        ask(driver, "n", m.Put(data="x"))
        ask(driver, "n", m.Put(data=None, session="s", ttl_ms=5_000))
        seen = ask(driver, "n", m.Look())
        driver.advance(10)
        assert ask(driver, "n", m.Look()) == seen


def test_answers_go_to_who_asked_though_the_topic_was_made_anew():
    app = App(APP, broker="kafka://127.0.0.1:1", missing_offset="earliest")
    coordination(app)
    with ActorTestDriver(app, partitions=1) as driver:
        token = ask(driver, "x", acquire("a", ttl_ms=3_600_000)).token
        post(driver, "x", acquire("b", wait_ms=3_600_000), b"b")
        driver._kill()
        driver._cluster.delete_topic(f"{APP}-coordination")
        driver._cluster.make_topic(f"{APP}-coordination", 1)
        driver.advance(60, settle=False)
        driver._run(driver._restart())
        ask(driver, "y", m.Look())
        # At the offset that b's request had.
        post(driver, "x", acquire("c", wait_ms=3_600_000), b"c")
        ask(driver, "x", m.Release(owner="a", token=token))
        assert set(replies(driver)) == {b"b"}
        assert ask(driver, "x", m.Look()).holders[0].owner == "b"


@pytest.mark.parametrize("question", [b"\xff" * 20, b"q" * 1_000])
def test_odd_question_ids_are_answered(question):
    with ActorTestDriver(an_app()) as driver:
        token = ask(driver, "x", acquire("a")).token
        post(driver, "x", acquire("b"), question)
        ask(driver, "x", m.Release(owner="a", token=token))
        assert replies(driver)[question].token > token
        assert json.loads(msgspec.json.encode(driver.get(ACTOR, "x")))["later"] == {}


def test_a_question_whose_id_is_too_long_for_any_answer_stops_nobody(driver, caplog):
    """It takes few bytes on its way, compressed, and would come back in the answer."""
    raw_send(driver, b"x", m.encode(acquire("a")), b"q" * 2_000_000)
    raw_send(driver, b"x", b"{}", b"q" * 1_001)
    assert statuses(driver) == []
    assert "has 2000000 bytes, more than 1000" in caplog.text
    raw_send(driver, b"x", m.encode(acquire("a")), b"q" * 1_000)
    assert statuses(driver) == [b"ok"]
