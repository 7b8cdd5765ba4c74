"""Durable timers: each one fires once, or is cancelled, and not before its time; each firing has an id of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.timers import timers
from tests.sim import app
from tests.sim.asks import AsksPart
from tests.sim.effects import EffectsPart
from tests.sim.methods import again
from tests.sim.part import Host, Operation, Part, Stores

STORE = TOPIC = "timers"
NAMES = ("a", "b", "c")
WAITS_S = (0.0, 0.05, 0.5, 3.0, 10.0, 30.0)
PERIODS_S = (0.3, 2.0, 7.0)
WALL_INDEX, STREAM_INDEX = b"w", b"s"
AGAIN, SOON = "again", "soon"
"""What fires sets its timer again, for the moment for which it was due or for now; the digit behind is how often."""
MOMENT_EFFECTS = 50_000
"""Where the numbers of the effects that these ask for begin."""


OTHERS = frozenset(("recreate", "inputs"))
"""Features with which the stream's time may be of other inputs than the one that there is now."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimersPart(Part):
    """Inputs schedule timers, replace them and cancel them; what fires may fail, cancel itself, or go on."""

    name = "timers"
    stores = (STORE,)
    topics = (TOPIC,)
    limits = ((timers, "MESSAGES_AT_ONCE", (1, 3, 100)),)

    def make_input(self, key: str) -> str:
        random = self.random
        name = random.choice((*NAMES, f"t{random.randint(1, 1000)}"))
        if random.random() < 0.3:
            return f"unlater:{random.choice(NAMES)}"
        clock = random.choice(("wall", "wall", "wall", "stream"))
        # Where nothing is handled that could end them, they aren't to be many.
        every_s = random.choice((0, 0, 0, random.choice(PERIODS_S[-1:] if self.is_parking else PERIODS_S)))
        kind = random.choice(("plain", "plain", "flaky", "chain", "slow", f"{AGAIN}2", f"{SOON}2"))
        if kind[:-1] in (AGAIN, SOON):
            every_s = 0
        return f"later:{name},{clock},{random.choice(WAITS_S)},{every_s},{random.randint(1, 4)},{kind}"

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        return {"timers": stores[0], "encode_message": lambda message: (message.encode(), [])}

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        async def later(ctx: Context, argument: str) -> None:
            name, clock, wait_s, every_s, times, kind = argument.split(",")
            now_ms = host.clock.wall_ms() if clock == "wall" else ctx.timestamp_ms
            every_ms = int(float(every_s) * 1000)
            until_ms = now_ms + int(float(wait_s) * 1000) + every_ms * int(times) if every_ms else 0
            self._schedule(ctx, host, (name, clock, float(wait_s), every_ms), (until_ms, kind, ctx.message_id))

        async def unlater(ctx: Context, name: str) -> None:
            self._cancel(ctx, name)

        return {"later": later, "unlater": unlater}

    def messages(self, host: Host) -> Mapping[str, Operation]:
        async def fire(ctx: Context, argument: str) -> None:
            name, until_ms, kind, origin, number = argument.split(",")
            if ctx.timer != name:
                self.world.audit.violated(f"timers: {ctx.key} {name} is called {ctx.timer} when it fires")
            if kind == "slow":
                await host.clock.sleep(0.3)
            due_ms = ctx.timestamp_ms
            if kind == "flaky" and self.is_first_attempt(ctx.partition, ctx.key, name, due_ms):
                ctx.schedule(app.GARBAGE, after=timedelta(0), name=name)
                self.fail_with_garbage(ctx)
            fired = f"fired {name} {number} {due_ms} {self.latest_ms()} {ctx.offset} {ctx.message_id}"
            ctx.send(TOPIC, key=ctx.key, value=fired)
            if kind[:-1] in (AGAIN, SOON):
                await self._fire_again(ctx, host, name, kind, origin)
            elif int(until_ms) and due_ms >= int(until_ms):
                self._cancel(ctx, name)
            elif kind == "chain" and not int(until_ms):
                self._schedule(ctx, host, (name, "wall", 1.0, 0), (0, "plain", ctx.message_id))

        return {"fire": fire}

    async def _fire_again(self, ctx: Context, host: Host, name: str, kind: str, origin: str) -> None:
        """Set the timer again while it is to be, and do what a repeat of the same firing would be no more than once."""
        left = int(kind[-1])
        asks, effects = self.world.model.part(AsksPart), self.world.model.part(EffectsPart)
        if asks is not None:
            await asks.ask_once(ctx, f"{origin}#{left}", f"fire-{origin}")
        if effects is not None:
            effects.call(ctx, MOMENT_EFFECTS + int(origin.rpartition("-")[2]))
        if left:
            next_one = 0, f"{kind[:-1]}{left - 1}", origin
            if kind[:-1] == SOON:
                self._schedule(ctx, host, (name, "wall", 0.0, 0), next_one)
            else:
                message, number = self._message(name, next_one)
                _set(ctx, message, number, at=_EPOCH + timedelta(milliseconds=ctx.timestamp_ms), name=name)
                when = f"wall {ctx.timestamp_ms} {ctx.timestamp_ms} 0 {self.latest_ms()}"
                ctx.send(TOPIC, key=ctx.key, value=f"scheduled {name} {number} {when}")

    def _message(self, name: str, what: tuple[int, str, str]) -> tuple[str, int]:
        """Give the message of a timer that is set, and its number: each time that one is set has its own."""
        until_ms, kind, origin = what
        number = self.attempt("setting")
        return f"fire:{name},{until_ms},{kind},{origin},{number}", number

    def _schedule(
        self, ctx: Context, host: Host, when: tuple[str, str, float, int], what: tuple[int, str, str]
    ) -> None:
        name, clock, wait_s, every_ms = when
        message, number = self._message(name, what)
        wait_ms = int(wait_s * 1000)
        least_ms = (host.clock.wall_ms() if clock == "wall" else ctx.timestamp_ms) + wait_ms
        _set(
            ctx,
            message,
            number,
            after=timedelta(milliseconds=wait_ms),
            every=timedelta(milliseconds=every_ms) if every_ms else None,
            name=name,
            stream_time=clock == "stream",
        )
        most_ms = self.latest_ms() + wait_ms
        text = f"scheduled {name} {number} {clock} {least_ms} {most_ms} {every_ms} {self.latest_ms()}"
        ctx.send(TOPIC, key=ctx.key, value=text)

    def _cancel(self, ctx: Context, name: str) -> None:
        is_due = ctx.scheduled(name) is not None
        what = "cancelled" if ctx.cancel(name) else "late"
        if is_due != (what == "cancelled"):
            self.world.audit.violated(f"timers: {ctx.key} {name} is {what}, and scheduled() says {is_due}")
        ctx.send(TOPIC, key=ctx.key, value=f"{what} {name} {self.latest_ms()}")

    # --- the oracle ------------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        for partition in self.partitions:
            stream_ms = self.latest_input(partition)
            for key in self.folded(STORE, partition):
                if key[:1] == WALL_INDEX or (key[:1] == STREAM_INDEX and int.from_bytes(key[1:9]) <= stream_ms):
                    yield f"timers: {key!r} waits in partition {partition}"
            yield from self._replayed(partition).left(stream_ms)

    def check(self) -> Iterator[str]:
        for partition in self.partitions:
            for _, (what, *_) in self.events(TOPIC, partition):
                self.count(f"timer {what}")
            for record in self.world.cluster.log(TopicPartition(TOPIC, partition)).history:
                if record.value.startswith(b"fired") and record.timestamp != int(record.value.split()[3]):
                    yield f"times: {record.value!r} was sent at {record.timestamp}"
            yield from self._replayed(partition).wrong

    def _replayed(self, partition: int) -> _Book:
        book = _Book(self, partition)
        for key, (what, name, *numbers) in self.events(TOPIC, partition):
            book.read(what, (key, name), numbers)
        return book


def _set(ctx: Context, message: str, number: int, **when: Any) -> None:
    """Set a timer, one in two as the call of a private method."""
    schedule: Any = ctx.schedule
    schedule(*((again, message) if number % 2 else (message,)), **when)


@dataclass
class _Timer:
    """A timer as it was set for the time `number`; the times that it may be due first, and when it fired last."""

    number: str
    clock: str
    least_ms: int
    most_ms: int
    every_ms: int
    fired_ms: int | None = None

    def is_due(self, due_ms: int) -> bool:
        """Whether it may be due then, for the first time or again."""
        if self.fired_ms is None:
            return self.least_ms <= due_ms <= self.most_ms
        return bool(self.every_ms) and due_ms > self.fired_ms and (due_ms - self.fired_ms) % self.every_ms == 0

    @property
    def next_ms(self) -> int:
        """When it is due at the earliest."""
        return self.least_ms if self.fired_ms is None else self.fired_ms + self.every_ms

    @property
    def is_over(self) -> bool:
        return self.fired_ms is not None and not self.every_ms


class _Book:
    """The timers of a partition, as the events say, and what can't be of what they say."""

    def __init__(self, part: TimersPart, partition: int) -> None:
        self.wrong: list[str] = []
        self._part = part
        self._partition = partition
        self._set: dict[tuple[bytes, str], _Timer] = {}
        self._ids: dict[str, tuple[bytes, str]] = {}
        # What came due while its key's messages waited may be replaced or cancelled before its message's turn comes.
        self._in_hand: defaultdict[tuple[bytes, str], list[_Timer]] = defaultdict(list)

    def read(self, what: str, name: tuple[bytes, str], numbers: list[str]) -> None:
        """Take an event."""
        if what == "scheduled":
            number, clock, *times = numbers
            self._replace(name, int(times[3]))
            self._set[name] = _Timer(number, clock, *map(int, times[:3]))
        elif what == "fired":
            self._fire(name, numbers[0], *map(int, numbers[1:4]))
            self._identify(name, numbers[4])
        elif what == "cancelled":
            if name not in self._set:
                self._say(name, "was cancelled, and wasn't there")
            self._replace(name, int(numbers[0]))
        elif name in self._set:
            if not (self._part.is_parking and self._set[name].next_ms <= int(numbers[0])):
                self._say(name, f"hadn't fired, and wasn't there when it was to be cancelled: {self._set[name]}")
            self._replace(name, int(numbers[0]))

    def _replace(self, name: tuple[bytes, str], latest_ms: int) -> None:
        before = self._set.pop(name, None)
        if before is not None and self._part.is_parking and before.next_ms <= latest_ms:
            self._in_hand[name].append(before)

    def _fire(self, name: tuple[bytes, str], number: str, due_ms: int, latest_ms: int, offset: int) -> None:
        held = [*self._in_hand[name], *filter(None, [self._set.get(name)])]
        timer = next((timer for timer in held if timer.number == number and timer.is_due(due_ms)), None)
        if timer is None:
            self._say(name, f"of {number} fired at {due_ms}, but there is only {held}")
            return
        timer.fired_ms = due_ms
        if timer.is_over and timer is self._set.get(name):
            del self._set[name]
        world = self._part.world
        if OTHERS.isdisjoint(world.features) and timer.clock == "stream":
            # What is handled later than it came due has a later input's offset in its place, not an earlier one's.
            # Where an operator set the offset, stream time is that of all inputs handled before: some of
            # them, finished in lanes, may be behind it.
            is_bounded = not (self._part.is_parking or world.audit.has_moved(self._partition))
            # No input is ahead of all clocks.
            latest_ms = min(latest_ms, self._part.latest_input(self._partition, offset if is_bounded else None))
        if due_ms > latest_ms:
            self._say(name, f"is due at {due_ms}, and fired before {latest_ms} by its clock, the {timer.clock}'s")

    def _identify(self, name: tuple[bytes, str], id: str) -> None:
        # Inputs that are handled again set the same timers; no other timer may have the id.
        may_repeat = self._part.world.audit.has_moved(self._partition) and self._ids.get(id) == name
        if id in self._ids and not may_repeat:
            self._say(name, f"fired as {id}, and {self._ids[id]} had fired as that")
        self._ids[id] = name

    def _say(self, name: tuple[bytes, str], what: str) -> None:
        self.wrong.append(f"timers: {name} of partition {self._partition} {what}")

    def left(self, stream_ms: int) -> Iterator[str]:
        """Say what should have fired; whatever has fired once is in the store if it isn't over."""
        for name, timer in self._set.items():
            if timer.fired_ms is None and (timer.clock == "wall" or timer.most_ms <= stream_ms):
                yield f"timers: {name} of partition {self._partition} never fired: {timer}"
