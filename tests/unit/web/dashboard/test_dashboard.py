"""What the dashboard makes of what workers say, and what it looks at in their stores."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
import pytest

from actors import App, Context
from actors._core.keys import make_place
from actors._kafka.consume.standby_owners import Members
from actors.coordination import coordination
from actors.coordination.messages import Acquire
from actors.errors import BrokerUnavailableError
from actors.ports import OwnerRecord
from actors.runtime.meters import RestoreMeter
from actors.runtime.observe.status import FeedStatus, HistogramStatus, WorkerStatus
from actors.testing import ActorTestDriver
from actors.web.dashboard import group as group_module
from actors.web.dashboard import waiting
from actors.web.dashboard.group import ClusterStatus, Group, Report, Seen, TaskKey
from actors.web.dashboard.rendering import Pages, ago, count, rate, size, took, until
from actors.web.dashboard.view import GONE, MAX_ROWS, SILENT, UP, build
from actors.web.dashboard.waiting import TaskWaiting, Waiting
from actors.web.panels import panels_of
from stores._core.record import Position, encode_metadata
from stores.memory import MemoryStore
from tests.browser import statuses
from tests.browser.statuses import NOW_MS, copy, picture, seen, task
from tests.unit.runtime.observe.test_meters import seen as status_of

if TYPE_CHECKING:
    from actors.web.queries.service import QueryService


def test_all_is_well() -> None:
    view = build(statuses.quiet())
    assert (view.tone, view.verdict, view.notices) == ("good", "Everything runs", [])
    (row,) = view.actors
    assert (row.running, row.partitions, row.condition.word) == (2, 2, "Running")
    assert [one.owner for one in view.partitions] == ["till-1", "till-1"]
    assert view.locks_count is None


def test_trouble_is_told_and_counted() -> None:
    view = build(statuses.busy())
    assert view.tone == "bad"
    assert [notice.tone for notice in view.notices] == ["bad", "bad", "warn", "busy", "warn", "warn"]
    states = {(row.actor, row.partition): row.condition.word for row in view.partitions}
    assert states["take_order", 4] == "Halted"
    assert states["ship", 7] == "Restoring"
    assert states["account", 11] == "Unknown"
    lost = next(row for row in view.partitions if (row.actor, row.partition) == ("account", 11))
    assert (lost.owner, lost.epoch, lost.lag) == ("till-3", 6, None)
    assert [row.condition for row in view.workers] == [UP, UP, SILENT]
    assert view.unheard == 1
    assert {row.name: row.timers for row in view.actors} == {"account": 11 * 1204, "ship": 0, "take_order": 0}
    assert (view.lines_count, [line.key for line in view.lines]) == (2, [b"parcel-1812", b"customer-00917"])


def test_lists_are_bounded_and_trouble_is_among_what_is_shown() -> None:
    view = build(statuses.many())
    assert len(view.partitions) == MAX_ROWS
    assert (view.partitions_count, view.lines_count, len(view.lines)) == (250, 120, MAX_ROWS)
    assert (view.partitions[0].partition, view.partitions[0].condition.word) == (200, "Refused")
    part = build(statuses.many(), "take_order", 200)
    assert [row.partition for row in part.partitions] == list(range(200, 250))


def test_a_partition_is_whose_epoch_is_higher() -> None:
    """Two workers say that they have it: the one that lost it hasn't noticed."""
    old, new = seen("old", [task("a", 0, epoch=7, state="closed")]), seen("new", [task("a", 0, epoch=8)])
    for workers in ([old, new], [new, old]):
        (row,) = build(picture(workers, {"a": 1})).partitions
        assert (row.owner, row.epoch, row.condition.word) == ("new", 8, "Running")


def test_a_worker_that_owns_nothing_and_says_nothing_is_gone() -> None:
    gone = Seen("gone", "http://10.0.0.1:1", silent_since_ms=NOW_MS)
    view = build(picture([seen("here", [task("a", 0)]), gone], {"a": 1}))
    assert [row.condition for row in view.workers] == [UP, GONE]
    assert view.notices[0].text == "Worker gone is gone. It owns nothing any more"
    # What it said before isn't believed any more.
    stale = replace_silent(seen("stale", [task("a", 0)]))
    (row,) = build(picture([stale], {"a": 1})).partitions
    assert row.task is None


def test_who_keeps_which_copies_and_what_they_lack() -> None:
    view = build(statuses.copied())
    long = "till-3-with-a-name-as-long-as-a-pod-has-7d9f8b6c5-x2x4z"
    shown = {
        row.partition: [(copy.worker, copy.role, copy.lag, copy.stands_still) for copy in row.copies]
        for row in view.partitions
    }
    assert shown == {
        0: [(long, "standby", 0, False)],
        1: [("till-1", "standby", 5, False)],
        2: [("till-2", "standby", None, True)],
        3: [("till-2", "warm-up", 812_431, False), (long, "standby", 1, False)],
        4: [("till-1", "standby", 6, False)],
        5: [("till-2", "standby", 4, False)],
        6: [],
    }
    assert [(row.copies, row.assigned_copies, row.still_copies) for row in view.workers] == [
        (2, 2, 0),
        (2, 3, 1),
        (2, 3, 0),
    ]
    assert view.tone == "warn"
    assert "1 copy stands still on worker till-2: its log says why" in [notice.text for notice in view.notices]
    assert [row.has_copies for row in (view, build(statuses.quiet()))] == [True, False]
    restoring = statuses.copied()
    restoring.workers[1].tasks[0].restoring.append(
        RestoreMeter(store="s", started_at_ms=NOW_MS, start=0, position=0, end=9, records=0)
    )
    assert not any("still" in notice.text for notice in build(restoring).notices), "copies wait for restores"
    # Of an actor's page too; and what a worker said before it fell silent isn't believed.
    assert len(build(statuses.copied(), "take_order").partitions[3].copies) == 2
    silent = statuses.copied()
    replace_silent(silent.workers[1])
    view = build(silent)
    assert [copy.worker for copy in view.partitions[3].copies] == [long]
    assert (view.workers[1].copies, view.workers[1].assigned_copies, view.workers[1].still_copies) == (None, None, 0)


def test_a_copy_of_several_stores_is_one_as_slow_as_all_of_them() -> None:
    both = [copy("a", 0, lag=3), copy("a", 0, store="more", lag=4)]
    for kept, expected in (
        (both, (7, False)),
        ([both[0], copy("a", 0, store="more", lag=None)], (None, False)),
        ([both[0], copy("a", 0, store="more", lag=1, looked_ms=NOW_MS - 61_000)], (4, True)),
    ):
        workers = [seen("w1", [task("a", 0)]), seen("w2", [], copies=kept)]
        (row,) = build(picture(workers, {"a": 1})).partitions
        (cell,) = row.copies
        assert (cell.worker, cell.lag, cell.stands_still) == ("w2", *expected)


PAGES = Pages()


def page(of: ClusterStatus, actor: str | None = None, *, may_act: bool = False) -> str:
    return PAGES.render(
        "actor.html" if actor else "overview.html",
        view=build(of, actor),
        recent=[],
        plots=[],
        chosen=None,
        app="shop",
        is_live=True,
        is_polled=True,
        may_act=may_act,
        is_logged_in=False,
    )


def test_each_input_is_told_with_the_partition_that_is_most_behind() -> None:
    (row,) = build(statuses.joined()).actors
    assert row.lag == 3 * 4_812
    assert [(one.topic, one.lag, one.partition, one.at.end_offset) for one in row.inputs] == [
        ("orders", 0, 0, 77_000),
        ("payments", 3 * 4_812, 2, 77_002 + 2 * 4_812),
    ]
    assert 'id="i-payments"' in page(statuses.joined(), "take_order")
    assert 'id="inputs"' not in page(statuses.quiet(), "take_order")


def test_window_stores_are_told_with_stream_time_late_messages_and_the_oldest_open_window() -> None:
    found = {row.name: row for row in build(statuses.windowed(), "take_order").windows}
    assert list(found) == ["minutes", "visits"]
    minutes, visits = found.values()
    assert (minutes.windows, minutes.late, visits.late) == ("Tumbling(0:01:00)", 3 * 1_200 + 3, 0)
    assert (minutes.behind_ms, minutes.ahead_ms) == (NOW_MS - 200_000, NOW_MS - 110_000)
    assert (minutes.oldest_open_ms, visits.oldest_open_ms) == (NOW_MS - 300_000, None)
    text = page(statuses.windowed(), "take_order")
    cells = re.findall(r'data-name="(?:Windows|Grace|Retention|Late|Oldest open window)"[^>]*>([^<]*)', text)
    assert cells[:5] == ["Tumbling(0:01:00)", "30 s", "1 d 0 h", "3,603", "2025-10-09 08:48:20 UTC"]
    assert cells[5:9] == ["Session(0:30:00)", "0 s", "7 d 0 h", "0"]
    assert "2025-10-09 08:50:00 UTC<br>2025-10-09 08:51:30 UTC" in text
    assert 'id="windows"' not in page(statuses.quiet(), "take_order")
    assert build(statuses.windowed()).windows == []


def test_what_event_time_waits_for_is_told() -> None:
    cluster = statuses.windowed()
    feed = FeedStatus(topic="raw-data", partition=3, time_ms=1_700_049_600_000)
    (worker,) = [one for one in cluster.workers if one.tasks and one.tasks[0].actor == "take_order"][:1]
    assert worker.report is not None
    tasks = [replace(worker.tasks[0], waits_for=feed, held_s=60.0), *worker.tasks[1:]]
    worker.report = Report(replace(worker.report.status, tasks=tasks), worker.report.waiting)
    waits = "waits for raw-data[3], which is at 2023-11-15T12:00:00: no worker that answers has this partition"
    partition = tasks[0].partition
    assert f"Event time of take_order, partition {partition} {waits}" in [one.text for one in build(cluster).notices]
    assert f"It {waits}" in page(cluster, "take_order")


async def test_actors_that_forward_a_topic_by_another_key_are_listed_with_their_inputs() -> None:
    app = App("shop", store="memory://")
    payments = app.topic("payments", key_type=str, value_type=str)

    @app.actor(payments, by=str.upper)
    async def add_up(ctx: Context, value: str) -> None: ...

    def told() -> tuple[WorkerStatus, dict[str, Any]]:
        with ActorTestDriver(app) as driver:
            driver.send(payments, key="ada", value="o1")
            return status_of(driver), {spec.name: spec for spec in driver._specs}

    class Here(Cluster):
        actors: ClassVar[dict[str, Any]]

    status, Here.actors = await asyncio.to_thread(told)
    status = replace(status, worker="here", address="http://here")
    waits = Waiting(tasks=[TaskWaiting(actor=one.actor, partition=one.partition) for one in status.tasks])

    async def report() -> Report:
        return Report(status, waits)

    found = await Group("shop", report)._look(cast("QueryService", Here()))
    rows = {row.name: (row.running, row.partitions, [one.topic for one in row.inputs]) for row in build(found).actors}
    assert rows == {
        "add_up": (3, 3, ["shop--add_up-payments-repartition"]),
        "payments-repartition": (3, 3, ["payments"]),
    }
    assert {"payments-repartition", "add_up"} <= set(re.findall(r">([\w-]+)</a>", page(found)))


def test_copies_have_a_column_where_there_are_any() -> None:
    for actor in (None, "take_order"):
        text = page(statuses.copied(), actor)
        assert text.count('data-name="Copies"') == (10 if actor is None else 7)
        assert '<bdi>till-2</bdi> <span class="soft">warm-up, lag 812,431</span>' in text
        assert '<bdi>till-2</bdi> <span class="hot">standby, stands still</span>' in text
        assert "Copies" not in page(statuses.quiet(), actor)
    assert '<td role="cell" data-name="Copies" class="n hot">2 of 3</td>' in page(statuses.copied())


class Cluster:
    """Workers that answer at addresses, a registry, and what the coordinator has; in the place of a query service."""

    actors: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.worker, self.address = "here", "http://here"
        self.router = self.directory = self.workers = self
        self.answers: dict[str, Seen] = {}
        self.in_group: list[str] = []
        self.strangers: list[str] = []
        self.is_away = False
        self.asked: list[str] = []

    async def owners(self, since_s: float) -> dict[TaskKey, OwnerRecord]:
        return {}

    async def members(self) -> Members:
        if self.is_away:
            raise BrokerUnavailableError("the coordinator is away")
        return Members(self.in_group, self.strangers)

    @staticmethod
    def trouble() -> str:
        return ""

    async def fetch(self, method: str, address: str, path: str, *, answer_s: float, limits: Any) -> bytes:
        self.asked.append(address)
        if address not in self.answers:
            raise OSError("nobody there")
        return msgspec.json.encode(self.answers[address].report)

    def at(self, address: str, worker: str) -> None:
        found = seen(worker, []).report
        assert found is not None
        self.answers[address] = Seen(worker, address, Report(replace(found.status, address=address), found.waiting))


async def test_a_worker_that_owns_nothing_is_found_as_a_member_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MEMBERS_S", 0.0)
    cluster = Cluster()
    own = seen("here", []).report
    assert own is not None
    own = replace_address(own, "http://here")

    async def report() -> Report:
        return own

    group = Group("shop", report)

    async def workers() -> dict[str, bool]:
        found = await group._look(cast("QueryService", cluster))
        return {who.worker: who.silent_since_ms is None for who in found.workers}

    assert await workers() == {"here": True}
    cluster.in_group = ["http://here", "http://idle", "http://deaf"]
    cluster.at("http://idle", "idle")
    assert await workers() == {"here": True, "idle": True}
    assert "http://here" not in cluster.asked
    # The rebalance hides the members; the coordinator is away: who is known stays.
    cluster.in_group = []
    assert await workers() == {"here": True, "idle": True}
    cluster.is_away = True
    cluster.asked.clear()
    assert await workers() == {"here": True, "idle": True}
    assert sorted(cluster.asked) == ["http://deaf", "http://idle"]
    cluster.is_away = False
    # It ends, and another begins where it was.
    del cluster.answers["http://idle"]
    cluster.in_group = ["http://here"]
    assert await workers() == {"here": True, "idle": False}
    cluster.in_group = ["http://here", "http://idle"]
    cluster.at("http://idle", "next")
    assert (await workers())["next"]
    assert await workers() == {"here": True, "next": True}
    # One that comes back with its name at another address.
    cluster.answers.clear()
    cluster.in_group = ["http://here", "http://moved"]
    assert await workers() == {"here": True, "next": False}
    cluster.at("http://moved", "next")
    assert await workers() == {"here": True, "next": True}


def replace_address(report: Report, address: str) -> Report:
    return Report(replace(report.status, address=address), report.waiting)


def replace_silent(who: Seen) -> Seen:
    who.silent_since_ms = NOW_MS
    return who


def test_rates_are_of_two_answers_and_of_one_process() -> None:
    who = Seen("w", "")

    def says(at_ms: int, records: int, commits: int, seconds: float) -> Any:
        commit_times = HistogramStatus(buckets=[], count=commits, sum_s=seconds)
        told = task("a", 0, records=records, commits=commit_times, last_commit_at_ms=3_000)
        report = seen("w", [told]).report
        assert report is not None
        who.answered(Report(replace(report.status, at_ms=at_ms), report.waiting), at_ms)
        return who.pace["a", 0]

    assert says(1_000, 100, 10, 1.0).records_per_s is None
    pace = says(3_000, 300, 12, 1.1)
    assert pace.records_per_s == 100
    assert pace.commit_ms == pytest.approx(50)
    for at_ms in range(4_000, 30_000, 1_000):
        pace = says(at_ms, 300, 12, 1.1)
    assert pace.records_per_s == 0
    # The last commit was long ago: how long it took says nothing about now.
    assert pace.commit_ms is None
    assert says(31_000, 299, 12, 1.1).records_per_s is None
    assert says(32_000, 300, 11, 1.1).records_per_s is None
    who.failed("no", 32_000)
    assert who.silent_since_ms == 32_000
    who.failed("still no", 33_000)
    assert who.silent_since_ms == 32_000
    assert says(40_000, 900, 13, 2.0).records_per_s is None
    assert who.silent_since_ms is None


def test_an_answer_comes_back_as_it_was_sent() -> None:
    for made in (statuses.busy(), statuses.nasty()):
        for who in made.workers:
            if who.report is not None:
                assert msgspec.json.decode(msgspec.json.encode(who.report), type=Report) == who.report


def test_text_from_outside_stays_text() -> None:
    pages = Pages()
    for actor in (None, "take_order"):
        text = pages.render(
            "actor.html" if actor else "overview.html",
            view=build(statuses.nasty(), actor),
            recent=[],
            plots=[],
            chosen=None,
            app=statuses.NASTY,
            is_live=False,
            is_polled=True,
            may_act=True,
            is_logged_in=False,
        )
        assert "<script>" not in text
        assert "<img" not in text
        assert "javascript:" not in text
        assert "{{" not in text.replace("{{ 7*7 }}", "")


def test_who_may_not_act_sees_no_buttons() -> None:
    for may_act in (True, False):
        text = page(statuses.busy(), may_act=may_act)
        assert ("<button" in text) == may_act


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (count(1234567), "1,234,567"),
        (rate(0), "0"),
        (rate(0.25), "0.2"),
        (rate(1234.6), "1,235"),
        (took(5.44), "5.4 ms"),
        (took(120.4), "120 ms"),
        (took(1234), "1.2 s"),
        (size(12), "12 B"),
        (size(2048), "2.0 KiB"),
        (size(999 * 1024**2), "999 MiB"),
        (size(10**18), "909,495 TiB"),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected


def test_times_are_written_with_the_moment_behind_them() -> None:
    assert ago(NOW_MS - 3_725_000, NOW_MS) == '<time title="2025-10-09 07:51:15 UTC">1 h 2 min</time>'
    assert ">0 s<" in ago(NOW_MS + 5_000, NOW_MS)
    assert ">in 1 min 5 s<" in until(NOW_MS + 65_000, NOW_MS)
    assert ">now<" in until(NOW_MS - 1, NOW_MS)
    assert ">in over 1,000 d<" in until(10**30, NOW_MS)


class World:
    """A shop that can't take what begins with "bad", and ships nothing."""

    def __init__(self) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        coordination(self.app)

        @self.app.effect(attempts=2, first_wait=timedelta(hours=1), longest_wait=timedelta(hours=1))
        async def ship(call: Any, what: str) -> None:
            raise ValueError(f"nobody ships {what}")

        self.effects = {ship: ship}

        @self.app.actor(self.topic, on_error="park", timers=True, effects=[ship])
        async def work(ctx: Context, value: str) -> None:
            if value.startswith("bad"):
                raise ValueError(f"can't do {value}")
            if value.startswith("ship"):
                ctx.effect(ship, value)
            if value.startswith("later"):
                ctx.schedule("now", after=timedelta(minutes=int(value.split()[1])), name=value)

    def post(self, driver: ActorTestDriver, *messages: str) -> None:
        """Send messages like "a bad 1": the key, then the value."""
        for message in messages:
            key, _, value = message.partition(" ")
            driver.post(self.topic, key=key, value=value)
        driver.settle()

    def look(self, driver: ActorTestDriver) -> Waiting:
        """What waits in all partitions."""
        now_ms = driver._clock.wall_ms()
        return driver._run(waiting._look(panels_of(self.app), list(driver._worker.tasks), now_ms))


def test_what_waits_is_found() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=2, effects=world.effects) as driver:
        empty = world.look(driver)
        assert (empty.lines, empty.locks, empty.locks_held, empty.is_cut) == ([], [], 0, False)
        world.post(
            driver, "a bad 1", "a bad 2", "a later 5", "b bad 3", "c ship 1", "c ship 2", "d later 9", "d later 3"
        )
        found = world.look(driver)
        assert [(line.what, line.key, line.waiting, line.attempts) for line in sorted_lines(found)] == [
            ("message", b"a", 3, 1),
            ("message", b"b", 1, 1),
        ]
        assert sorted_lines(found)[0].error == "HandlerFailedError: ValueError: can't do bad 1"
        counts = [one for one in found.tasks if one.actor == "work"]
        assert sum(one.parked for one in counts) == 2
        assert [(one.effects, one.retried) for one in counts if one.effects] == [(1, 1)]
        assert sum(one.timers for one in counts) == 2
        next_ms = min(one.next_timer_ms for one in counts if one.next_timer_ms)
        assert 150_000 < next_ms - driver._clock.wall_ms() <= 180_000
        driver.advance(7200)
        after = world.look(driver)
        assert [(line.what, line.key, line.waiting) for line in sorted_lines(after)] == [
            ("effect", b"c", 2),
            ("message", b"a", 3),
            ("message", b"b", 1),
        ]
        assert sorted_lines(after)[0].error == "ValueError: nobody ships ship 1"


def test_held_locks_are_found() -> None:
    world = World()
    with ActorTestDriver(world.app) as driver:
        for owner in ("ada", "bob"):
            wanted = Acquire(owner=owner, ttl_ms=60_000, wait_ms=60_000, data=f"of {owner}")
            driver.tell("coordination", "printer", msgspec.json.encode(wanted))
        driver.settle()
        (lock,) = world.look(driver).locks
        assert (lock.name, lock.kind, lock.owner, lock.data, lock.waiting) == ("printer", "lock", "ada", "of ada", 1)
        assert not lock.is_over


def sorted_lines(found: Waiting) -> list[waiting.ParkedLine]:
    return sorted(found.lines, key=lambda line: (line.what, line.key))


async def test_counts_end_at_limits_and_lines_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_IN_LINE", 5)
    monkeypatch.setattr(waiting, "MOST_LINES", 3)
    store = MemoryStore()
    metadata = encode_metadata(1, 1)
    writes = [
        (make_place(b"p", key, number), metadata + b"{") for key in (b"", b"a", b"aa", b"b") for number in range(8)
    ]
    store.apply(writes, Position(1, 1, 1, 1, ""))
    looked = waiting._Look()
    lines = [line async for line in waiting._lines(looked, store, "message")]
    assert [(key, waits) for key, _, waits in lines] == [(b"", 5), (b"a", 5), (b"b", 5)]
    assert looked.is_cut
    monkeypatch.setattr(waiting, "MOST_IN_LINE", 8)
    for most, is_cut in ((3, True), (4, False)):
        monkeypatch.setattr(waiting, "MOST_LINES", most)
        looked = waiting._Look()
        assert len([line async for line in waiting._lines(looked, store, "message")]) == most
        assert looked.is_cut == is_cut


async def test_looking_leaves_others_their_turn() -> None:
    store = MemoryStore()
    writes = [(make_place(b"p", b"%d" % key, 0), encode_metadata(1, 1) + b"{}") for key in range(900)]
    store.apply(writes, Position(1, 1, 1, 1, ""))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    lines = [line async for line in waiting._lines(waiting._Look(), store, "message")]
    beside.cancel()
    assert len(lines) == 900
    assert turns >= 3
