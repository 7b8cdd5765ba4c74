"""A holder that was stopped past its lease is refused by what the lock protects, an actor that compares tokens."""

import asyncio
import contextlib
import io
import json
import sqlite3
from hashlib import md5
from random import Random
from typing import Any

import pytest

from actors import Actor, App, AskRejectedError, Rejected, receive
from actors.coordination import Lease, Sharing
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeClock
from examples import fenced_ledger
from examples.fenced_ledger import NAME, RESOURCE, Fence, Ledger, Line, app, lines
from tests.documents import block
from tests.unit.coordination.test_coordination_client import client, run
from tests.unit.coordination.test_coordination_faults import client_by


@pytest.fixture
def driver():
    with ActorTestDriver(app, partitions=2) as made:
        yield made


def write(driver: ActorTestDriver, lease: Lease, text: str) -> None:
    assert driver.ask(Ledger, RESOURCE, Line(lease.token, text)) == lease.token


def acquire(driver: ActorTestDriver, locks: Sharing, *, sleeps: bool = False, timeout: float | None = None) -> Lease:
    """Take the lock; a holder that `sleeps` renews nothing and notices nothing."""

    async def work() -> Lease:
        lease = await locks.acquire(RESOURCE, ttl=5, timeout=timeout)
        if sleeps:
            lease._renewing.cancel()
        return lease

    return run(driver, work)


def sleep_through_a_lease(driver: ActorTestDriver) -> list[str]:
    """One holder sleeps past its lease, another one writes, the first one goes on: return what was written."""
    one, two = client(driver, app=NAME), client(driver, app=NAME)
    first = acquire(driver, one, sleeps=True)
    write(driver, first, "one")
    second = acquire(driver, two)
    write(driver, second, "two")
    with contextlib.suppress(AskRejectedError):
        write(driver, first, "one again")
    write(driver, second, "two again")
    run(driver, second.release)
    third = acquire(driver, one)
    write(driver, third, "one anew")
    run(driver, third.release)
    return [sent.value.text for sent in driver.outputs(lines)]


def test_a_holder_that_slept_through_its_lease_writes_nothing_any_more(driver):
    assert sleep_through_a_lease(driver) == ["one", "two", "two again", "one anew"]


def test_without_the_fence_its_write_gets_in(driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fenced_ledger, "is_stale", lambda *_: False)
    assert "one again" in sleep_through_a_lease(driver)


@pytest.mark.parametrize("keep_disk", [True, False])
def test_the_fence_outlives_the_worker_that_raised_it(driver, keep_disk):
    locks = client(driver, app=NAME)
    first = acquire(driver, locks, sleeps=True)
    second = acquire(driver, locks, sleeps=True)
    write(driver, second, "two")
    driver.crash(keep_disk=keep_disk)
    with pytest.raises(AskRejectedError, match=f"token {first.token} is refused, since {second.token} was seen"):
        write(driver, first, "one")


class StoppedClock(FakeClock):
    """A clock that doesn't move, and whose wall time is anything."""

    @staticmethod
    def monotonic() -> float:
        return 0.0


@pytest.mark.parametrize("seed", range(4))
def test_tokens_order_the_writes_of_holders_whatever_all_clocks_say(driver, seed):
    random, tokens, stale = Random(seed), [], 0
    held: list[Lease] = []
    for number in range(8):
        # By this clock the lock is held for ever.
        clock = StoppedClock()
        clock.wall_offset_ms = random.choice((0, 60_000, -60_000))
        held.append(acquire(driver, client_by(driver, clock, app=NAME), sleeps=True, timeout=600))
        write(driver, held[-1], f"{number}")
        tokens.append(held[-1].token)
        # The service's clock is set while the lease runs, and once it begins anew on another disk.
        driver._clock.wall_offset_ms = random.choice((0, 200_000, -200_000))
        if number == 4:
            driver.crash(keep_disk=False, settle=False)
        for before in held[:-1]:
            assert before.is_held
            with pytest.raises(AskRejectedError):
                write(driver, before, "too late")
            stale += 1
        run(driver, lambda: asyncio.sleep(random.choice((0.0, 1.0))))
    assert [sent.value.text for sent in driver.outputs(lines)] == [f"{number}" for number in range(8)]
    assert tokens == sorted(set(tokens))
    assert stale == 28


# --- the page's recipes ----------------------------------------------------------------------------------------------


def test_the_pages_actor_refuses_a_stale_token():
    own = App("page", broker="kafka://127.0.0.1:1")
    writes = own.topic("writes", key_type=str, value_type=Line)
    output = own.topic("lines", key_type=str, value_type=Line)
    named = {"Actor": Actor, "Fence": Fence, "Line": Line, "Rejected": Rejected, "receive": receive}
    names = block("docs/how-to/coordination.md", "Guarding a resource").run(
        {**named, "app": own, "writes": writes, "lines": output}
    )
    with ActorTestDriver(own) as driver:
        assert [driver.ask(names["Ledger"], "a", Line(token, "x")) for token in (3, 3, 7)] == [3, 3, 7]
        with pytest.raises(AskRejectedError, match="token 6 is refused, since 7 was seen"):
            driver.ask(names["Ledger"], "a", Line(6, "late"))
        assert [sent.value.token for sent in driver.outputs(output)] == [3, 3, 7]


class Database:
    """asyncpg's calls over SQLite, which takes the same statement."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.execute("CREATE TABLE fences (resource TEXT PRIMARY KEY, token INTEGER NOT NULL)")
        self._database.execute("CREATE TABLE lines (line TEXT)")

    @contextlib.asynccontextmanager
    async def transaction(self):
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        return self._database.execute(
            statement, {str(place): value for place, value in enumerate(values, 1)}
        ).fetchall()

    async def fetchval(self, statement: str, *values: Any) -> Any:
        return next((row[0] for row in self._rows(statement, values)), None)

    async def execute(self, statement: str, *values: Any) -> None:
        self._rows(statement, values)


async def test_the_pages_statement_refuses_a_stale_token():
    names, database = block("docs/how-to/coordination.md", "Guarding a resource", 2).run({}), Database()
    for token, line in ((3, "one"), (7, "two"), (7, "two again")):
        await names["write_row"](database, token, line)
    with pytest.raises(PermissionError, match="token 6 is stale"):
        await names["write_row"](database, 6, "late")
    assert [row[0] for row in database._rows("SELECT line FROM lines", ())] == ["one", "two", "two again"]


class ObjectStore:
    """boto3's calls over one object. `meanwhile` runs once, between a read and the put that follows it."""

    class exceptions:  # noqa: N801  boto3's name
        class ClientError(Exception):
            def __init__(self, code: str) -> None:
                self.response = {"Error": {"Code": code}}
                super().__init__(code)

        class NoSuchKey(ClientError):  # noqa: N818  boto3's name
            pass

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.meanwhile: Any = None

    def _etag(self) -> str:
        return md5(self.body or b"", usedforsecurity=False).hexdigest()

    def get_object(self, **_: str) -> dict[str, Any]:
        if self.body is None:
            raise self.exceptions.NoSuchKey("NoSuchKey")
        return {"ETag": self._etag(), "Body": io.BytesIO(self.body)}

    def put_object(self, *, Body: str, IfMatch: str = "", IfNoneMatch: str = "", **_: str) -> None:  # noqa: N803
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.body is not None if IfNoneMatch else self._etag() != IfMatch:
            raise self.exceptions.ClientError("PreconditionFailed")
        self.body = Body.encode()


@pytest.mark.parametrize("first", [None, 3])
def test_the_pages_put_refuses_a_stale_token_also_when_the_newer_one_writes_the_same_data(first):
    put, store = block("docs/how-to/coordination.md", "Guarding a resource", 3).run({})["put_object"], ObjectStore()
    if first is not None:
        put(store, "bucket", "key", first, "same")
    store.meanwhile = lambda: put(store, "bucket", "key", 7, "same")
    with pytest.raises(PermissionError, match="token 6 is stale"):
        put(store, "bucket", "key", 6, "same")
    put(store, "bucket", "key", 7, "again")
    assert json.loads(store.body or b"") == {"token": 7, "data": "again"}
