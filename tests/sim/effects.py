"""Effects: what a handler asked for happens outside, after its commit, in order, and its result is handled once."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context
from actors.runtime.message.tools import EffectCall
from actors.runtime.outbox import effects
from actors.runtime.outbox import queues as effect_lines
from tests.sim.methods import again
from tests.sim.part import Host, Operation, Part, Stores

STORE = TOPIC = "effects"
TIMEOUT_S = 1.5
HANGS_S = 2.0
GARBAGE_NUMBER = -1
CHAINED = 1001
"""What is added to a call's number for the one that its result's handler asks for: it has no result."""


@dataclass(slots=True, eq=False)
class Call:
    """What the outside saw. `ended` stays None when the process died, or never came to the end."""

    id: str
    key: bytes
    number: int
    token: int
    attempt: int
    process: str
    began_s: float
    ended: str | None = None


class EffectsPart(Part):
    """Inputs ask for calls; the outside is slow, fails, hangs, and answers some."""

    name = "effects"
    stores = (STORE,)
    topics = (TOPIC,)
    counts = (6, 12, 24)
    limits = (
        (effects, "AT_ONCE", (1, 2, 16)),
        (effects, "MESSAGES_AT_ONCE", (1, 3, 100)),
        (effects, "MOST_RUNS", (2, 1000)),
        (effects, "MOST_ENDED", (1, 3, 64, 64)),
        (effect_lines, "HELD_LINES", (2, 1000)),
        (effect_lines, "WALK_KEYS", (1, 3, 1000)),
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calls: list[Call] = []
        self._attempts_allowed = self.random.choice((0, 0, 0, 2))
        self._handling_s = Random(f"{seed} results").choice((0.0, 0.1, 1.0))
        self._numbers = 0
        self._begun: defaultdict[str, list[Call]] = defaultdict(list)
        self._told: set[str] = set()
        self._number_of: dict[str, int] = {}

    def make_input(self, key: str) -> str:
        self._numbers += 1
        return f"call:{self._numbers}"

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        declared = {
            effect.name: effect
            for effect in (
                self._effect("outside", self._awaited(host)),
                self._effect("outside_now", self._plain(host)),
                self._effect("outside_once", self._awaited(host), repeat="never", on_unknown="told"),
                self._effect("outside_told", self._awaited(host), attempts=2),
            )
        }
        return {
            "effects": stores[0],
            "effect_functions": declared,
            "encode_message": lambda message: (message.encode(), []),
        }

    def _effect(self, name: str, function: Any, *, attempts: int = 1, **options: Any) -> Effect:
        is_told = name in ("outside_once", "outside_told")
        return Effect(
            function,
            name,
            attempts=attempts if is_told else self._attempts_allowed,
            on_give_up="told" if is_told else None,
            **options,
            first_wait=timedelta(seconds=0.2),
            longest_wait=timedelta(seconds=1),
            timeout=timedelta(seconds=TIMEOUT_S),
        )

    # --- the outside -----------------------------------------------------------------------------------------------

    def _awaited(self, host: Host) -> Any:
        async def outside(call: EffectCall, number: int) -> str | None:
            seen, fate = self._begin(host, call, number)
            try:
                await asyncio.sleep(fate.wait_s)
                return self._end(seen, fate)
            except asyncio.CancelledError:
                seen.ended = seen.ended or "cancelled"
                raise

        return outside

    def _plain(self, host: Host) -> Any:
        def outside_now(call: EffectCall, number: int) -> str | None:
            seen, fate = self._begin(host, call, number)
            return self._end(seen, fate if fate.error is None else _Fate(0.0, "failed"))

        return outside_now

    def _begin(self, host: Host, call: EffectCall, number: int) -> tuple[Call, _Fate]:
        seen = Call(
            call.idempotency_key,
            call.key,
            number,
            call.fencing_token,
            call.attempt,
            host.name,
            self.world.loop.time(),
        )
        self.world.audit.note(f"CALL {seen.id} {seen.number} attempt {seen.attempt} token {seen.token}")
        for violation in self._judged(seen):
            self.world.audit.violated(f"effects: {seen}: {violation}")
        self.calls.append(seen)
        self._begun[seen.id].append(seen)
        return seen, _Fate.of(self._seed, seen.id, len(self._begun[seen.id]))

    def _end(self, seen: Call, fate: _Fate) -> str | None:
        seen.ended = fate.error or "succeeded"
        self.count(f"effect {seen.ended}")
        if fate.error == "failed":
            raise ValueError("the outside says no")
        if fate.error == "cancelled":
            raise asyncio.CancelledError
        return None if seen.number % 2 else f"done:{seen.number}"

    def _judged(self, call: Call) -> Iterator[str]:
        """Say what is wrong with a call when it begins."""
        partition = int(call.id.split("-")[1])
        asked = [words for key, words in self.events(TOPIC, partition) if key == call.key and words[0] == "asked"]
        here = next((at for at, (_, _, id) in enumerate(asked) if id == call.id), None)
        if here is None:
            yield "no commit has it"
        elif int(asked[here][1]) != call.number:
            yield f"its commit has {asked[here]}"
        for _, _, id in asked[: here or 0]:
            if not self._is_over(id, partition, before=call.id):
                yield f"{id} comes before it and hasn't succeeded"
        if _is_once(call.number) and len(self._begun[call.id]) >= sum(id == call.id for _, _, id in asked):
            yield f"{self._begun[call.id][-1]} was made, and none is repeated"
        for other in self.calls:
            is_beside = other.process == call.process and other.key == call.key and other.ended is None
            # A plain function that is over its time before its thread has begun with it can't be stopped.
            if is_beside and not _is_plain(call.number):
                yield f"{other} isn't over"
            if other.token == call.token and other.process != call.process and self._partition(other) == partition:
                yield f"{other} has the same token"
        known = [
            other
            for other in self.calls
            if (other.id, other.token, other.process) == (call.id, call.token, call.process)
            and other.ended == "succeeded"
        ]
        # An input that is handled again asks for its call again.
        if known and len(known) >= sum(id == call.id for _, _, id in asked) and not _is_plain(call.number):
            yield f"{known[-1]} has succeeded, and its owner knows"

    def _has_succeeded(self, id: str) -> bool:
        return any(call.ended == "succeeded" for call in self._begun[id])

    def _is_over(self, id: str, partition: int, *, before: str | None = None) -> bool:
        """Whether a call has succeeded or is cancelled, or what its actor is told of it waits to be handled.

        With `before`, a call that its input asked for again stands behind that one, and may be open.
        """
        if not _is_told(self._number_of[id]):
            return self._has_succeeded(id) or id in self._cancelled(partition)
        ids = [json.loads(raw)["id"] for _, raw in sorted(self.folded(STORE, partition).items())]
        return id not in (ids[: ids.index(before)] if before in ids else ids)

    def _cancelled(self, partition: int) -> set[str]:
        return {words[2] for _, words in self.events(TOPIC, partition) if words[0] == "removed"}

    @staticmethod
    def _partition(call: Call) -> int:
        return int(call.id.split("-")[1])

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        async def call(ctx: Context, argument: str) -> None:
            number = int(argument)
            if number % 5 == 0 and self.is_first_attempt(ctx.partition, ctx.offset):
                ctx.effect(self._function(GARBAGE_NUMBER), GARBAGE_NUMBER)
                self.fail_with_garbage(ctx)
            self.call(ctx, number)
            if number % 5 == 3:
                self._cancel(ctx)

        return {"call": call}

    def messages(self, host: Host) -> Mapping[str, Operation]:
        async def done(ctx: Context, argument: str) -> None:
            number, id = int(argument), ctx.message_id.removesuffix("-result")
            await asyncio.sleep(self._handling_s)
            if number % 8 == 0 and self.is_first_attempt(ctx.partition, id):
                ctx.effect(self._function(GARBAGE_NUMBER), GARBAGE_NUMBER)
                self.fail_with_garbage(ctx)
            ctx.send(TOPIC, key=ctx.key, value=f"done {number} {id}")
            if number % 6 == 0:
                self.call(ctx, number + CHAINED)

        async def told(ctx: Context, id: str) -> None:
            self.count("effect told")
            await done(ctx, f"{self._number_of[id]}")

        return {"done": done, "outcome": told}

    def call(self, ctx: Context, number: int) -> None:
        """Ask for a call; those with the same number have ids of their own."""
        function: Any = self._function(number)
        id = ctx.effect(function, number, then=again) if number % 10 in (0, 4) else ctx.effect(function, number)
        self._number_of[id] = number
        ctx.send(TOPIC, key=ctx.key, value=f"asked {number} {id}")

    def _cancel(self, ctx: Context) -> None:
        """Cancel the first call of the key, which may be running."""
        id = ctx.effects(limit=1)[0].id
        if ctx.cancel_effect(id):
            ctx.send(TOPIC, key=ctx.key, value=f"removed {self._number_of[id]} {id}")

    @staticmethod
    def _function(number: int) -> Any:
        name = "outside_once" if _is_once(number) else "outside_told" if _is_told(number) else "outside"
        return Effect(print, "outside_now" if _is_plain(number) else name)

    # --- the oracle ------------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        for partition in self.partitions:
            for key, raw in self.folded(STORE, partition).items():
                yield f"effects: {key!r} is in the outbox of partition {partition}: {raw!r}"

    def operate(self) -> bool:
        """Have those that were given up tried again, each once for each time that it was."""
        has_acted = False
        for partition in self.partitions:
            for raw in self.folded(STORE, partition).values():
                record = json.loads(raw)
                if record["parked"] and f"{record['id']} {len(self._begun[record['id']])}" not in self._told:
                    self._told.add(f"{record['id']} {len(self._begun[record['id']])}")
                    self.count("effect given up")
                    self.world.control(partition, self._begun[record["id"]][-1].key, "effect")
                    has_acted = True
        return has_acted

    def check(self) -> Iterator[str]:
        for partition in self.partitions:
            yield from self._check_lines(partition)
        for calls in self._begun.values():
            if sum(call.ended == "succeeded" for call in calls) > 1:
                self.count("effect succeeded again")

    def _check_lines(self, partition: int) -> Iterator[str]:
        lines: defaultdict[bytes, list[tuple[int, str]]] = defaultdict(list)
        asked_once: set[str] = set()
        for key, (what, number, id) in self.events(TOPIC, partition):
            self.count(f"effect {what}")
            line = lines[key]
            if what == "asked":
                # The ids of inputs that are handled again stay.
                if id in asked_once and not self.world.audit.has_moved(partition):
                    yield f"effects: {number} of {key} was asked for as {id}, and so was another call"
                asked_once.add(id)
                line.append((int(number), id))
                continue
            if what == "removed":
                line.remove((int(number), id))
                continue
            before = line[: line.index((int(number), id)) + 1] if (int(number), id) in line else []
            if [number for number, _ in before if not number % 2] != [int(number)]:
                yield f"effects: the result of {id} is handled when its key's calls are {line}"
            del line[: len(before)]
        yield from self._check_ends(partition, lines)

    def _check_ends(self, partition: int, lines: Mapping[bytes, list[tuple[int, str]]]) -> Iterator[str]:
        for key, line in lines.items():
            for number, id in line:
                if not number % 2:
                    yield f"effects: the result of {id} of {key} never came"
        asked = {words[2] for _, words in self.events(TOPIC, partition) if words[0] == "asked"}
        for id in sorted(asked):
            if not self._is_over(id, partition):
                yield f"effects: {id} never succeeded"


def _is_plain(number: int) -> bool:
    """Tell whether the function of a call isn't async."""
    return number % 4 == 3


def _is_once(number: int) -> bool:
    """Tell whether a call is never repeated."""
    return number % 8 == 4


def _is_told(number: int) -> bool:
    """Tell whether the actor is told that a call failed."""
    return _is_once(number) or number % 8 == 2


@dataclass(frozen=True, slots=True)
class _Fate:
    """How long a call takes, and how it ends: `error` None if well."""

    wait_s: float
    error: str | None

    @classmethod
    def of(cls, seed: int, id: str, time: int) -> _Fate:
        """Give the fate of the n-th call with an id: the last one of its bad ones is always followed by a good one."""
        random = Random(f"{seed} {id}")
        bad = random.choice((0, 0, 0, 1, 2, 4))
        random = Random(f"{seed} {id} {time}")
        if time > bad:
            return cls(random.choice((0.0, 0.01, 0.3, 1.0)), None)
        error = random.choice(("failed", "failed", "cancelled", "hung"))
        return cls(HANGS_S if error == "hung" else random.choice((0.0, 0.3)), error)
