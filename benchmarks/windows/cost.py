"""What a record's windows, or its matches in a join, cost the processor, with stream time and whether it is late.

No broker: handlers are called as a task calls them, and the same without a window store beside it. 20,000 records of
1,000 keys over 10 minutes; those of `bursts` and `pairs` have the keys of the scenarios `session` and `stream_join` of
`benchmarks.peers`, those of `join_dense` have 20 keys. Rows are in memory and nothing is committed; with `--disk` they
are in RocksDB, which gets a commit of every 1,000 records.

    python -m benchmarks.windows.cost

The last line is JSON: microseconds of CPU time per record above those of a handler that does nothing, the best of
`--repeat` rounds, in which the kinds take turns. `…_closes` are those with an `on_close`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from actors import App, Context, Hopping, Session, Sliding, Tumbling, aggregates
from actors._core.windows.kinds import Windows
from actors.ports import TopicPartition
from actors.runtime.clock import SystemClock, Timestamps
from actors.runtime.message.context import enter_message
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.windows.closes import TimedStore
from actors.runtime.windows.late import windowed
from actors.runtime.windows.task_windows import TaskWindows
from stores._core.overlay import MessageScope, Overlay, with_metadata
from stores._core.record import Position
from stores.memory import MemoryStore
from stores.ports import PartitionStore
from stores.rocks import RocksStore

RECORDS, KEYS, SPAN_MS = 20_000, 1_000, 600_000
PER_COMMIT, KEPT_VALUES = 1_000, 1_000
SECOND = timedelta(seconds=1)
KINDS: dict[str, Windows] = {
    "tumbling": Tumbling(minutes=1),
    "hopping": Hopping(60 * SECOND, advance=10 * SECOND),
    "session": Session(10 * SECOND),
    "sliding": Sliding(10 * SECOND),
}
Handler = Callable[[Context, bytes], Awaitable[Any]]
Job = tuple[list[TimedStore], Sequence[Handler]]
"""The stores of a job, and the handlers that take records in turns."""


@click.command()
@click.option("--repeat", default=5, show_default=True)
@click.option("--disk", is_flag=True, help="Keep the rows in RocksDB, with commits.")
def main(*, repeat: int, disk: bool) -> None:
    """Measure a record's windows."""
    choose = random.Random(7).randrange
    keys = [choose(KEYS) for _ in range(RECORDS)]
    bursts = [number // 800 * 200 % (RECORDS // 8) + number % 200 for number in range(RECORDS)]
    pairs = [number // 2 for number in range(RECORDS)]
    jobs: dict[str, tuple[list[int], Callable[[], Job]]] = {"nothing": (keys, _nothing)}
    for name, kind in KINDS.items():
        jobs[name] = keys, partial(_windows, kind, closes=False)
        jobs[f"{name}_closes"] = keys, partial(_windows, kind, closes=True)
    jobs["bursts"] = bursts, partial(_windows, Session(30 * SECOND), closes=False)
    jobs["join"] = keys, partial(_join, 10 * SECOND, "inner")
    jobs["join_dense"] = [key % 20 for key in keys], partial(_join, 10 * SECOND, "inner")
    jobs["join_closes"] = keys, partial(_join, 10 * SECOND, "outer")
    jobs["pairs"] = pairs, partial(_join, 60 * SECOND, "inner")
    best: dict[str, float] = {}
    for _ in range(repeat):
        for name, (numbers, job) in jobs.items():
            with tempfile.TemporaryDirectory() as folder:
                took_us = _us(_records(numbers), *job(), Path(folder) if disk else None)
            best[name] = min(best.get(name, took_us), took_us)
    nothing_us = best.pop("nothing")
    click.echo(json.dumps({name: round(took_us - nothing_us, 2) for name, took_us in best.items()}))


def _records(numbers: list[int]) -> list[Any]:
    """Return the records of keys with these numbers."""
    begin_ms = time.time_ns() // 1_000_000 - 2 * SPAN_MS
    return [
        SimpleNamespace(
            offset=offset,
            timestamp=begin_ms + offset * SPAN_MS // RECORDS,
            key=b"key-%06d" % number,
            value=b"x" * 116,
            headers=(),
        )
        for offset, number in enumerate(numbers)
    ]


def _us(records: list[Any], stores: list[TimedStore], handlers: Sequence[Handler], folder: Path | None) -> float:
    bases: dict[TimedStore, PartitionStore] = {
        store: MemoryStore() if folder is None else RocksStore.open(folder) for store in stores
    }
    state = _state(bases)
    if stores:
        timestamps = Timestamps(SystemClock(), 86_400_000)
        state.windows = TaskWindows(stores, state, bases, timestamps=timestamps, meters=TaskMeters(), is_in_order=True)

    async def run() -> None:
        undo, turns = state.scope.undo, len(handlers)
        for record in records:
            state.scope.source_offset = record.offset
            ctx = Context(state, record, record.key, record.key)
            enter_message(ctx)
            await handlers[record.offset % turns](ctx, record.value)
            ctx._state = None
            if undo:
                undo.clear()
            if folder is not None and record.offset % PER_COMMIT == PER_COMMIT - 1:
                _commit(state, bases)

    gc.collect()
    began_s = time.process_time()
    asyncio.run(run())
    took_s = time.process_time() - began_s
    for base in bases.values():
        if isinstance(base, RocksStore):
            base.close()
    return took_s / len(records) * 1e6


def _commit(state: TaskState, bases: dict[TimedStore, PartitionStore]) -> None:
    for store, base in bases.items():
        overlay = state.overlays[store.rows]
        writes = overlay.freeze()
        position = Position(state.scope.source_offset + 1, 0, 0, 1, "changelog")
        base.apply(((key, with_metadata(entry)) for key, entry in writes.items()), position)
        overlay.settle()


def _nothing() -> Job:
    async def nothing(ctx: Context, value: bytes) -> None: ...

    return [], [nothing]


def _windows(kind: Windows, *, closes: bool) -> Job:
    app = App("cost", broker="kafka://127.0.0.1:1")
    store = app.window_store("state", kind, key_type=bytes, aggregate=aggregates.count())
    if closes:

        @store.on_close
        async def closed(ctx: Context, window: object, count: int) -> None: ...

    async def count(ctx: Context, value: bytes) -> None:
        store.add(ctx.key, value)

    return [store], [windowed(count, "drop", [store])]


def _join(within: timedelta, how: Any) -> Job:
    app = App("cost", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=bytes, value_type=bytes) for name in ("left", "right"))

    @app.join(left, right, within=within, how=how, name="pairs")
    async def pair(ctx: Context, one: bytes | None, other: bytes | None) -> None: ...

    actor = app.actors["pairs"]
    return list(actor.windows), [actor.handler, actor.handlers["right"].handler]


def _state(bases: dict[TimedStore, PartitionStore]) -> TaskState:
    scope, home = MessageScope(epoch=1, now_ms=time.time_ns() // 1_000_000), TopicPartition("events", 0)
    return TaskState(
        actor="count",
        source=home,
        home=home,
        partition=0,
        partition_count=1,
        scope=scope,
        overlays={store.rows: Overlay(base, scope, KEPT_VALUES) for store, base in bases.items()},
        max_record_bytes={store.name: 1_000_000 for store in bases},
        resolve_output=lambda _: None,  # type: ignore[arg-type,return-value]
        outputs=[],
    )


if __name__ == "__main__":
    main()
