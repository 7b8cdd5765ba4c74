"""Windows over keys: `across` aggregates what the windows of all keys have, in whichever order records are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from actors import App, Context, Every, Hopping, Session, Sliding, Tumbling, Window, aggregates
from actors._faust.inputs import repartitions
from actors.errors import ConfigurationError, HandlerFailedError, UndecodableRecordError, UsageError
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
SECOND = timedelta(seconds=1)
GRACE_MS = 2_000
KINDS = {"tumbling": Tumbling(seconds=10), "hopping": Hopping(10 * SECOND, 4 * SECOND)}
Rows = list[tuple[str, int, int]]


class Bids(msgspec.Struct, order=True):
    count: int
    auction: str


def hottest() -> aggregates.Aggregate:
    return aggregates.top_n(1, by=lambda bids: (bids.count, bids.auction), value_type=Bids)


class Auctions:
    """Bids of each auction by window, and across all of a kind the number of bids and the auction with the most."""

    def __init__(self, kind: Any, *, emit: bool = False, rekeyed: bool = True) -> None:
        self.app = app = App("auctions", broker="kafka://127.0.0.1:1")
        self.bids = app.topic("bids", key_type=str, value_type=str)
        self.finals = app.topic("finals", key_type=str, value_type=list)
        self.every = Every(seconds=1) if emit else None
        self.counts = app.window_store(
            "counts", kind, grace=timedelta(milliseconds=GRACE_MS), aggregate=aggregates.count(), emit=self.every
        )
        by: dict[str, Any] = {"by": lambda auction: auction} if rekeyed else {}

        @app.actor(self.bids, stores=[self.counts], **by)
        async def count(ctx: Context, auction: str) -> None:
            self.counts.add(auction, 1)

        self.count = count
        self.hottest = self.counts.across(
            "hottest", key=lambda auction: auction[0], of=lambda auction, number: Bids(number, auction),
            aggregate=hottest(), emit=self.every,
        )  # fmt: skip
        self.sums = self.counts.across("sums", key=lambda auction: auction[0], aggregate=aggregates.sum())
        self.live: dict[tuple[str, int], Any] = {}

        @self.hottest.on_close
        async def hot(ctx: Context, window: Window, top: list[Bids]) -> None:
            ctx.send(
                self.finals, key=ctx.key, value=["hot", window.start_ms, window.end_ms, [top[0].count, top[0].auction]]
            )

        @self.sums.on_close
        async def total(ctx: Context, window: Window, number: int) -> None:
            ctx.send(self.finals, key=ctx.key, value=["sum", window.start_ms, window.end_ms, number])

        if emit:

            @self.hottest.on_emit
            async def changed(ctx: Context, window: Window, top: list[Bids]) -> None:
                self.live[ctx.key, window.start_ms] = top[0].count, top[0].auction

    def results(self, driver: ActorTestDriver) -> Counter[tuple[Any, ...]]:
        return Counter(
            (sent.key, *(tuple(part) if isinstance(part, list) else part for part in sent.value))
            for sent in driver.outputs(self.finals)
        )


def records(seed: int, count: int = 400) -> Rows:
    """Return (key of the record, auction, time), out of order by up to the grace within a partition."""
    random = Random(seed)
    rows = []
    for number in range(count):
        at_ms = NOON_MS + number * 150 - random.randrange(GRACE_MS)
        rows.append((f"u{random.randrange(9)}", f"{random.choice('xy')}{random.randrange(6)}", at_ms))
    return rows


def expected(kind: Any, rows: Rows) -> Counter[tuple[Any, ...]]:
    counts: defaultdict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    size_ms, advance_ms = kind.longest_ms, kind.advance_ms
    for _, auction, at_ms in rows:
        for start_ms in range((at_ms - size_ms) // advance_ms * advance_ms + advance_ms, at_ms + 1, advance_ms):
            counts[auction[0], start_ms, start_ms + size_ms][auction] += 1
    found: Counter[tuple[Any, ...]] = Counter()
    for (group, start_ms, end_ms), numbers in counts.items():
        top = max((number, auction) for auction, number in numbers.items())
        found["hot", group, start_ms, end_ms, top] += 1
        found["sum", group, start_ms, end_ms, sum(numbers.values())] += 1
    return Counter({(key[1], key[0], *key[2:]): number for key, number in found.items()})


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
@pytest.mark.parametrize("emit", [False, True], ids=["closes", "changes"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("crashes", [False, True], ids=["", "crashes"])
def test_results_are_those_of_all_records_in_any_order(kind: Any, emit: bool, seed: int, crashes: bool) -> None:
    auctions, rows = Auctions(kind, emit=emit), records(seed)
    with ActorTestDriver(auctions.app) as driver:
        driver.backlog({auctions.bids: rows}, order=seed, settle=not crashes)
        if crashes:
            random = Random(seed)
            for _ in range(3):
                driver.advance(random.random() * 0.2, settle=False)
                driver.crash(settle=False, keep_disk=random.random() < 0.5)
        driver.close_windows()
        assert driver.late(auctions.count) == {"counts": 0}
        assert sum(number for actor in ("hottest", "sums") for number in driver.late(actor).values()) == 0
        results, wanted = auctions.results(driver), expected(kind, rows)
        assert (results - wanted, wanted - results) == (Counter(), Counter())
    if emit:
        finals = {row[:1] + row[2:3]: tuple(row[4]) for row in wanted if row[1] == "hot"}
        assert {window: auctions.live[window] for window in finals} == finals


class Staged:
    """Amounts of a minute by user, and what `across` makes of them by country, the first two letters."""

    def __init__(
        self,
        *,
        emit: Every | None = None,
        emit_across: Every | None = None,
        on_error: Any = "stop",
        value_type: Any = None,
        is_staged: bool = True,
        **across: Any,
    ) -> None:
        self.app = app = App("staged", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=int)
        self.finals = app.topic("finals", key_type=str, value_type=list)
        aggregate = aggregates.sum() if value_type is None else None
        self.minutes = app.window_store(
            "minutes", Tumbling(minutes=1), aggregate=aggregate, value_type=value_type, emit=emit
        )
        self.handle = lambda ctx, cents: self.minutes.add(ctx.key, cents)

        @app.actor(self.orders, stores=[self.minutes], on_error=on_error)
        async def count(ctx: Context, cents: int) -> None:
            self.handle(ctx, cents)

        if not is_staged:
            self.minutes.on_close(lambda *_: None)
            return
        options = {"emit": emit_across, "key": lambda user: user[:2], "aggregate": aggregates.sum()} | across
        self.countries = self.minutes.across("countries", **options)
        self.send_finals(self.countries)

    def send_finals(self, store: Any) -> None:
        @store.on_close
        async def send(ctx: Context, window: Window, result: Any) -> None:
            ctx.send(self.finals, key=str(ctx.key), value=[store.name, window.start_ms - NOON_MS, result])

    def finals_of(self, driver: ActorTestDriver, *orders: tuple[str, int, int]) -> list[list[Any]]:
        for user, cents, after_s in orders:
            driver.send(self.orders, key=user, value=cents, timestamp_ms=NOON_MS + after_s * 1_000)
        driver.close_windows()
        return sorted([sent.key, *sent.value] for sent in driver.outputs(self.finals))


ORDERS = (("de1", 5, 1), ("fr1", 7, 2), ("de2", 11, 30), ("de1", 2, 61), ("de2", 3, 61))


def test_each_window_has_the_results_of_its_keys() -> None:
    staged = Staged()
    with ActorTestDriver(staged.app) as driver:
        assert staged.finals_of(driver, *ORDERS) == [
            ["de", "countries", 0, 16],
            ["de", "countries", 60_000, 5],
            ["fr", "countries", 0, 7],
        ]
        assert driver.windows(staged.countries, "de") == {
            Window(NOON_MS, NOON_MS + 60_000): 16,
            Window(NOON_MS + 60_000, NOON_MS + 120_000): 5,
        }


def test_functions_of_both_stages_are_called() -> None:
    staged, seen = Staged(), []
    staged.minutes.on_close(lambda ctx, window, cents: seen.append((ctx.key, cents)))
    with pytest.raises(UsageError, match="window store minutes: on_close is set already"):
        staged.minutes.on_close(print)
    with ActorTestDriver(staged.app) as driver:
        assert len(staged.finals_of(driver, *ORDERS)) == 3
    assert sorted(seen) == [("de1", 2), ("de1", 5), ("de2", 3), ("de2", 11), ("fr1", 7)]


def test_several_stages_and_a_stage_behind_a_stage() -> None:
    staged = Staged()
    users = staged.minutes.across(key=lambda user: 1, key_type=int, aggregate=aggregates.count())
    world = staged.countries.across("world", key=lambda country: "all", aggregate=aggregates.max())
    assert users.name == "minutes-across"
    for store in (users, world):
        staged.send_finals(store)
    with ActorTestDriver(staged.app) as driver:
        finals = staged.finals_of(driver, *ORDERS)
    assert [row for row in finals if row[1] != "countries"] == [
        ["1", "minutes-across", 0, 3],
        ["1", "minutes-across", 60_000, 2],
        ["all", "world", 0, 16],
        ["all", "world", 60_000, 5],
    ]


def test_a_key_may_be_in_no_group() -> None:
    staged = Staged(key=lambda user: None if user.startswith("de") else user)
    with ActorTestDriver(staged.app) as driver:
        assert staged.finals_of(driver, *ORDERS) == [["fr1", "countries", 0, 7]]


BAD_KEYS = {
    "raises": (lambda user: {}[user], "key= of across countries raised KeyError: 'de1' for key 'de1'"),
    "another type": (lambda user: [user], r"key= of across countries returns \['de1'\] for key 'de1', which isn't"),
}


@pytest.mark.parametrize(("key", "message"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_key_that_cant_be_one_is_an_error_of_the_close(key: Any, message: str) -> None:
    staged = Staged(key=key)
    with ActorTestDriver(staged.app) as driver, pytest.raises(HandlerFailedError, match=message):
        staged.finals_of(driver, *ORDERS)


def test_a_close_that_is_skipped_is_missing() -> None:
    staged = Staged(key=lambda user: {"de1": "de", "de2": "de"}[user], on_error="skip")
    with ActorTestDriver(staged.app) as driver:
        assert staged.finals_of(driver, *ORDERS) == [["de", "countries", 0, 16], ["de", "countries", 60_000, 5]]


def test_a_value_that_cant_be_added_is_an_error_of_the_second_stage() -> None:
    staged = Staged(of=lambda user, cents: {"de1": cents}[user], on_error="stop")
    with ActorTestDriver(staged.app) as driver, pytest.raises(HandlerFailedError, match="KeyError: 'de2'"):
        staged.finals_of(driver, *ORDERS)


@pytest.mark.parametrize("aggregate", [aggregates.sum(), aggregates.collect(9)], ids=["remove", "again"])
def test_a_change_takes_the_place_of_the_one_before(aggregate: Any) -> None:
    staged, seen = Staged(emit=Every(seconds=10), emit_across=Every(seconds=10), aggregate=aggregate), []
    staged.countries.on_emit(lambda ctx, window, result: seen.append((window.start_ms - NOON_MS, result)))
    orders = (("de1", 5, 1), ("de2", 7, 2), ("de1", 1, 12), ("de1", 1, 13), ("de2", 1, 25), ("de1", 0, 36))
    with ActorTestDriver(staged.app, partitions=1) as driver:
        finals = staged.finals_of(driver, *orders)
    results = [12, 14, 15] if aggregate.name == "sum" else [[5, 7], [7, 7], [7, 8]]
    assert seen == [(0, result) for result in results]
    assert finals == [["de", "countries", 0, results[-1]]]


SOME: dict[str, tuple[Any, Any, Any]] = {
    "top_n": (aggregates.top_n(2), lambda cents: cents, lambda values: sorted(values, reverse=True)[:2]),
    "top_n of tuples": (
        aggregates.top_n(2, by=lambda pair: pair[0]),
        lambda cents: (cents, "x"),
        lambda values: [[cents, "x"] for cents in sorted(values, reverse=True)[:2]],
    ),
    "top_n of floats": (
        aggregates.top_n(2, value_type=float),
        lambda cents: cents,
        lambda values: sorted(values, reverse=True)[:2],
    ),
    "min": (aggregates.min(), lambda cents: cents, min),
    "min of lists": (
        aggregates.min(),
        lambda cents: [1] * (cents // 10),
        lambda values: min([1] * (cents // 10) for cents in values),
    ),
    "max": (aggregates.max(int), lambda cents: cents, max),
    "collect": (aggregates.collect(99), lambda cents: cents, sorted),
    "mean": (aggregates.mean(), lambda cents: cents, lambda values: sum(values) / len(values)),
}


@pytest.mark.parametrize(("aggregate", "value_of", "expected"), SOME.values(), ids=SOME)
def test_changes_up_and_down_leave_what_all_keys_have_in_the_end(aggregate: Any, value_of: Any, expected: Any) -> None:
    for seed in range(4):
        staged = Staged(
            emit=Every(seconds=1), value_type=int, aggregate=aggregate, of=lambda user, cents: value_of(cents)
        )
        staged.handle = lambda ctx, cents, staged=staged: staged.minutes.set(ctx.key, cents)
        random, values = Random(seed), {}
        orders = [(f"de{random.randrange(5)}", random.randrange(30), number) for number in range(50)]
        with ActorTestDriver(staged.app, partitions=1) as driver:
            for user, cents, after_s in orders:
                values[user] = cents
                driver.send(staged.orders, key=user, value=cents, timestamp_ms=NOON_MS + after_s * 1_000)
            driver.close_windows()
            [final] = driver.outputs(staged.finals)
        result = sorted(final.value[2]) if aggregate.name == "collect" else final.value[2]
        assert result == expected(values.values())


def test_a_window_that_is_removed_is_taken_out() -> None:
    staged = Staged(emit=Every(seconds=1), value_type=int)

    def handle(ctx: Context, cents: int) -> None:
        if cents:
            staged.minutes.set(ctx.key, cents)
        else:
            staged.minutes.delete(ctx.key)

    staged.handle = handle
    with ActorTestDriver(staged.app) as driver:
        orders = [("de1", 5, 1), ("de2", 7, 2), ("de3", 0, 5), ("de2", 0, 6), ("de4", 1, 10), ("de4", 3, 20)]
        assert staged.finals_of(driver, *orders) == [["de", "countries", 0, 8]]


def test_sums_of_floats_dont_depend_on_their_order() -> None:
    staged = Staged(of=lambda user, cents: {1: 0.1, 2: 1e16, 3: -1e16}[cents])
    with ActorTestDriver(staged.app) as driver:
        assert staged.finals_of(driver, *[(f"de{n}", n % 3 + 1, n) for n in range(30)]) == [["de", "countries", 0, 1.0]]


REFUSED = {
    "sessions": (lambda: Session(SECOND), {}, r"across far: windows of Session\(0:00:01\) are those of one key"),
    "sliding": (lambda: Sliding(SECOND), {}, r"across far: windows of Sliding\(0:00:01\) are those of one key"),
    "by the clock": (lambda: Tumbling(seconds=1, time="wall"), {}, "across far: windows of Tumbling"),
    "the same name": (lambda: Tumbling(seconds=1), {"name": "sales"}, "store sales: the app has a store of that name"),
    "no aggregate": (lambda: Tumbling(seconds=1), {"aggregate": 1}, "window store far: aggregate=1: give one of"),
    "an async key": (
        lambda: Tumbling(seconds=1),
        {"key": "async"},
        "key= of topic shop--far-sales-repartition is async",
    ),
    "a key of two": (lambda: Tumbling(seconds=1), {"key": lambda one, two: one}, "can't be called with one argument"),
    "an async value": (lambda: Tumbling(seconds=1), {"of": "async"}, "across far: of= is async"),
    "a value of one": (lambda: Tumbling(seconds=1), {"of": lambda one: one}, "across far: of= can't be called with 2"),
    "no interval": (lambda: Tumbling(seconds=1), {"emit": 5}, "window store far: emit=5"),
    "a long name": (lambda: Tumbling(seconds=1), {"name": "far" * 33, "first": "sales" * 20}, "Kafka takes 249"),
}


async def asynchronous(*_: Any) -> None: ...


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cant_be_meant_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    options = {name: asynchronous if value == "async" else value for name, value in options.items()}
    app = App("shop" if "first" not in options else "shop" * 20, broker="kafka://127.0.0.1:1")
    store = app.window_store(options.pop("first", "sales"), kind(), aggregate=aggregates.sum())

    @app.actor(app.topic("orders", key_type=str, value_type=int), stores=[store])
    async def count(ctx: Context, cents: int) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        store.across(**{"name": "far", "key": lambda key: "all", "aggregate": aggregates.sum()} | options)


def test_a_store_of_no_actor_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    store = app.window_store("sales", Tumbling(seconds=1), aggregate=aggregates.sum())
    with pytest.raises(ConfigurationError, match="across far: no actor lists window store sales yet: declare it below"):
        store.across("far", key=lambda key: "all", aggregate=aggregates.sum())


def test_a_first_stage_with_concurrency_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    store = app.window_store("sales", Tumbling(seconds=1), aggregate=aggregates.sum())

    @app.actor(app.topic("orders", key_type=str, value_type=int), stores=[store], concurrency=4)
    async def count(ctx: Context, cents: int) -> None: ...

    store.across("far", key=lambda key: "all", aggregate=aggregates.sum())
    with pytest.raises(
        ConfigurationError, match="window store sales has stages across keys, whose calls have an order"
    ):
        app.actors["count"].check_windows()


def test_the_topics_between_are_like_the_first_input() -> None:
    auctions = Auctions(Tumbling(seconds=10))
    auctions.hottest.across("further", key=lambda kind: "all", aggregate=aggregates.count())
    made = ["count-bids", "hottest-counts", "sums-counts", "further-hottest"]
    assert repartitions(auctions.app) == {f"auctions--{name}-repartition": "bids" for name in made}


def test_only_the_first_stage_writes_between() -> None:
    staged = Staged()
    between = staged.app.actors["countries"].topic
    staged.countries.on_close_function = None

    @staged.countries.on_close
    async def write(ctx: Context, window: Window, cents: int) -> None:
        ctx.send(between, key="de", value=b"")

    with ActorTestDriver(staged.app) as driver, pytest.raises(HandlerFailedError, match="writers"):
        staged.finals_of(driver, *ORDERS)


def test_what_is_no_change_of_a_window_is_an_error() -> None:
    staged = Staged()
    with ActorTestDriver(staged.app) as driver, pytest.raises(UndecodableRecordError, match="not a change"):
        driver.send("staged--countries-minutes-repartition", key="de", value=b"\xc1")


def test_a_stage_that_is_added_gets_the_windows_that_arent_closed() -> None:
    former, staged = Staged(is_staged=False), Staged()
    with ActorTestDriver(former.app, partitions=1) as driver:
        for user, cents, after_s in ORDERS:
            driver.send(former.orders, key=user, value=cents, timestamp_ms=NOON_MS + after_s * 1_000)
        driver.restart(staged.app)
        assert staged.finals_of(driver, ("de1", 1, 62)) == [["de", "countries", 60_000, 6]]


@pytest.mark.parametrize("emits", [(Every(seconds=1), None), (None, Every(seconds=1))], ids=["left out", "added"])
def test_changes_that_are_added_or_left_out_later_are_refused(emits: Any) -> None:
    former, staged = (Staged(emit=emit) for emit in emits)
    with ActorTestDriver(former.app, partitions=1) as driver:
        for user, cents, after_s in ORDERS[:3]:
            driver.send(former.orders, key=user, value=cents, timestamp_ms=NOON_MS + after_s * 1_000)
        with pytest.raises(ConfigurationError, match=r"store countries: .* fed by \w+ of the aggregate sum, and"):
            driver.restart(staged.app)
