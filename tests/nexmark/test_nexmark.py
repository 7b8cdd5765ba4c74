"""Nexmark's queries behind a backlog, compared with SQL over all events.

One partition is handed out after the other, mostly, and slowly enough that tasks look at each other meanwhile: the
order in which event time is hardest.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from actors.testing import ActorTestDriver
from actors.testing.driving import LoneSource
from tests.nexmark.events import generate
from tests.nexmark.oracle import SQL, Oracle
from tests.nexmark.queries import QUERIES, Nexmark

PARTITIONS = 4
COUNT = 5_000
POLL_S = 0.01
CRASHED = ["q4", "q5", "q6", "q7", "q8", "q9", "q11", "q15", "q16", "q17"]


@pytest.fixture(
    params=[
        pytest.param(0.3, id="one-after-the-other"),
        pytest.param(1.0, marks=pytest.mark.nightly, id="shuffled"),
    ],
    autouse=True,
)
def _order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand out chunks of the first partition that has any, or, as often as the parameter says, of any other."""
    random, poll = Random(1), LoneSource.poll

    async def poll_unevenly(self: LoneSource, wanted: Any, timeout_s: float) -> Any:
        await asyncio.sleep(POLL_S)
        wanted = list(wanted)
        behind = [
            source
            for source in wanted
            if (position := self.position(source)) is not None and position < self._cluster.log(source).end
        ]
        if not behind:
            return await poll(self, wanted, min(timeout_s, POLL_S))
        chosen = (
            random.choice(behind)
            if random.random() < request.param
            else min(behind, key=lambda source: source.partition)
        )
        return await poll(self, [chosen], 0.0)

    monkeypatch.setattr(LoneSource, "poll", poll_unevenly)
    monkeypatch.setattr("actors.runtime.looks.INTERVAL_S", 5 * POLL_S)
    monkeypatch.setattr("actors.runtime.looks.REST_S", 5 * POLL_S)


@pytest.fixture(scope="session")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[int, Any] = {}

    def oracle(count: int) -> Any:
        if count not in made:
            events = generate(count)
            made[count] = events, Oracle(events, tmp_path_factory.mktemp("nexmark"))
        return made[count]

    return oracle


def run(query: str, events: Any, crashes: Random | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of a query, sorted; with `crashes` the worker dies several times on the way."""
    nexmark = Nexmark(query)
    store = QUERIES[query](nexmark)
    with ActorTestDriver(nexmark.app, partitions=PARTITIONS) as driver:
        if query == "q13":
            for number in range(500):
                driver.send("names", key=number, value=f"name {number}")
        post(driver, events)
        if crashes is not None:
            crash(driver, crashes)
        driver.settle()
        if query == "q12":
            driver.advance(10)
        if store is not None:
            return final_rows(driver.items(store))
        rows = [tuple(sent.value) for sent in driver.outputs(nexmark.rows)]
    return sorted(summed(rows) if query == "q12" else rows)


def crash(driver: ActorTestDriver, random: Random) -> None:
    for _ in range(random.randrange(1, 6)):
        driver.advance(random.choice([0.01, 0.05, 0.1, 0.3, 1.0]) * random.random(), settle=False)
        driver.crash(settle=False, keep_disk=random.random() < 0.5, down_s=random.choice([0, 0, 5]))


def post(driver: ActorTestDriver, events: Any) -> None:
    """Write all events before an actor handles any."""

    async def produce() -> None:
        for topic, stream, key in (
            ("persons", events.persons, "id"),
            ("auctions", events.auctions, "id"),
            ("bids", events.bids, "bidder"),
        ):
            for event in stream:
                raw_key = b"%d" % getattr(event, key)
                await driver._client.produce(topic, raw_key, msgspec.json.encode(event), [], None, event.at_ms)

    driver._run(produce())


def final_rows(items: dict[Any, Any]) -> list[tuple[Any, ...]]:
    """Return what a store has in the end; of lists of bids their ids and places."""
    rows = []
    for key, value in items.items():
        if isinstance(value, list):
            rows += [(key, bid.id, place) for place, bid in enumerate(value, 1)]
        else:
            rows.append((key, value))
    return sorted(rows)


def summed(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    sums: dict[int, int] = {}
    for key, number in rows:
        sums[key] = sums.get(key, 0) + number
    return list(sums.items())


one_order = pytest.mark.parametrize("_order", [0.3], ids=["one-after-the-other"], indirect=True)


@pytest.mark.parametrize("query", SQL)
@one_order
def test_a_query_says_behind_a_backlog_what_sql_says_of_all_events(query: str, oracles: Any) -> None:
    events, oracle = oracles(COUNT)
    assert_equal(run(query, events), oracle.rows(query))


@pytest.mark.parametrize("query", CRASHED)
def test_crashes_on_the_way_change_nothing(query: str, oracles: Any) -> None:
    events, oracle = oracles(3_000)
    assert_equal(run(query, events, Random(1000 + int(query[1:]))), oracle.rows(query))


@pytest.mark.nightly
@pytest.mark.parametrize("query", SQL)
@one_order
def test_a_query_says_the_same_of_100_000_events(query: str, oracles: Any) -> None:
    events, oracle = oracles(100_000)
    assert_equal(run(query, events), oracle.rows(query))


def assert_equal(rows: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Compare rows; floats but for what the order of additions makes of them."""
    assert expected
    if any(isinstance(value, float) for value in expected[0]):
        rows, expected = ([(*row[:-1], round(row[-1], 3)) for row in side] for side in (rows, expected))
    missing, extra = sorted(set(expected) - set(rows)), sorted(set(rows) - set(expected))
    assert (missing[:5], extra[:5]) == ([], []), f"{len(missing)} missing, {len(extra)} too many of {len(expected)}"
    assert len(rows) == len(expected)
