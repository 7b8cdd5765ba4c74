"""Plays the tenure for the runner of effects, and effects that note their calls."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from actors.ports import TopicPartition
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context, enter_message
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.outbox.calls import EffectRecord, line_of
from actors.runtime.outbox.effects import Effects
from actors.runtime.spec import ActorSpec, InputSpec
from actors.runtime.task.context import PoisonTracking
from actors.runtime.task.handling import Handling
from actors.testing.fakes.ports import FakeClock
from stores._core.overlay import MessageScope, Overlay, with_metadata
from stores._core.record import METADATA_BYTES, Position
from stores.memory import MemoryStore
from tests.sim.fakes.loop import VirtualLoop

SOURCE = TopicPartition("in", 0)


def same(value):
    return value


def encode(message):
    if not isinstance(message, str):
        raise TypeError(f"the actor takes text, not {message!r}")
    return message.encode(), []


@dataclass
class Bench:
    """Plays the tenure: messages and turns in savepoints, commits into a store that outlives `take_over`."""

    effects: dict[str, Effect]
    clock: object = field(default_factory=FakeClock)
    committed: MemoryStore = field(default_factory=MemoryStore)
    handled: list = field(default_factory=list)
    epoch: int = 0
    offset: int = 0
    fails: bool = False

    def __post_init__(self):
        self.store = Store(
            "work-effects", encode_key=same, decode_key=same, encode_value=same, decode_value=same, placement="task"
        )
        self.spec = ActorSpec(
            name="work",
            inputs=(InputSpec("in", self.handle, bytes.decode, bytes.decode),),
            partition_count=1,
            stores=(self.store,),
            changelogs={},
            encode_message=encode,
            effects=self.store,
            effect_functions=self.effects,
        )
        self.take_over()

    def take_over(self):
        """Forget all that isn't committed, as a crash does."""
        self.epoch += 1
        scope = MessageScope(self.epoch, self.offset - 1, 0)
        self.overlay = Overlay(self.committed, scope)
        self.woken = asyncio.Event()
        self.state = TaskState(
            actor="work",
            source=SOURCE,
            home=SOURCE,
            partition=0,
            partition_count=1,
            scope=scope,
            overlays={self.store: self.overlay},
            max_record_bytes={"work-effects": 100_000},
            resolve_output=same,
            outputs=[],
        )
        self.meters = TaskMeters()
        self.runner = Effects(
            self.spec,
            self.state,
            self.committed,
            self.clock,
            epoch=self.epoch,
            wake=lambda: self.woken.set(),
            meters=self.meters,
        )
        self.handling = Handling(self.spec, None, PoisonTracking(), lambda: False, self.clock.sleep)

    async def handle(self, ctx, value):
        if self.fails:
            raise ValueError("not now")
        self.handled.append((ctx.key, value, ctx.message_id))

    def message(self, key, function, *args, **kwargs):
        """Handle a message whose handler calls an effect, and then raises if the bench says so."""
        self.state.scope.source_offset, self.offset = self.offset, self.offset + 1
        ctx = Context(self.state, InternalRecord(self.offset - 1, 0, key, b"x"), key.decode(), key)
        enter_message(ctx)
        try:
            return self.runner.call(ctx, function, args, kwargs)
        finally:
            ctx._state = None
            (self.state.scope.rollback if self.fails else self.state.scope.release)()

    def position(self):
        return Position(self.offset, 0, 0, self.epoch, "changelog")

    def commit(self):
        self.runner.before_commit()
        frozen = self.overlay.freeze()
        writes = [(key, with_metadata(entry)) for key, entry in frozen.items()]
        self.committed.apply(writes, self.position())
        self.overlay.settle()
        self.runner.committed()

    async def turns(self):
        taken = list(self.runner.take())
        for internal in taken:
            await self.handling.message(self.state, internal.record, internal)
            internal.handled()
        return len(taken)

    async def settle(self):
        """Do what a tenure does until nothing is under way."""
        while self.runner.is_busy or self.overlay.writes:
            wait_s = self.runner.wait_s()
            if wait_s > 0 and not self.overlay.writes:
                self.woken.clear()
                async with asyncio.timeout(600):
                    await self.woken.wait()
            await self.turns()
            if self.overlay.writes:
                self.commit()

    async def pass_time(self, seconds):
        """Let time pass as a tenure that waits does: until it is over, or something is due."""
        until_s = self.clock.monotonic() + seconds
        await self.settle()
        while (left_s := until_s - self.clock.monotonic()) > 0:
            await self.clock.sleep(max(0.001, min(left_s, self.runner.wait_s())))
            await self.settle()

    def records(self):
        return [
            (line_of(key), msgspec.json.decode(raw[METADATA_BYTES:], type=EffectRecord))
            for key, raw in self.committed.scan()
        ]


def play(main):
    """Run a test in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def effect(function, **options):
    return Effect(function, function.__name__, **options)


def bench(*effects, **options):
    return Bench({one.name: one for one in effects}, **options)


class Log:
    """Effects that note their calls."""

    def __init__(self, *, fails=0, takes_s=0.0, gives=None, **options):
        self.calls = []
        self.values = []
        self.running = 0
        self.most = 0
        self.times = []

        async def work(call, value):
            self.calls.append(call)
            self.values.append(value)
            self.times.append(asyncio.get_running_loop().time())
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(takes_s)
            finally:
                self.running -= 1
            if fails > len(self.calls) - 1:
                raise OSError(f"no {value}")
            return gives

        self.effect = effect(work, **options)
