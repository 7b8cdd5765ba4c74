"""The app of the run: actors that have everything in hand at once, half of it with handlers of 20 ms.

`count`: closes of tumbling, hopping, sliding, session, calendar-day and chained windows, and changes once per interval.
Retention is as near to the close as it may be, but for the days, which have the default.

`match` and `pay`: an outer and a left join, whose lone records are handed out when their windows close.

`Chores`: timers by both clocks, effects and their results, values and states that expire, and messages that are parked
until the number in BROKEN_FILE is beyond theirs.

`question` asks `Teller`, with several keys at a time.
"""

import asyncio
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from actors import (
    Actor,
    App,
    Context,
    EffectCall,
    Every,
    Hopping,
    OnError,
    Session,
    Sliding,
    Tumbling,
    Window,
    aggregates,
    receive,
)
from actors.runtime.handlers import expiry
from tests.inhand import rules

NAME = os.environ["APP_NAME"]
CALLS_FILE = os.environ.get("CALLS_FILE", os.devnull)
BROKEN_FILE = Path(os.environ.get("BROKEN_FILE", os.devnull))
# Values expire while the run lasts, so that removals come between faults as well as messages do.
expiry.PASS_REST_S = 0.3
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    topic_replication_factor=1,
)


async def take_time(number: int) -> None:
    """Take as long as the number says."""
    if rules.is_slow(number):
        await asyncio.sleep(rules.SLOW_S)


# --- windows -----------------------------------------------------------------------------------------------------


class Final(msgspec.Struct):
    """What was in a window of a store when it closed, or at `until_ms` when it was handed out before."""

    store: str
    start_ms: int
    end_ms: int
    count: int
    sum: int
    until_ms: int = 0


Counted = tuple[int, int]
counted = aggregates.Aggregate(
    (0, 0),
    lambda state, number: (state[0] + 1, state[1] + number),
    lambda left, right: (left[0] + right[0], left[1] + right[1]),
    state_type=Counted,
)
grace = timedelta(milliseconds=rules.GRACE_MS)


def least(length_ms: int) -> timedelta:
    """Give the shortest retention that windows of a length may have."""
    return timedelta(milliseconds=length_ms + rules.GRACE_MS)


def click_topic(name: str) -> object:
    """Give a topic of clicks by their own time."""
    return app.topic(f"{NAME}-{name}", key_type=str, value_type=rules.Click, timestamp=lambda click: click.at_ms)


clicks = click_topic("clicks")
finals = app.topic(f"{NAME}-finals", key_type=str, value_type=Final)
spans = app.window_store(
    "spans",
    Tumbling(milliseconds=rules.SPAN_MS),
    grace=grace,
    retention=least(rules.SPAN_MS),
    aggregate=counted,
    emit=Every(milliseconds=rules.EVERY_MS),
)
shifts = app.window_store(
    "shifts", Tumbling(milliseconds=rules.SHIFT_MS), grace=grace, retention=least(rules.SHIFT_MS), aggregate=counted
)
hops = app.window_store(
    "hops",
    Hopping(timedelta(milliseconds=rules.HOP_MS), timedelta(milliseconds=rules.SPAN_MS)),
    grace=grace,
    retention=least(rules.HOP_MS),
    aggregate=counted,
)
slides = app.window_store(
    "slides",
    Sliding(timedelta(milliseconds=rules.SLIDE_MS)),
    grace=grace,
    retention=least(2 * rules.SLIDE_MS),
    aggregate=counted,
)
sittings = app.window_store(
    "sittings",
    Session(timedelta(milliseconds=rules.GAP_MS)),
    grace=grace,
    retention=least(rules.GAP_MS),
    aggregate=counted,
)
days = app.window_store("days", Tumbling(days=1, tz=rules.ZONE), grace=grace, aggregate=counted)


@app.actor(clicks, stores=[spans, shifts, hops, slides, sittings, days])
async def count(ctx: Context, click: rules.Click) -> None:
    """Count a click."""
    for store in (spans, hops, slides, sittings, days):
        store.add(ctx.key, click.number)


async def say_final(ctx: Context, store: str, window: Window, value: Counted, until_ms: int = 0) -> None:
    """Say what was in a window."""
    await take_time(value[1])
    ctx.send(finals, key=ctx.key, value=Final(store, *window, *value, until_ms), partition=ctx.partition)


@spans.on_close
async def span_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Add a span to its shift."""
    await say_final(ctx, "spans", window, value)
    shifts.add(ctx.key, value[1])


@spans.on_emit
async def span_changed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what is in a span that changed."""
    await say_final(ctx, "emits", window, value, ctx.timestamp_ms + 1)


@shifts.on_close
async def shift_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a shift."""
    await say_final(ctx, "shifts", window, value)


@hops.on_close
async def hop_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a hopping window."""
    await say_final(ctx, "hops", window, value)


@slides.on_close
async def slide_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a sliding window."""
    await say_final(ctx, "slides", window, value)


@sittings.on_close
async def sitting_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a session."""
    await say_final(ctx, "sittings", window, value)


@days.on_close
async def day_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a day."""
    await say_final(ctx, "days", window, value)


# --- joins -------------------------------------------------------------------------------------------------------


class Called(msgspec.Struct):
    """What a join was called for, by the numbers of the records: a pair, or one without a match; and when."""

    left: int | None
    right: int | None
    stream_ms: int


within = (timedelta(milliseconds=rules.BEFORE_MS), timedelta(milliseconds=rules.AFTER_MS))
waits = timedelta(seconds=1)
offers, bids, orders, payments = (click_topic(name) for name in ("offers", "bids", "orders", "payments"))
matched, paid = (app.topic(f"{NAME}-{name}", key_type=str, value_type=Called) for name in ("matched", "paid"))
late_match, late_pay = (
    app.topic(f"{NAME}-{name}", key_type=str, value_type=rules.Click) for name in ("late-match", "late-pay")
)


async def say_called(ctx: Context, topic: object, left: rules.Click | None, right: rules.Click | None) -> None:
    """Say what a join is called for."""
    numbers = [None if half is None else half.number for half in (left, right)]
    if None in numbers:
        await asyncio.sleep(rules.SLOW_S)
    ctx.send(topic, key=ctx.key, value=Called(*numbers, ctx.stream_ms), partition=ctx.partition)


@app.join(offers, bids, within=within, how="outer", grace=grace, late=late_match, max_task_idle=waits)
async def match(ctx: Context, offer: rules.Click | None, bid: rules.Click | None) -> None:
    """Join both sides."""
    await say_called(ctx, matched, offer, bid)


@app.join(orders, payments, within=within, how="left", grace=grace, late=late_pay, max_task_idle=waits)
async def pay(ctx: Context, order: rules.Click, payment: rules.Click | None) -> None:
    """Join orders with their payments."""
    await say_called(ctx, paid, order, payment)


# --- chores ------------------------------------------------------------------------------------------------------


class Said(msgspec.Struct):
    """Something that happened to a number; `value` is an answer."""

    what: str
    number: int
    value: int = 0


chores, tellers = (app.topic(f"{NAME}-{name}", key_type=str) for name in ("chores", "tellers"))
questions = app.topic(f"{NAME}-questions", key_type=str, value_type=rules.Question)
said = app.topic(f"{NAME}-said", key_type=str, value_type=Said)


def tell(ctx: Context, what: str, number: int, value: int = 0) -> None:
    """Say it with what else the message does."""
    ctx.send(said, key=ctx.key, value=Said(what, number, value), partition=ctx.partition)


async def say(ctx: Context, what: str, number: int, value: int = 0) -> None:
    """Say it, and take time."""
    tell(ctx, what, number, value)
    await asyncio.sleep(rules.SLOW_S)


async def expire(ctx: Context, number: int) -> None:
    """Say that a value expired. Hooks have 2 % of the time, so few of them are slow."""
    tell(ctx, "expired", number)
    if number % 40 == 0:
        await asyncio.sleep(rules.SLOW_S)


kept = app.store("kept", key_type=str, value_type=int, expires=True, on_expire=expire, placement="task")


def note(call: EffectCall, what: str) -> None:
    """Write down where a call is."""
    line = {"id": call.idempotency_key, "what": what, "pid": os.getpid(), "at_ns": time.monotonic_ns()}
    file = os.open(CALLS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def is_broken(number: int) -> bool:
    """Return whether messages from this number on are refused now."""
    first = BROKEN_FILE.read_text()
    return bool(first) and number >= int(first)


@app.effect(attempts=0, first_wait=timedelta(milliseconds=100), longest_wait=timedelta(seconds=1))
async def post(call: EffectCall, number: int) -> rules.Done:
    """Take a while outside."""
    note(call, "begun")
    await asyncio.sleep(rules.CALL_S)
    note(call, "ended")
    return rules.Done(number)


@app.actor(
    chores,
    stores=[kept],
    timers=True,
    effects=[post],
    on_error=OnError(retries=1, first_wait=timedelta(milliseconds=20), then="park"),
)
class Chores(Actor[list]):
    """Does everything at once; its state are the numbers of lately."""

    state_ttl = timedelta(milliseconds=rules.TTL_MS)

    @receive
    async def do(self, job: rules.Job) -> None:
        """Have everything in hand for a number."""
        number = job.number
        tell(self.ctx, "handled", number)
        wait = timedelta(milliseconds=number * 37 % 3_000)
        self.ctx.schedule(rules.Ring(number), after=wait, name=str(number), stream_time=number % 3 == 1)
        kept.set(str(number), number, ttl=timedelta(milliseconds=1 + number * 53 % 4_000))
        self.ctx.effect(post, number)
        self.state.append(number)
        if rules.is_refused(number) and is_broken(number):
            raise ValueError(f"{number} is refused until {BROKEN_FILE} has a larger number")

    @receive
    async def ring(self, message: rules.Ring) -> None:
        """Ring."""
        await say(self.ctx, "rang", message.number)

    @receive
    async def done(self, message: rules.Done) -> None:
        """Take a result."""
        await say(self.ctx, "done", message.number)

    @receive
    def tick(self, _: rules.Tick) -> None:
        """Let time go on."""

    def on_expire(self) -> None:
        """Give the numbers out."""
        for number in self.state:
            tell(self.ctx, "left", number)


# --- asks --------------------------------------------------------------------------------------------------------


@app.actor(tellers)
class Teller(Actor[int]):
    """Counts questions; its state is their number."""

    @receive
    async def tell(self, message: rules.Question) -> int:
        """Answer with the count."""
        self.state += 1
        await say(self.ctx, "told", message.number)
        return self.state


@app.actor(questions, concurrency=8)
async def question(ctx: Context, message: rules.Question) -> None:
    """Ask, and say what was answered."""
    answer = await ctx.ask(Teller, ctx.key, message, timeout=timedelta(minutes=5))
    await say(ctx, "heard", message.number, answer)
