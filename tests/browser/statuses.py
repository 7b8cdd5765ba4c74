"""Statuses made by hand, for pages: quiet ones, many partitions in trouble, nasty text."""

from __future__ import annotations

from collections.abc import Sequence

from actors.ports import OwnerRecord
from actors.runtime.meters import RestoreMeter
from actors.runtime.observe.status import (
    HistogramStatus,
    InputStatus,
    QueryStatus,
    StoreStatus,
    TaskStatus,
    WindowStatus,
    WorkerStatus,
)
from actors.runtime.replicas.standbys import Role, StandbyState
from actors.web.dashboard.group import ClusterStatus, Pace, Report, Seen
from actors.web.dashboard.history import STEPS, Series
from actors.web.dashboard.waiting import HeldLock, ParkedLine, TaskWaiting, Waiting

NOW_MS = 1_760_000_000_000
NASTY = "<script>alert(1)</script>&amp;{{ 7*7 }}\"'><img src=http://127.0.0.1:1/x onerror=alert(1)>"
LONG = "x" * 300
NO_TIMES = HistogramStatus(buckets=[], count=0, sum_s=0.0)


def samples(first: int = 1_000, *, gap: range = range(60, 90)) -> Series:
    """A quarter of an hour with a gap and a wave of load."""
    wave = [None if step in gap else 40.0 + step % 60 * 3 for step in range(STEPS)]
    lag = [None if one is None else one * 100 for one in wave]
    ones: list[float | None] = [None if one is None else 50.0 for one in wave]
    took = [None if one is None else one / 40 for one in wave]
    errors: list[float | None] = [None if one is None else float(step == 120) for step, one in enumerate(wave)]
    return Series(first=first, records=wave, lag=lag, commit_s=took, commits=ones, errors=errors)


def task(actor: str, partition: int, **more) -> TaskStatus:
    """A partition that runs."""
    found = {
        "actor": actor,
        "topic": f"{actor}-in",
        "partition": partition,
        "state": "running",
        "epoch": 3 + partition % 4,
        "reason": None,
        "committed_offset": 1_200_345 + partition * 7919,
        "end_offset": 1_200_345 + partition * 7919,
        "lag": partition * 37 % 11,
        "queued": 0,
        "records": 1_200_345,
        "outputs": 0,
        "writes": 0,
        "commits": NO_TIMES,
        "last_commit_ms": 6.2 + partition * 1.3,
        "last_commit_at_ms": NOW_MS - 900,
        "overlay_bytes": 4_096 * partition,
        "pending_timers": None,
        "parked": None,
        "takeovers": 1,
        "fences": {},
        "restores": NO_TIMES,
        "restored_records": 0,
        "restoring": [],
        "stores": [store(f"{actor}-state", 80_000 + partition * 911), store(f"{actor}-ids", 40_000)],
    }
    of_input = {name: found[name] for name in ("topic", "committed_offset", "end_offset", "lag")}
    return TaskStatus(**{**found, "inputs": [InputStatus(**of_input)], **more})


def store(name: str, keys: int | None) -> StoreStatus:
    return StoreStatus(
        name=name,
        keys=keys,
        size_bytes=None if keys is None else keys * 96,
        changelog_topic=f"shop--{name}-changelog",
        changelog_offset=keys,
        figures={},
    )


def copy(actor: str, partition: int, **more) -> StandbyState:
    """A standby that is followed."""
    found = {
        "actor": actor,
        "store": f"{actor}-state",
        "partition": partition,
        "role": Role.STANDBY,
        "position": 81_215,
        "lag": partition * 5 % 7,
        "current_ms": NOW_MS - 400,
        "looked_ms": NOW_MS - 400,
    }
    return StandbyState(**{**found, **more})


def seen(
    worker: str,
    tasks: list[TaskStatus],
    waiting: Waiting | None = None,
    copies: Sequence[StandbyState] = (),
    assigned_copies: dict[str, dict[str, int]] | None = None,
    **more,
) -> Seen:
    """A worker that answers."""
    address = f"http://10.0.0.{sum(map(ord, worker)) % 200}:6066"
    status = WorkerStatus(
        app="shop",
        worker=worker,
        address=address,
        started_at_ms=NOW_MS - 8_040_000,
        at_ms=NOW_MS,
        rebalances=3,
        tasks=tasks,
        queries=QueryStatus(in_flight=2, codes={200: 31_233}, durations=NO_TIMES),
        copies=list(copies),
        assigned_copies=assigned_copies or {},
    )
    if waiting is None:
        waiting = Waiting(tasks=[TaskWaiting(actor=one.actor, partition=one.partition) for one in tasks])
    pace = {(one.actor, one.partition): Pace(812.4 + one.partition * 3, one.last_commit_ms) for one in tasks}
    return Seen(worker, address, report=Report(status, waiting), answered_ms=NOW_MS, pace=pace, **more)


def picture(workers: list[Seen], partitions: dict[str, int], owners: dict | None = None, **more) -> ClusterStatus:
    """A picture with the registry that belongs to it, but for what is given."""
    held = {
        (one.actor, one.partition): OwnerRecord(
            actor=one.actor, partition=one.partition, epoch=one.epoch, worker=who.worker, address="", at_ms=NOW_MS
        )
        for who in workers
        for one in who.tasks
        if one.epoch
    }
    return ClusterStatus(
        app="shop",
        worker=workers[0].worker,
        at_ms=NOW_MS,
        owners={**held, **(owners or {})},
        partitions=partitions,
        workers=workers,
        **more,
    )


def quiet() -> ClusterStatus:
    """One worker, one actor, nothing to do."""
    return picture([seen("till-1", [task("take_order", number) for number in range(2)])], {"take_order": 2})


def joined() -> ClusterStatus:
    """An actor with two inputs, one of which it is behind in."""

    def both(number: int) -> list[InputStatus]:
        lags = {"orders": 0, "payments": 4_812 * number}
        return [
            InputStatus(topic=topic, committed_offset=77_000 + number, end_offset=77_000 + number + lag, lag=lag)
            for topic, lag in lags.items()
        ]

    tasks = [task("take_order", number, lag=4_812 * number, inputs=both(number)) for number in range(3)]
    return picture([seen("till-1", tasks)], {"take_order": 3})


def windowed() -> ClusterStatus:
    """An actor with two window stores on three partitions, one of which hasn't had a message."""

    def held(number: int) -> list[WindowStatus]:
        day_ms, minute_ms = 86_400_000, NOW_MS - 300_000 + 60_000 * number
        return [
            WindowStatus(
                name="minutes",
                windows="Tumbling(0:01:00)",
                grace_ms=30_000,
                retention_ms=day_ms,
                oldest_open_ms=minute_ms if number < 2 else None,
            ),
            WindowStatus(
                name="visits", windows="Session(0:30:00)", grace_ms=0, retention_ms=7 * day_ms, oldest_open_ms=None
            ),
        ]

    tasks = [
        task(
            "take_order",
            number,
            windows=held(number),
            stream_ms=NOW_MS - 200_000 + 90_000 * number if number < 2 else None,
            late={"minutes": 1_200 + number, "visits": 0},
        )
        for number in range(3)
    ]
    return picture([seen("till-1", tasks[:2]), seen("till-2", tasks[2:])], {"take_order": 3})


def parked_lines() -> list[ParkedLine]:
    """A message and an effect."""
    return [
        ParkedLine(
            actor="take_order",
            what="message",
            partition=2,
            key=b"customer-00917",
            has_key=True,
            waiting=14,
            error="HandlerFailedError: ValueError: can't take an order without an address",
            attempts=2,
            since_ms=NOW_MS - 3_900_000,
        ),
        ParkedLine(
            actor="ship",
            what="effect",
            partition=3,
            key=b"parcel-1812",
            has_key=True,
            waiting=1,
            error="ClientConnectorError: Cannot connect to host carrier.example:443",
            attempts=10,
            since_ms=None,
        ),
    ]


def held_locks() -> list[HeldLock]:
    """A lock and a semaphore."""
    return [
        HeldLock(
            name="printer-7",
            kind="lock",
            holders=1,
            owner="till-2",
            data="invoices",
            token=8121,
            expires_ms=NOW_MS + 9_400,
            is_over=False,
            waiting=3,
        ),
        HeldLock(
            name="gpu",
            kind="semaphore of 4",
            holders=3,
            owner="batch-19",
            data="",
            token=402,
            expires_ms=NOW_MS + 61_000,
            is_over=False,
            waiting=0,
        ),
    ]


def busy() -> ClusterStatus:
    """Three actors of 12 partitions: one halted, one being restored, one whose owner is gone."""
    tasks = {
        (actor, number): task(actor, number) for actor in ("account", "ship", "take_order") for number in range(12)
    }
    tasks["take_order", 4] = task(
        "take_order",
        4,
        state="halted",
        lag=48_211,
        reason="HandlerFailedError: topic take_order-in, partition 4, offset 1231200, key b'ada': ValueError: can't "
        "take 12.5 pieces. The message stays where it is: mend the handler and start the worker again, or declare the "
        'actor with on_error="park"',
    )
    tasks["ship", 7] = task(
        "ship",
        7,
        state="restoring",
        epoch=0,
        lag=None,
        last_commit_ms=None,
        restoring=[
            RestoreMeter(
                store="ship-state",
                started_at_ms=NOW_MS - 8_000,
                start=0,
                position=812_000,
                end=1_930_000,
                records=790_112,
            )
        ],
        stores=[store("ship-state", None), store("ship-ids", None)],
    )
    del tasks["account", 11]
    lost = OwnerRecord(actor="account", partition=11, epoch=6, worker="till-3", address="http://10.0.0.9:6066", at_ms=0)
    lines, locks = parked_lines(), held_locks()
    parts = sorted(tasks)
    halves = [[tasks[key] for key in parts if key[1] % 2 == half] for half in (0, 1)]
    workers = [
        seen("till-1", halves[0], waiting_of(halves[0], lines=lines[:1], locks=locks, locks_held=2)),
        seen("till-2", halves[1], waiting_of(halves[1], lines=lines[1:])),
        Seen(
            "till-3",
            "http://10.0.0.9:6066",
            answered_ms=NOW_MS - 14_000,
            silent_since_ms=NOW_MS - 12_000,
            trouble="it doesn't answer in time",
        ),
    ]
    return picture(workers, {"account": 12, "ship": 12, "take_order": 12}, {("account", 11): lost})


def copied() -> ClusterStatus:
    """Three workers that keep copies of each other's partitions; one of the copies stands still, one warms up."""
    names = ["till-1", "till-2", "till-3-with-a-name-as-long-as-a-pod-has-7d9f8b6c5-x2x4z"]
    workers = []
    for here, name in enumerate(names):
        tasks = [task("take_order", number) for number in range(here, 6, 3)]
        copies = [copy("take_order", number) for number in range((here + 1) % 3, 6, 3)]
        if here == 1:
            copies[0] = copy("take_order", 2, lag=None, looked_ms=NOW_MS - 95_000)
            copies.append(copy("take_order", 3, role=Role.WARM_UP, lag=812_431, current_ms=None))
        shall = {"take_order": {"standby": 2 + (here == 2), "warm-up": int(here == 1)}}
        workers.append(seen(name, tasks, copies=copies, assigned_copies=shall))
    lost = OwnerRecord(actor="take_order", partition=6, epoch=6, worker="till-9", address="", at_ms=0)
    return picture(workers, {"take_order": 7}, {("take_order", 6): lost})


def waiting_of(tasks: list[TaskStatus], **more) -> Waiting:
    """What waits where something does."""
    lines = more.get("lines", ())
    return Waiting(
        tasks=[
            TaskWaiting(
                actor=one.actor,
                partition=one.partition,
                parked=sum((line.actor, line.partition) == (one.actor, one.partition) for line in lines),
                effects=5 if one.actor == "ship" else 0,
                retried=1 if one.actor == "ship" and one.partition == 5 else 0,
                timers=1_204 if one.actor == "account" else 0,
                next_timer_ms=NOW_MS + 95_000 if one.actor == "account" else None,
            )
            for one in tasks
        ],
        **more,
    )


def many() -> ClusterStatus:
    """More partitions and lines than a page shows."""
    tasks = [task("take_order", number) for number in range(250)]
    tasks[200] = task("take_order", 200, state="refused", reason="the committed offset is below the state's")
    lines = [
        ParkedLine(
            actor="take_order",
            what="message",
            partition=number,
            key=f"key {number}".encode(),
            has_key=True,
            waiting=1,
            error="no",
            attempts=1,
            since_ms=NOW_MS - number * 1000,
        )
        for number in range(120)
    ]
    return picture([seen("till-1", tasks, waiting_of(tasks, lines=lines))], {"take_order": 250})


def nasty() -> ClusterStatus:
    """Text from outside that wants to be more than text, or is very long."""
    tasks = [task("take_order", 0, state="halted", reason=NASTY), task("take_order", 1, state="from tomorrow")]
    lines = [
        ParkedLine(
            actor="take_order",
            what="message",
            partition=0,
            key=key,
            has_key=True,
            waiting=1,
            error=error,
            attempts=1,
            since_ms=NOW_MS,
        )
        for key, error in (
            (NASTY.encode(), NASTY),
            (LONG.encode(), LONG),
            (b"\xff\x00", ""),
            ("ü \u202e".encode(), "e"),
        )
    ]
    lock = HeldLock(
        name=NASTY,
        kind="lock",
        holders=1,
        owner=LONG,
        data=NASTY,
        token=1,
        expires_ms=10**30,
        is_over=False,
        waiting=0,
    )
    who = seen(
        NASTY,
        tasks,
        Waiting(
            tasks=[TaskWaiting(actor="take_order", partition=0, parked=4)], lines=lines, locks=[lock], locks_held=1
        ),
        [copy("take_order", 1, looked_ms=0), copy("account", 0), copy("take_order", 99)],
    )
    gone = Seen(LONG, "javascript:alert(1)", silent_since_ms=NOW_MS, trouble=NASTY)
    return picture([who, gone], {"take_order": 2}, trouble=NASTY)
