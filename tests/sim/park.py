"""Messages that are put aside: a key waits behind the one that can't be handled, the others go on."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from actors._core.keys import place_of
from actors._core.task.policy import OnError
from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import ATTEMPTS_HEADER, EFFECT_HEADER, ERROR_HEADER, ORIGIN_HEADER, OutputTopic
from actors.runtime.quarantine import quarantine as parked
from tests.sim import app
from tests.sim.part import Handler, Host, Operation, Part, Stores

if TYPE_CHECKING:
    from tests.sim.node import Node

STORE = app.PARKED
TOPIC = "dead-letters"
TOO_LATE = b"it is too late for the windows"
MOST_CONTROLS = 30
"""How often a line is to be tried again at a time: once isn't enough where one try does little."""


class ParkPart(Part):
    """Some inputs can't be handled until the deployment is cured; people retry in vain before."""

    name = "park"
    stores = (STORE,)
    topics = (TOPIC,)
    limits = ((parked, "RETRY_MESSAGES", (1, 3, 1000)),)
    counts = (1, 2, 4, 8)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._retries = self.random.choice((0, 0, 1, 2))
        self._first_wait_s = self.random.choice((0.05, 0.5))

    def make_input(self, key: str) -> str:
        return f"doomed:{self.random.choice(('raise', 'raise', 'cancel', 'late'))}"

    @property
    def on_error(self) -> OnError:
        return OnError(
            retries=self._retries,
            first_wait=timedelta(seconds=self._first_wait_s),
            longest_wait=timedelta(seconds=1),
            then="park",
        )

    def make_stores(self, host: Host) -> Stores:
        return super().make_stores(host) if self.world.deployment.parks else ()

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        if not self.world.deployment.parks:
            return {}
        letters = OutputTopic(TOPIC, bytes, bytes, 1_000_000)
        return {"parked": stores[0], "dead_letters": letters, "on_error": self.on_error}

    def around(self, handler: Handler, stores: Stores) -> Handler:
        async def handle(ctx: Context, value: str) -> Any:
            if not stores and ctx.key.encode() in {key for _, key in self.lines()}:
                self.world.audit.violated(f"unparking: {ctx.topic}/{ctx.partition}/{ctx.offset} overtakes a parked one")
            return await handler(ctx, value)

        return handle if "unparking" in self.world.features else handler

    def refused(self, said: str) -> None:
        """Look at why a start was refused."""
        lines = self.lines()
        if "parked messages" not in said:
            return
        self.count("refused with parked messages")
        total, count = lines.total(), len(lines)
        told = f" {total} parked message{'s' * (total != 1)} of {count} key{'s' * (count != 1)} wait"
        if self.world.deployment.parks or told not in said:
            self.world.audit.violated(f"unparking: a start is refused, not for{told}: {said}")

    def started(self) -> None:
        """Look at what a program that started leaves behind."""
        if not self.world.deployment.parks:
            self.count("started without parking")
            if lines := self.lines():
                self.world.audit.violated(f"unparking: a program without parking starts, and leaves {lines} behind")

    def lines(self) -> Counter[tuple[int, bytes]]:
        """Give how many messages wait, by partition and key."""
        return Counter(
            (partition, place_of(place)[0]) for partition in self.partitions for place in self.folded(STORE, partition)
        )

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        async def doomed(ctx: Context, argument: str) -> None:
            if self.world.deployment.is_cured:
                self.count("handled when cured")
                return
            ctx.send(app.ECHO, key=ctx.key, value=app.GARBAGE)
            if argument == "late":
                await asyncio.sleep(0.2)
            self.count("couldn't be handled")
            raise asyncio.CancelledError if argument == "cancel" else ValueError("not before it is cured")

        return {"doomed": doomed}

    # --- the end ---------------------------------------------------------------------------------------------------

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        # A program that doesn't park takes what is left of a command for a message.
        return iter(() if "unparking" in self.world.features else (self.retry_some,))

    def retry_some(self) -> None:
        """Somebody has the line of a key tried again, whether or not there is one."""
        partition = self.random.randrange(self.world.partitions)
        log = self.world.cluster.log(TopicPartition(app.INPUT, partition))
        keys = sorted({record.key for record in log.history if record.is_committed and record.key})
        if keys:
            self.count("retried in vain")
            self.world.control(partition, self.random.choice(keys), "message")

    def unsettled(self) -> Iterator[str]:
        if self.world.deployment.is_cured:
            for partition in self.partitions:
                for key in self.folded(STORE, partition):
                    yield f"park: {key!r} of partition {partition} is parked"

    def operate(self) -> bool:
        """Look at what waits, cure the deployment, and have all that waits tried again."""
        if not self.world.deployment.is_cured:
            for violation in self._check_before_cure():
                self.world.audit.violated(violation)
            self.world.deployment.is_cured = True
        waiting = self.lines()
        for (partition, key), count in waiting.items():
            self.count("parked")
            for _ in range(min(count, MOST_CONTROLS)):
                self.world.control(partition, key, "message")
        return bool(waiting)

    def check(self) -> Iterator[str]:
        """See that everybody who looks at the dead letters was told of each line once. The rest is the echo's."""
        for partition in self.partitions:
            origins = {f"{app.INPUT}/{partition}/{r.offset}": r for r in self.inputs(partition)}
            yield from self._check_late(partition, origins)
            found: defaultdict[bytes, list[int]] = defaultdict(list)
            for letter in self._letters(partition):
                headers = dict(letter.headers)
                origin = origins.get(headers[ORIGIN_HEADER].decode())
                if int(headers[ATTEMPTS_HEADER]) != self._retries + 1:
                    yield f"park: {letter} wasn't tried {self._retries + 1} times"
                if app.operation_of(letter) != "doomed":
                    continue
                if origin is None or (origin.key, origin.value) != (letter.key, letter.value):
                    yield f"park: {letter} isn't {origin}"
                else:
                    found[letter.key].append(origin.offset)
            for key, first in self._first_doomed(partition).items():
                # A line that something else has opened was told of by that; what waits in it, isn't.
                wanted = [[first]] if self._is_alone else [[first], []]
                if found.pop(key, []) not in wanted:
                    yield f"park: {key} of partition {partition} has {found}, and its first is {first}"
            if any(found.values()):
                yield f"park: nothing of {dict(found)} in partition {partition} had to be parked"

    def _check_late(self, partition: int, origins: Mapping[str, Any]) -> Iterator[str]:
        for letter in self._letters(partition, is_late=True):
            self.count("late when retried")
            origin = origins.get(dict(letter.headers)[ORIGIN_HEADER].decode())
            if origin is not None and (origin.key, origin.value) != (letter.key, letter.value):
                yield f"park: {letter} isn't {origin}"

    @property
    def _is_alone(self) -> bool:
        """Whether nothing else can fail so often that it is parked."""
        return self._retries > 0 or self.world.features.isdisjoint(
            ("timers", "effects", "asks", "sessions", "dedupe", "rows", "windows", "joins")
        )

    def _letters(self, partition: int, *, is_late: bool = False) -> list[Any]:
        """Give the dead letters of messages that failed, or of those that were too late when they were retried."""
        log = self.world.cluster.log(TopicPartition(TOPIC, partition))
        records = (record for record in log.history if record.is_committed)
        letters = [letter for letter in records if EFFECT_HEADER not in dict(letter.headers)]
        return [letter for letter in letters if dict(letter.headers)[ERROR_HEADER].startswith(TOO_LATE) is is_late]

    def _first_doomed(self, partition: int) -> dict[bytes, int]:
        """Give by key the first message that can't be handled."""
        found: dict[bytes, int] = {}
        for record in self.inputs(partition):
            if app.operation_of(record) == "doomed":
                found.setdefault(record.key, record.offset)
        return found

    def _check_before_cure(self) -> Iterator[str]:
        for partition in self.partitions:
            first = self._first_doomed(partition)
            closed = {letter.key for letter in self._letters(partition)}
            echoed: defaultdict[bytes, list[int]] = defaultdict(list)
            for key, value in app.echoed(self.world.cluster.log(TopicPartition(app.ECHO, partition))):
                place = value.split()[0]
                if place.isdigit():
                    echoed[key].append(int(place))
            wanted: defaultdict[bytes, list[int]] = defaultdict(list)
            waiting: set[bytes | None] = set()
            for record in self.inputs(partition):
                if app.operation_of(record) == "doomed":
                    waiting.add(record.key)
                elif app.owes_echo(record) and record.key not in waiting:
                    wanted[record.key].append(record.offset)
            for key in wanted.keys() | echoed.keys():
                yield from self._compare(partition, key, echoed[key], wanted[key], may_wait=key in closed - set(first))

    def _compare(
        self, partition: int, key: bytes, echoed: list[int], wanted: list[int], *, may_wait: bool
    ) -> Iterator[str]:
        """Compare a key's echoes with those of what comes before its first doomed message."""
        is_right = echoed == wanted or (not self._is_alone and echoed == wanted[: len(echoed)])
        if not (is_right or (may_wait and echoed == wanted[: len(echoed)])):
            yield f"park: before it is cured {key} of partition {partition} has the echoes of {echoed}, not {wanted}"
