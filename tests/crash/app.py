"""The app under fire: seven actors.

`summarise`: count, sum, min and max per key, and an echo of every running value. The echo goes to the input's own
partition number, so that it can be compared with the input record by record.

`join`: orders and payments, two inputs that meet in one state. The echo tells in which order they were handled.

`Chores`: timers, values that expire, and effects that write lines to a file outside. What happens is said, in the
commit in which it happens, to the input's own partition number too.

`count_clicks`: clicks out of order, counted in windows and in sessions, whose closes say what was in them. Clicks that
are too late go to a topic of their own.

`match`: offers and bids out of order, in an outer join that says what it was called for, and when. Those that are too
late go to a topic of their own.
"""

import asyncio
import json
import os
from datetime import timedelta
from typing import Any

import msgspec

from actors import (
    Actor,
    App,
    Context,
    EffectCall,
    OnError,
    Rejected,
    Session,
    Tumbling,
    Window,
    aggregates,
    receive,
)
from actors.runtime.handlers import expiry
from tests.crash import rules
from tests.crash.checks import BALANCE_MODULUS

NAME = os.environ["APP_NAME"]
EFFECTS_FILE = os.environ.get("EFFECTS_FILE", os.devnull)
# A run's values expire while it lasts, so that removals come between faults as well as messages do.
expiry.PASS_REST_S = 0.3
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    topic_replication_factor=int(os.environ.get("REPLICATION", "3")),
)


class Stats(msgspec.Struct):
    """What was seen of a key so far."""

    count: int
    sum: int
    min: int
    max: int


class Echo(msgspec.Struct):
    """An input, and its key's state after it."""

    offset: int
    value: int
    stats: Stats


source = app.topic(f"{NAME}-in", key_type=str, value_type=int)
echoes = app.topic(f"{NAME}-echo", key_type=str, value_type=Echo)
stats = app.store("stats", key_type=str, value_type=Stats)
# Nobody reads it: its content is compared with the topic at the end of a run.
all_stats = app.view(stats)


@app.actor(source, stores=[stats])
async def summarise(ctx: Context, value: int) -> None:
    """Fold the value into its key's state."""
    held = stats.get(ctx.key)
    new = (
        Stats(1, value, value, value)
        if held is None
        else Stats(held.count + 1, held.sum + value, min(held.min, value), max(held.max, value))
    )
    stats.set(ctx.key, new)
    ctx.send(echoes, key=ctx.key, value=Echo(ctx.offset, value, new), partition=ctx.partition)


class Account(msgspec.Struct):
    """What was ordered and paid under a key; `balance` depends on the order in which that was handled."""

    orders: int = 0
    payments: int = 0
    balance: int = 0


class Joined(msgspec.Struct):
    """A record of one of the inputs, and its key's state after it."""

    input: str
    offset: int
    value: int
    stats: Account


orders = app.topic(f"{NAME}-orders", key_type=str, value_type=int)
payments = app.topic(f"{NAME}-payments", key_type=str, value_type=int)
joined = app.topic(f"{NAME}-joined", key_type=str, value_type=Joined)
accounts = app.store("accounts", key_type=str, value_type=Account)


@app.actor(orders, payments, stores=[accounts])
async def join(ctx: Context, value: int) -> None:
    """Take an order."""
    account = accounts.get(ctx.key) or Account()
    account.orders += 1
    keep(ctx, account, value, factor=31)


@app.on(join, payments)
async def paid(ctx: Context, value: int) -> None:
    """Take a payment."""
    account = accounts.get(ctx.key) or Account()
    account.payments += 1
    keep(ctx, account, value, factor=37)


def keep(ctx: Context, account: Account, value: int, *, factor: int) -> None:
    """Fold the value into the balance."""
    account.balance = (factor * account.balance + value) % BALANCE_MODULUS
    accounts.set(ctx.key, account)
    ctx.send(joined, key=ctx.key, value=Joined(ctx.topic, ctx.offset, value, account), partition=ctx.partition)


class Ring(msgspec.Struct, tag="ring"):
    """A timer's message."""

    number: int


class Done(msgspec.Struct, tag="done"):
    """An effect's result."""

    label: str


class Said(msgspec.Struct):
    """Something that happened: `what`, to the message, the value or the effect called `name`."""

    what: str
    name: str
    offset: int


chores = app.topic(f"{NAME}-chores", key_type=str)
said = app.topic(f"{NAME}-said", key_type=str, value_type=Said)


def say(ctx: Context, what: str, name: object) -> None:
    """Say it with what else the message does."""
    ctx.send(said, key=ctx.key, value=Said(what, str(name), ctx.offset), partition=ctx.partition)


def act(ctx: Context, label: str) -> None:
    """Have something done outside; by a function that waits, or by one that blocks."""
    ctx.effect(post if rules.number_of(label) // 10 % 2 else stamp, label)
    say(ctx, "asked", label)


def expire_kept(ctx: Context, number: int) -> None:
    """Say that a value expired."""
    say(ctx, "expired", number)
    if rules.expiry_acts(number):
        act(ctx, f"expired-{number}")


kept = app.store("kept", key_type=str, value_type=int, expires=True, on_expire=expire_kept, placement="task")


def _write(call: EffectCall, label: str) -> None:
    line = {
        "id": call.idempotency_key,
        "key": call.key.decode(),
        "label": label,
        "token": call.fencing_token,
        "attempt": call.attempt,
    }
    # A disk that is full may take a part of a line: the next one doesn't go on with it.
    raw = b"\n" + json.dumps(line).encode() + b"\n"
    file = os.open(EFFECTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(file, raw) != len(raw):
            raise OSError(f"{EFFECTS_FILE}: a part of the line of {label} wasn't written")
    finally:
        os.close(file)
    if rules.act_fails(label, call.attempt):
        raise ValueError(f"attempt {call.attempt} of {label} has to fail")


_WAITS: dict[str, Any] = {
    "attempts": 0,
    "first_wait": timedelta(milliseconds=100),
    "longest_wait": timedelta(seconds=1),
}


@app.effect(**_WAITS)
async def post(call: EffectCall, label: str) -> Done | None:
    """Write a line, after a moment in which the worker may die."""
    await asyncio.sleep(0.01)
    _write(call, label)
    await asyncio.sleep(0.01)
    return Done(label) if rules.act_answers(label) else None


@app.effect(**_WAITS)
def stamp(call: EffectCall, label: str) -> Done | None:
    """Write a line at once."""
    _write(call, label)
    return Done(label) if rules.act_answers(label) else None


# To stop at a message that is to be refused would end the run; what is skipped and shouldn't be is found missing.
# Ticks go to all partitions.
@app.actor(chores, stores=[kept], timers=True, effects=[post, stamp], on_error=OnError(then="skip"), misplaced="warn")
class Chores(Actor[list]):
    """Rings, keeps and acts; its state are the numbers that it was to keep lately."""

    state_ttl = timedelta(milliseconds=rules.STATE_TTL_MS)

    @receive
    def wind(self, message: rules.Wind) -> None:
        """Ring later."""
        say(self.ctx, "handled", message.number)
        self._wind(message.number, timedelta(milliseconds=message.wait_ms), by_stream=message.by_stream)

    def _wind(self, number: int, after: timedelta, *, by_stream: bool = False) -> None:
        self.ctx.schedule(Ring(number), after=after, name=str(number), stream_time=by_stream)

    @receive
    def unwind(self, message: rules.Unwind) -> None:
        """Don't ring."""
        say(self.ctx, "handled", message.number)
        if self.ctx.cancel(str(message.target)):
            say(self.ctx, "cancelled", message.target)

    @receive
    def ring(self, message: Ring) -> None:
        """Ring."""
        say(self.ctx, "rang", message.number)
        if rules.ring_acts(message.number):
            act(self.ctx, f"ring-{message.number}")

    @receive
    def keep_it(self, message: rules.Keep) -> None:
        """Keep the number, in a store and in the state."""
        say(self.ctx, "handled", message.number)
        self._keep(message.number, message.ttl_ms)

    def _keep(self, number: int, ttl_ms: int | None) -> None:
        kept.set(str(number), number, ttl=None if ttl_ms is None else timedelta(milliseconds=ttl_ms))
        self.state.append(number)

    async def on_expire(self) -> None:
        """Give the numbers out."""
        for number in self.state:
            say(self.ctx, "left", number)
        if rules.expiry_acts(self.state[0]):
            act(self.ctx, f"left-{self.state[0]}")

    @receive
    def call(self, message: rules.Call) -> None:
        """Act."""
        say(self.ctx, "handled", message.number)
        act(self.ctx, f"call-{message.number}")

    @receive
    def done(self, message: Done) -> None:
        """Take a result."""
        say(self.ctx, "done", message.label)

    @receive
    def refuse(self, message: rules.Refuse) -> None:
        """Do everything, and raise."""
        self._wind(message.number, timedelta())
        self._keep(message.number, 1)
        self.call(rules.Call(message.number))
        raise (Rejected if message.number // 10 % 2 else ValueError)(f"{message.number} is to be refused")

    @receive
    def tick(self, message: rules.Tick) -> None:
        """Let time go on."""
        say(self.ctx, "handled", message.number)


class Final(msgspec.Struct):
    """What was in a window of a store when it closed."""

    store: str
    start_ms: int
    end_ms: int
    count: int
    sum: int


Counted = tuple[int, int]
grace = timedelta(milliseconds=rules.GRACE_MS)
retention = timedelta(minutes=1)
counted = aggregates.Aggregate(
    (0, 0),
    lambda held, number: (held[0] + 1, held[1] + number),
    lambda one, two: (one[0] + two[0], one[1] + two[1]),
    state_type=Counted,
)
clicks = app.topic(f"{NAME}-clicks", key_type=str, value_type=rules.Click, timestamp=lambda click: click.at_ms)
late_clicks = app.topic(f"{NAME}-late", key_type=str, value_type=rules.Click)
finals = app.topic(f"{NAME}-finals", key_type=str, value_type=Final)
span, session = Tumbling(milliseconds=rules.SPAN_MS), Session(timedelta(milliseconds=rules.GAP_MS))
spans = app.window_store("spans", span, grace=grace, retention=retention, aggregate=counted)
sittings = app.window_store("sittings", session, grace=grace, retention=retention, aggregate=counted)


@app.actor(clicks, stores=[spans, sittings], late=late_clicks)
async def count_clicks(ctx: Context, click: rules.Click) -> None:
    """Count a click."""
    spans.add(ctx.key, click.number)
    sittings.add(ctx.key, click.number)


@spans.on_close
async def span_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a span."""
    ctx.send(finals, key=ctx.key, value=Final(spans.name, *window, *value))


@sittings.on_close
async def sitting_closed(ctx: Context, window: Window, value: Counted) -> None:
    """Say what was in a session."""
    ctx.send(finals, key=ctx.key, value=Final(sittings.name, *window, *value))


class Called(msgspec.Struct):
    """What the join was called for, by the numbers of the records: a pair, or one without a match; and when."""

    offer: int | None
    bid: int | None
    at_ms: int
    stream_ms: int


offers, bids = (
    app.topic(f"{NAME}-{name}", key_type=str, value_type=rules.Click, timestamp=lambda half: half.at_ms)
    for name in ("offers", "bids")
)
late_halves = app.topic(f"{NAME}-late-halves", key_type=str, value_type=rules.Click)
called = app.topic(f"{NAME}-called", key_type=str, value_type=Called)


@app.join(
    offers,
    bids,
    within=(timedelta(milliseconds=rules.BEFORE_MS), timedelta(milliseconds=rules.AFTER_MS)),
    how="outer",
    grace=grace,
    late=late_halves,
)
async def match(ctx: Context, offer: rules.Click | None, bid: rules.Click | None) -> None:
    """Say what it is called for."""
    numbers = (None if half is None else half.number for half in (offer, bid))
    ctx.send(called, key=ctx.key, value=Called(*numbers, ctx.timestamp_ms, ctx.stream_ms))


class Delivery(msgspec.Struct):
    """What the join by a foreign key was called for, by the numbers of the rows; None where there is no depot."""

    parcel: int
    depot: int | None


parcels = app.table(app.topic(f"{NAME}-parcels", key_type=str, value_type=rules.Parcel), name="parcels")
depots = app.table(app.topic(f"{NAME}-depots", key_type=str, value_type=rules.Depot), name="depots")
deliveries = app.topic(f"{NAME}-deliveries", key_type=str, value_type=Delivery)


@app.join(parcels, depots, on="depot", how="left")
async def deliver(ctx: Context, parcel: rules.Parcel | None, depot: rules.Depot | None) -> None:
    """Say what it is called for."""
    told = None if parcel is None else Delivery(parcel.number, None if depot is None else depot.number)
    ctx.send(deliveries, key=ctx.key, value=told)
