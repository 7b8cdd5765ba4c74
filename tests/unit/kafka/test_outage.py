"""What is known about a broker that is away is shared by all clients, and said seldom."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError

from actors import App
from actors._core.logs import Reminders
from actors._faust.setup import connection
from actors._kafka import client as client_module
from actors._kafka import outage
from actors._kafka.admin.broker_time import broker_time_ms
from actors._kafka.admin.control import ControlPlane
from actors._kafka.client import Client, own
from actors._kafka.connection import Connection, words_of
from actors._kafka.outage import REMIND_S, RETRY, Outages
from actors.errors import BrokerUnavailableError

HOST = "127.0.0.1"
DEADLINE_S = 10.0


class FakeBrokers(AIOKafkaClient):
    """As much of aiokafka's client as an owned one uses."""

    def __init__(self) -> None:
        self.tries = 0
        self.answers = False
        self.hangs = False
        self.refreshes = 0
        self.cluster = SimpleNamespace(
            broker_metadata=lambda node: SimpleNamespace(host="127.0.0.1", port=9000 + node), brokers=lambda: [1, 2, 3]
        )
        self._bootstrap_servers = ["127.0.0.1:9001", "127.0.0.1:9002"]
        self._request_timeout_ms = 20_000
        self._sasl_mechanism = "OAUTHBEARER"
        self._conns: dict[Any, Any] = {}
        self.hanging: set[int] = set()
        self.unanswered: set[str] = set()
        self.asked: list[tuple[str, int]] = []

    @property
    def hosts(self) -> list[str]:
        return self._bootstrap_servers

    async def send(self, node_id: int, request: Any, **options: Any) -> Any:
        return request

    async def bootstrap(self) -> None:
        """Ask one after the other, in any order."""
        for address in random.sample(self._bootstrap_servers, len(self._bootstrap_servers)):
            self.asked.append((address, self._request_timeout_ms))
            if address not in self.unanswered:
                return
        raise KafkaConnectionError("none answers")

    async def _get_conn(self, node_id: int, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        self.tries += 1
        async with self._get_conn_lock:
            if self.hangs or node_id in self.hanging:
                await asyncio.get_running_loop().create_future()
        return object() if self.answers else None

    async def _metadata_update(self, cluster: Any, topics: Any) -> bool:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return True

    def force_metadata_update(self) -> None:
        self.refreshes += 1


class FakeClient(Client, FakeBrokers):
    """An owned client of fake brokers."""


class Setting:
    """Two clients of one worker, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.outages = Outages(lambda: self.now_s)
        self.one, self.two = FakeClient(), FakeClient()
        for client in (self.one, self.two):
            own(client, self.outages)


async def test_a_broker_that_refused_isnt_tried_before_the_back_off_is_over() -> None:
    world = Setting()
    for _ in range(10):
        assert await world.one._get_conn(1) is None
        assert await world.two._get_conn(1) is None
    assert (world.one.tries, world.two.tries) == (1, 0)
    assert world.two.refreshes == 10, "the leader may have moved to a broker that answers"
    world.now_s += 2 * RETRY.longest_s
    await world.two._get_conn(1)
    assert world.two.tries == 1


async def test_a_broker_that_nobody_needs_is_not_called_unreachable() -> None:
    world = Setting()
    await world.one._get_conn(1)
    await world.two._get_conn(2)
    assert world.outages.unreachable == 2
    world.now_s += outage.NEEDED_S
    await world.two._get_conn(2)
    world.now_s += RETRY.longest_s
    assert world.outages.unreachable == 1
    world.two.answers = True
    world.now_s += RETRY.longest_s
    await world.two._get_conn(2)
    assert world.outages.unreachable == 0


async def test_the_time_for_which_quotas_hold_clients_up_is_counted() -> None:
    world = Setting()
    for client, answer in ((world.one, 250), (world.two, 500), (world.one, 0)):
        response = SimpleNamespace(throttle_time_ms=answer)
        assert await client.send(1, response) is response
    assert await world.one.send(1, None) is None, "a request without an answer"
    assert world.outages.throttled_s == 0.75


async def test_tries_grow_rare() -> None:
    world = Setting()
    for _ in range(6_000):
        await world.one._get_conn(1)
        world.now_s += 0.01
    assert 45 <= world.one.tries <= 85


async def test_a_broker_that_hangs_is_not_waited_for_and_rarely_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.01)
    world = Setting()
    world.one.hangs = True

    async def fails_after(seconds: float) -> None:
        trying = asyncio.create_task(world.one._get_conn(1))
        await asyncio.sleep(0)
        world.now_s += seconds
        assert await trying is None

    await fails_after(5.0)
    assert world.outages.away == ["127.0.0.1:9001"]
    world.now_s += 3.9
    assert await world.two._get_conn(1) is None
    assert world.two.tries == 0, "it isn't tried for as long as the last try took"
    world.now_s += 2.2
    world.two.answers = True
    assert await world.two._get_conn(1) is not None
    assert world.outages.away == []


async def test_a_broker_that_hangs_holds_up_no_connection_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.05)
    world = Setting()
    world.one.hanging, world.one.answers = {1}, True
    first, second = await asyncio.gather(world.one._get_conn(1), world.one._get_conn(2))
    assert (first is None, second is None) == (True, False)
    assert world.outages.away == ["127.0.0.1:9001"]


async def test_who_waits_for_a_try_that_fails_does_not_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.05)
    world = Setting()
    world.one.hangs = True
    assert await asyncio.gather(*(world.one._get_conn(1) for _ in range(5))) == [None] * 5
    assert world.one.tries == 1


async def test_a_broker_of_the_list_that_hangs_is_not_waited_for_where_there_are_others() -> None:
    world = Setting()
    await world.one.bootstrap()
    assert [asked_ms for _, asked_ms in world.one.asked] == [client_module.CONNECT_S * 1000]
    assert world.one._request_timeout_ms == 20_000
    world.two._bootstrap_servers = ["127.0.0.1:9001"]
    await world.two.bootstrap()
    assert world.two.asked == [("127.0.0.1:9001", 20_000)]


async def test_a_look_at_the_leaders_ends_though_a_broker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "METADATA_S", 0.01)
    world = Setting()
    assert await world.one._metadata_update(None, None)
    world.one.hangs = True
    assert not await world.one._metadata_update(None, None)


async def test_a_broker_of_the_list_that_did_not_answer_one_client_is_asked_last_by_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Setting()
    world.one.unanswered = {"127.0.0.1:9001"}
    while len(world.one.asked) < 2 or world.one.asked[-2][0] != "127.0.0.1:9001":
        await world.one.bootstrap()
    for _ in range(20):
        await world.two.bootstrap()
    assert {address for address, _ in world.two.asked} == {"127.0.0.1:9002"}
    assert [record.getMessage() for record in caplog.records] == [
        "broker 127.0.0.1:9001 can't be reached; the other brokers of the list are asked"
    ]
    world.two.unanswered = {"127.0.0.1:9002"}
    await world.two.bootstrap()
    assert [address for address, _ in world.two.asked[-2:]] == ["127.0.0.1:9002", "127.0.0.1:9001"]
    world.two.unanswered = {"127.0.0.1:9001", "127.0.0.1:9002"}
    with pytest.raises(KafkaConnectionError, match=r"127.0.0.1:9001.*127.0.0.1:9002"):
        await world.two.bootstrap()
    assert world.two._bootstrap_servers == ["127.0.0.1:9001", "127.0.0.1:9002"]


@pytest.mark.parametrize("servers", [["127.0.0.1:9001"], ["127.0.0.1:9001", "127.0.0.1:9002"]])
async def test_a_broker_that_names_no_brokers_counts_as_one_that_is_away(servers: list[str]) -> None:
    world, closed = Setting(), list[bool]()
    client = world.one
    client._bootstrap_servers = servers
    client.cluster.brokers = list

    async def close() -> None:
        closed.append(True)

    client.close = close  # type: ignore[attr-defined]
    with pytest.raises(KafkaConnectionError, match=r"no broker that is up|Unable to bootstrap"):
        await client.bootstrap()
    assert len(closed) == len(servers)
    client.cluster.brokers = lambda: [1]
    await client.bootstrap()


async def test_a_broker_that_is_away_is_the_last_of_the_list() -> None:
    world = Setting()
    assert await world.one._get_conn(1) is None
    for _ in range(20):
        await world.two.bootstrap()
    assert {address for address, _ in world.two.asked} == {"127.0.0.1:9002"}


async def test_other_brokers_and_standing_connections_arent_held_back() -> None:
    world = Setting()
    await world.one._get_conn(1)
    world.one.answers = True
    assert await world.one._get_conn(2) is not None
    standing = SimpleNamespace(connected=lambda: True)
    world.two._conns[1, ConnectionGroup.COORDINATION] = standing
    assert await world.two._get_conn(1, group=ConnectionGroup.COORDINATION) is standing
    assert await world.two._get_conn(1) is None
    assert world.outages.ongoing


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's loggers as they are at first: another test of this process may have set up logging."""
    for name in ("aiokafka", "aiokafka.client", "aiokafka.consumer.fetcher"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "disabled", False)
        monkeypatch.setattr(logger, "propagate", True)
        monkeypatch.setattr(logger, "level", logging.NOTSET)
        monkeypatch.setattr(logger, "_cache", {})


@pytest.mark.usefixtures("heard")
async def test_it_is_said_once_per_interval_and_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other tests of this process met and said doesn't count: their brokers may be away until now.
    monkeypatch.setattr(outage._quiet, "_known", weakref.WeakSet())
    monkeypatch.setattr(outage._quiet, "_reminders", Reminders(REMIND_S))
    world = Setting()
    client_log = logging.getLogger("aiokafka.client")
    Outages()  # the loggers that exist by now are looked after
    with caplog.at_level(logging.WARNING):
        for _ in range(int(3 * REMIND_S / 0.1) + 1):
            await world.one._get_conn(1)
            client_log.error("Unable connect to node with id %s: %s", 1, "refused")
            world.now_s += 0.1
        world.one.answers = True
        world.now_s += RETRY.longest_s * 2
        await world.one._get_conn(1)
        client_log.error("Unable connect to node with id %s: %s", 1, "seen again")
    said = [record.getMessage() for record in caplog.records if record.name == "actors._kafka.outage"]
    assert said[0].startswith("broker 127.0.0.1:9001 can't be reached")
    assert "is reached again after 32." in said[-1]
    assert 2 <= len(said[1:-1]) <= 3
    theirs = [record.getMessage() for record in caplog.records if record.name == "aiokafka.client"]
    # at most one of a real second, of 300
    assert 2 <= len(theirs) < 30
    assert theirs[-1].endswith("seen again")


async def test_a_broker_that_came_back_elsewhere_is_named_with_both_addresses(caplog: pytest.LogCaptureFixture) -> None:
    world = Setting()
    await world.one._get_conn(1)
    moved = SimpleNamespace(host="10.0.0.7", port=9092)
    world.two.cluster.broker_metadata = lambda node: moved
    world.two.answers = True
    world.now_s += 2 * RETRY.longest_s
    with caplog.at_level(logging.WARNING):
        await world.two._get_conn(1)
    assert caplog.messages[-1] == "broker 127.0.0.1:9001 is reached again after 2.0 s, at 10.0.0.7:9092 now"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("aiokafka.conn", "Authenticated as alice via SCRAM-SHA-512"),
        ("aiokafka.consumer.subscription_state", "Updating subscribed topics to: frozenset()"),
    ],
)
def test_what_each_client_says_when_all_is_well_is_for_debugging(
    caplog: pytest.LogCaptureFixture, name: str, says: str
) -> None:
    client_log = logging.getLogger(name)
    Outages()
    with caplog.at_level(logging.INFO, logger=name):
        client_log.info(says)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger=name):
        client_log.info(says)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


@pytest.mark.usefixtures("heard")
def test_what_the_client_says_of_a_missing_permission_is_said_once_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage._quiet, "_known", weakref.WeakSet())
    monkeypatch.setattr(outage._quiet, "_reminders", Reminders(REMIND_S))
    Outages()
    client_log = logging.getLogger("aiokafka.consumer.fetcher")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            client_log.warning("Not authorized to read from topic %s.", "in")
    # At most one of a real second more.
    assert 1 <= len(caplog.records) <= 2


async def test_the_clients_lock_of_all_connections_is_taken_out() -> None:
    client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1")
    own(client, Outages())
    async with client._get_conn_lock, asyncio.timeout(5), client._get_conn_lock:
        pass


async def test_a_broker_that_hangs_does_not_hold_up_the_question_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Any] = []
    monkeypatch.setattr(client_module, "own", lambda client, outages: watched.append(client))
    with pytest.raises(BrokerUnavailableError):
        await broker_time_ms(Connection.to("127.0.0.1:1", client_id="test"), "registry")
    assert watched, "the client waits 20 s for each broker that doesn't answer"


async def test_fausts_own_producer_does_not_wait_for_a_broker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.1)
    with contextlib.closing(socket.create_server((HOST, 0))) as hangs, contextlib.closing(socket.socket()) as closed:
        closed.bind((HOST, 0))
        ports = [place.getsockname()[1] for place in (hangs, closed)]
        app = App("shop", broker=";".join(f"kafka://{HOST}:{port}" for port in ports))
        try:
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(KafkaConnectionError):
                    await app.producer.start()
        finally:
            await app.producer.on_stop()
    assert connection(app).outages is app.outages


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("brokers", "why"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: Connection refused"),
        (
            "127.0.0.1:1,127.0.0.1:2",
            "127.0.0.1:1, 127.0.0.1:2: 127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection refused",
        ),
    ],
)
async def test_where_no_broker_answers_the_error_says_why_and_the_client_nothing(
    brokers: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BrokerUnavailableError) as error:
        await ControlPlane.open(Connection.to(brokers, client_id="test"), "group")
    assert str(error.value) == f"no broker answers at {why}"
    assert [record for record in caplog.records if record.name.startswith("aiokafka")] == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError("Multiple exceptions: [Errno 111] ('::1', 1, 0, 0), [Errno 111] ('a', 1)"), "Connection refused"),
        (
            OSError("Multiple exceptions: [Errno 101] ('::1', 1), [Errno 111] ('a', 1)"),
            "Connection refused, Network is",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "no answer in time"),
        (KafkaConnectionError("it is closed"), "KafkaConnectionError: it is closed"),
    ],
)
def test_why_a_connection_failed(error: Exception, words: str) -> None:
    assert outage._told(error).startswith(words)


def test_the_type_of_an_error_is_named_once() -> None:
    errors = (KafkaConnectionError("why"), KafkaConnectionError(), OSError("why"), TimeoutError())
    assert [words_of(error) for error in errors] == [
        "KafkaConnectionError: why",
        "KafkaConnectionError",
        "OSError: why",
        "TimeoutError",
    ]
