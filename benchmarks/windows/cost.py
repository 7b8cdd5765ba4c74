"""What a record's windows cost the processor: `add`, with stream time and the question whether it is late.

No broker, no RocksDB and no commits: handlers of window stores are called as a task calls them, on rows in memory, and
the same without a window store beside it. 20,000 records of 1,000 keys over 10 minutes.

    python -m benchmarks.windows.cost

The last line is JSON: microseconds of CPU time per record above those of a handler that does nothing, the best of
`--repeat` rounds, in which the kinds take turns. `…_closes` are those with an `on_close`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
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
from actors.runtime.windows.store import WindowStore
from actors.runtime.windows.task_windows import TaskWindows
from stores._core.overlay import MessageScope, Overlay
from stores.memory import MemoryStore
from stores.ports import PartitionStore

RECORDS, KEYS, SPAN_MS = 20_000, 1_000, 600_000
SECOND = timedelta(seconds=1)
KINDS: dict[str, Windows] = {
    "tumbling": Tumbling(minutes=1),
    "hopping": Hopping(60 * SECOND, advance=10 * SECOND),
    "session": Session(10 * SECOND),
    "sliding": Sliding(10 * SECOND),
}
Handler = Callable[[Context, bytes], Awaitable[Any]]


@click.command()
@click.option("--repeat", default=5, show_default=True)
def main(repeat: int) -> None:
    """Measure a record's windows."""
    begin_ms = time.time_ns() // 1_000_000 - 2 * SPAN_MS
    choose = random.Random(7).randrange
    records = [
        SimpleNamespace(
            offset=number,
            timestamp=begin_ms + number * SPAN_MS // RECORDS,
            key=b"key-%06d" % choose(KEYS),
            value=b"x",
            headers=(),
        )
        for number in range(RECORDS)
    ]
    best: dict[str, float] = {}
    for _ in range(repeat):
        nothing_us = _us(records, *_of_nothing())
        for name, kind in KINDS.items():
            for closes in (False, True):
                took_us = _us(records, *_of_windows(kind, closes=closes)) - nothing_us
                title = f"{name}_closes" if closes else name
                best[title] = min(best.get(title, took_us), took_us)
    click.echo(json.dumps({name: round(took_us, 2) for name, took_us in best.items()}))


def _us(records: list[Any], state: TaskState, handler: Handler) -> float:
    async def run() -> None:
        undo = state.scope.undo
        for record in records:
            state.scope.source_offset = record.offset
            ctx = Context(state, record, record.key, record.key)
            enter_message(ctx)
            await handler(ctx, record.value)
            ctx._state = None
            if undo:
                undo.clear()

    gc.collect()
    began_s = time.process_time()
    asyncio.run(run())
    return (time.process_time() - began_s) / len(records) * 1e6


def _of_nothing() -> tuple[TaskState, Handler]:
    async def nothing(ctx: Context, value: bytes) -> None: ...

    return _state([])[0], nothing


def _of_windows(kind: Windows, *, closes: bool) -> tuple[TaskState, Handler]:
    app = App("cost", broker="kafka://127.0.0.1:1")
    store = app.window_store("state", kind, key_type=bytes, aggregate=aggregates.count())
    if closes:

        @store.on_close
        async def closed(ctx: Context, window: object, count: int) -> None: ...

    async def count(ctx: Context, value: bytes) -> None:
        store.add(ctx.key, value)

    state, held = _state([store])
    timestamps = Timestamps(SystemClock(), 86_400_000)
    state.time_windows = TaskWindows([store], state, held, timestamps=timestamps, meters=TaskMeters(), is_in_order=True)
    return state, windowed(count, "drop", [store])


def _state(
    stores: list[WindowStore[Any, Any]],
) -> tuple[TaskState, dict[TimedStore, PartitionStore]]:
    scope, home = MessageScope(epoch=1, now_ms=time.time_ns() // 1_000_000), TopicPartition("events", 0)
    held: dict[TimedStore, PartitionStore] = {store: MemoryStore() for store in stores}
    state = TaskState(
        actor="count",
        source=home,
        home=home,
        partition=0,
        partition_count=1,
        scope=scope,
        overlays={store.rows: Overlay(base, scope) for store, base in held.items()},
        max_record_bytes={store.name: 1_000_000 for store in stores},
        resolve_output=lambda _: None,  # type: ignore[arg-type,return-value]
        outputs=[],
    )
    return state, held


if __name__ == "__main__":
    main()
