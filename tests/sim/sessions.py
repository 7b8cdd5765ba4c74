"""Class actors whose state expires: each state has one end, by its hook or by a message, and no message pays for it.

A hook that raises when a message comes is called again before the message is handled. Where failed messages are parked
or skipped, the message may begin a new state in place of the expired one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, ClassVar

from actors.runtime.handlers import expiry
from actors.runtime.handlers.actor import Actor, expiry_of, handler_of, receive
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from tests.sim.asks import AsksPart
from tests.sim.part import Host, Operation, Part, Stores, now_ms_of, write_ms_of
from tests.sim.rows import RowsPart

STORE = TOPIC = "sessions"
TTLS_S = (0.3, 2.0, 8.0)
HOOK_FAILS = (0, 0, 1, 3)
"""How often the hook of a state raises before it doesn't."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Go on with the session of the key, or begin one."""

    number: int


@dataclass(frozen=True, slots=True)
class Leave:
    """End the session of the key."""


@dataclass
class Session:
    """The state: which message began it, and how many there were."""

    began: int = -1
    visits: int = 0


class Visitor(Actor[Session]):
    """The actor; `part` is set in a class of its own for each process."""

    part: ClassVar[SessionsPart]

    @receive
    async def visit(self, message: Visit) -> None:
        part, ctx = self.part, self.ctx
        if self.state.began < 0:
            self.state.began = ctx.offset
        self.state.visits += 1
        if message.number % 6 == 0 and part.is_first_attempt(ctx.partition, ctx.offset):
            part.fail_with_garbage(ctx)
        asks = part.world.model.part(AsksPart)
        if asks is not None and message.number % 3 == 0:
            await asks.ask_once(ctx, f"{ctx.message_id}#visit", f"visit{message.number}")
        part.say(ctx, "visited", self.state)

    @receive
    async def leave(self, message: Leave) -> None:
        self.part.say(self.ctx, "left", self.state)
        self.forget()
        rows = self.part.world.model.part(RowsPart)
        if rows is not None:
            rows.forget(self.ctx)

    async def on_expire(self) -> None:
        self.part.expire(self.ctx, self.state)


class SessionsPart(Part):
    """Inputs come when a state has expired, before it, and after it was removed."""

    name = "sessions"
    stores = (STORE,)
    topics = (TOPIC,)
    limits = ((expiry, "PASS_REST_S", (0.3, 2.0, 10.0)), (expiry, "SLICE_KEYS", (1, 2, 500)))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ttl = timedelta(seconds=self.random.choice(TTLS_S))
        self._numbers = 0
        self._raised: set[tuple[bytes, int, int]] = set()

    def make_input(self, key: str) -> str:
        if self.random.random() < 0.15:
            return "leave:0"
        self._numbers += 1
        return f"visit:{self._numbers}"

    def make_stores(self, host: Host) -> Stores:
        sessions: Store[Any, Any] = Store(
            STORE,
            encode_key=str.encode,
            decode_key=bytes.decode,
            encode_value=lambda session: json.dumps([session.began, session.visits]).encode(),
            decode_value=lambda raw: Session(*json.loads(raw)),
            ttl_ms=self._ttl // timedelta(milliseconds=1),
            on_expire=expiry_of(self._actor()),
        )
        return (sessions,)

    @property
    def _stops(self) -> bool:
        """Whether the policy of the run doesn't go on behind a message that failed."""
        return self.world.features.isdisjoint(("park", "versions"))

    def _actor(self) -> type[Visitor]:
        return type("Visitor", (Visitor,), {"part": self})

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        handle = handler_of(self._actor(), stores[0], stops=self._stops)

        def taking(message: Callable[[str], Any]) -> Operation:
            async def take(ctx: Context, argument: str) -> None:
                await handle(ctx, message(argument))

            return take

        return {"visit": taking(lambda argument: Visit(int(argument))), "leave": taking(lambda _: Leave())}

    def say(self, ctx: Context, what: str, session: Session) -> None:
        """Tell what became of a session, and when."""
        times = f"{now_ms_of(ctx)} {write_ms_of(ctx)}"
        ctx.send(TOPIC, key=ctx.key, value=f"{what} {session.began} {session.visits} {times}")

    def expire(self, ctx: Context, session: Session) -> None:
        """Act as the hook, which raises some times."""
        fails = Random(f"{self._seed} {ctx.key} {session.began} {session.visits}").choice(HOOK_FAILS)
        attempt = self.attempt(ctx.partition, ctx.key, session.began, session.visits, "hook")
        if attempt <= fails:
            self._raised.add((ctx.key.encode(), session.began, session.visits))
            self.fail_with_garbage(ctx)
        self.say(ctx, "expired", session)

    # --- the oracle ------------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        for partition in self.partitions:
            for key, raw in self.folded(STORE, partition).items():
                yield f"sessions: {key!r} is there: {raw!r}"

    def check(self) -> Iterator[str]:
        for partition in self.partitions:
            yield from self._replayed(partition)

    def _replayed(self, partition: int) -> Iterator[str]:
        held: dict[bytes, tuple[int, int, int]] = {}
        ttl_ms = self._ttl // timedelta(milliseconds=1)
        for key, (what, began, visits, at_ms, written_ms) in self.events(TOPIC, partition):
            self.count(f"session {what}")
            before = held.get(key)
            may_be_lost = not self._stops and before is not None and (key, *before[:2]) in self._raised
            if before is not None and may_be_lost and what != "expired" and int(visits) < 2:
                before = None if int(at_ms) >= before[2] else before
            wrong = self._misfit(what, (int(began), int(visits), int(at_ms)), before)
            if wrong is not None:
                yield f"sessions: {key!r} of partition {partition} {what} {began} {visits} at {at_ms}: {wrong}"
            if what == "visited":
                held[key] = int(began), int(visits), int(written_ms) + ttl_ms
            else:
                held.pop(key, None)
        for key, session in held.items():
            yield f"sessions: {key!r} of partition {partition}: the hook never ran for {session}"

    @staticmethod
    def _misfit(what: str, said: tuple[int, int, int], held: tuple[int, int, int] | None) -> str | None:
        """Say why an event can't follow what the key had: (first message, visits, when it expires)."""
        began, visits, at_ms = said
        if what == "expired":
            if held is None or (began, visits) != held[:2]:
                return f"there was {held}"
            return f"it lives until {held[2]}" if at_ms < held[2] else None
        begins_anew = visits == 1 if what == "visited" else visits == 0
        if begins_anew:
            return None if held is None else f"there was {held}, and its hook hasn't run"
        if held is None or began != held[0] or visits - (what == "visited") != held[1]:
            return f"there was {held}"
        return f"it had expired at {held[2]}" if at_ms >= held[2] else None
