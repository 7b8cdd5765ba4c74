"""What Kafka's `SmokeTestClient` does: windows whose closes are sent, joins of tables, and groups of a table's rows.

With `PLANT=twice` each close is sent twice.
"""

import os
import struct
from datetime import timedelta

from actors import App, Context, Hopping, Tumbling, Window, aggregates

INT, LONG, DOUBLE = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">d")
"""What Java's serializers of numbers write."""
FLUSH = "flush"
"""The key of the record that closes all windows."""
SENT = 2 if os.environ.get("PLANT") == "twice" else 1
"""How often a close is sent."""

# The names of the topics are what the driver looks for.
app = App(
    "SmokeTest",
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    # The records that close the windows are two days ahead.
    max_time_ahead=timedelta(days=3),
)


def topic(name: str) -> object:
    """Declare a topic of texts and numbers."""
    return app.topic(name, key_type=str, value_type=bytes)


data, echoes = topic("data"), topic("echo")
minima, maxima, sums, counts = topic("min"), topic("max"), topic("sum"), topic("cnt")
differences, means, groups = topic("dif"), topic("avg"), topic("tagg")
day_changes, day_closes = topic("min-raw"), topic("min-suppressed")
span_changes, span_closes = topic("sws-raw"), topic("sws-suppressed")

days = app.window_store("days", Tumbling(days=1), grace=timedelta(minutes=1), aggregate=aggregates.min(value_type=int))
spans = app.window_store(
    "spans",
    Hopping(timedelta(seconds=2), timedelta(seconds=1)),
    grace=timedelta(seconds=30),
    aggregate=aggregates.sum(),
)
largest = app.window_store("largest", Tumbling(days=2), aggregate=aggregates.max(value_type=int))
total = app.window_store("total", Tumbling(days=2), aggregate=aggregates.sum())
number = app.window_store("number", Tumbling(days=2), aggregate=aggregates.count())


# The driver flushes each partition with one key.
@app.actor(data, stores=[days, spans, largest, total, number], misplaced="warn")
async def fold(ctx: Context, raw: bytes) -> None:
    """Echo a number, and send each change of its windows."""
    (value,) = INT.unpack(raw)
    changed = [(store, store.add(ctx.key, value)) for store in (days, spans, largest, total, number)]
    if ctx.key == FLUSH:
        return
    ctx.send(echoes, key=ctx.key, value=raw)
    outputs = {largest: (maxima, INT), total: (sums, LONG), number: (counts, LONG), days: (minima, INT)}
    changes = {days: day_changes, spans: span_changes}
    for store, windows in changed:
        for window, result in windows:
            if store in outputs:
                output, form = outputs[store]
                ctx.send(output, key=ctx.key, value=form.pack(result))
            if store in changes:
                ctx.send(changes[store], key=windowed(ctx.key, window), value=INT.pack(result))


def windowed(key: str, window: Window) -> str:
    """Return what Java's `Windowed` prints."""
    return f"[{key}@{window.start_ms}/{window.end_ms}]"


@days.on_close
async def send_day(ctx: Context, window: Window, smallest: int) -> None:
    """Send a day's minimum, once."""
    for _ in range(SENT if ctx.key != FLUSH else 0):
        ctx.send(day_closes, key=windowed(ctx.key, window), value=INT.pack(smallest))


@spans.on_close
async def send_span(ctx: Context, window: Window, summed: int) -> None:
    """Send a span's sum, once."""
    if ctx.key != FLUSH:
        ctx.send(span_closes, key=windowed(ctx.key, window), value=INT.pack(summed))


max_table, min_table = app.table(maxima, name="max-table"), app.table(minima, name="min-table")
sum_table, count_table = app.table(sums, name="sum-table"), app.table(counts, name="count-table")


async def send_group(ctx: Context, keys: int | None) -> None:
    """Send how many keys have a count."""
    ctx.send(groups, key=ctx.key, value=LONG.pack(keys or 0))


count_table.aggregate(
    "group",
    by=lambda count: str(LONG.unpack(count)[0]),
    aggregate=aggregates.count(),
    on_change=send_group,
)


@app.join(max_table, min_table)
async def difference(ctx: Context, most: bytes | None, least: bytes | None) -> None:
    """Send a key's maximum less its minimum."""
    if most is not None and least is not None:
        ctx.send(differences, key=ctx.key, value=INT.pack(INT.unpack(most)[0] - INT.unpack(least)[0]))


@app.join(sum_table, count_table)
async def mean(ctx: Context, summed: bytes | None, counted: bytes | None) -> None:
    """Send a key's mean."""
    if summed is not None and counted is not None:
        ctx.send(means, key=ctx.key, value=DOUBLE.pack(LONG.unpack(summed)[0] / LONG.unpack(counted)[0]))
