"""State of two versions: each process runs the older or the newer program, until all run the newer one.

The older program stops a partition where it meets a newer value, whatever `on_error` says and whatever its handler does
with the error; it neither skips the message nor writes over the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from actors._core.task.policy import OnError
from actors.declare.values.codecs import Codec, resolve
from actors.declare.values.versions import refusal, versioned
from actors.errors import NewerVersionError
from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from tests.sim import app
from tests.sim.fakes.loop import Process
from tests.sim.park import TOPIC as DEAD_LETTERS
from tests.sim.part import Host, Operation, Part, Stores

if TYPE_CHECKING:
    from tests.sim.node import Node

STORE, TOPIC = "grown", "growth"
OPERATION = "grow"
NEWEST = 2
NOT_WITH_SKIP = frozenset(("poison", "refused", "park", "timers", "effects", "asks", "sessions", "dedupe", "rows"))
"""What may fail for another reason."""


class Old(msgspec.Struct):
    """A value of version 1."""

    count: int = 0


class New(msgspec.Struct):
    """A value of version 2."""

    total: int = 0


CODECS: Mapping[int, Codec] = {
    1: versioned(resolve(Old, refuse=refusal(1, STORE)), 1, {}, STORE),
    2: versioned(resolve(New), 2, {1: lambda old: {"total": old["count"]}}, STORE),
}


class VersionsPart(Part):
    """Inputs count up, set or delete a value; a process's program knows version 1 of it, or both."""

    name = "versions"
    stores = (STORE,)
    topics = (TOPIC,)
    counts = (20, 40, 80)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._programs: dict[str, int] = {}
        self._policy = self.random.choice(("stop", "skip"))

    def make_input(self, key: str) -> str:
        how = self.random.choices(("add", "catch", "set", "absent", "forget"), (4, 2, 2, 1, 1))[0]
        return f"{OPERATION}:{how}-{self.random.randrange(100)}"

    async def open(self, node: Node, process: Process) -> None:
        """Have the process run one of the programs."""
        drawn = Random(f"{self._seed} program of {process.name}").choice((1, NEWEST))
        version = self._programs[process.name] = NEWEST if self.world.deployment.is_mended else drawn
        self.count(f"program {version}")

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        if self._policy == "skip" and NOT_WITH_SKIP.isdisjoint(self.world.features):
            return {"on_error": OnError(retries=1, first_wait=timedelta(seconds=0.1), then="skip")}
        return {}

    def make_stores(self, host: Host) -> Stores:
        version = self._programs[host.name]
        codec = CODECS[version]
        return (
            Store(
                STORE,
                encode_key=str.encode,
                decode_key=bytes.decode,
                encode_value=codec.encode,
                decode_value=codec.decode,
                refuse_newer=refusal(version, STORE),
            ),
        )

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        def deploy_one() -> None:
            """A machine gets a program, the one that it had or the other."""
            node = self.random.choice(nodes)
            if node.is_up:
                node.kill(finishes=True)
                node.start()

        return iter((deploy_one,))

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        version, (store,) = self._programs[host.name], stores
        make = Old if version == 1 else New

        def held(key: str) -> int:
            value = store.get(key)
            return 0 if value is None else value.count if version == 1 else value.total

        async def grow(ctx: Context, argument: str) -> None:
            how, _, number = argument.partition("-")
            if how == "add":
                store.set(ctx.key, make(held(ctx.key) + 1))
            elif how == "catch":
                try:
                    found = held(ctx.key)
                except NewerVersionError:
                    found = -1
                store.set(ctx.key, make(found + 1))
            elif how == "set":
                store.set(ctx.key, make(int(number)))
            elif how == "absent":
                store.put_if_absent(ctx.key, make(int(number)))
            else:
                store.delete(ctx.key)
            ctx.send(TOPIC, key=ctx.key, value=f"{version} {ctx.offset} {how}")

        return {OPERATION: grow}

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self) -> Iterator[str]:
        for partition in self.partitions:
            yield from self._check_writes(partition)
            if self.is_parking:
                yield from self._check_letters(partition)
            wanted = self._wanted(partition)
            raws = self.folded(STORE, partition)
            found = {key: CODECS[NEWEST].decode(raw).total for key, raw in raws.items()}
            if found != wanted:
                yield f"versions: partition {partition} has {found}, not {wanted}"

    def _check_writes(self, partition: int) -> Iterator[str]:
        """See that no older value came after a newer one."""
        held: dict[bytes, int] = {}
        for record in self.world.cluster.log(TopicPartition(app.changelog(STORE), partition)).history:
            if not record.is_committed:
                continue
            version = 0 if record.value is None else NEWEST if record.value.startswith(b"\0") else 1
            if 0 < version < held.get(record.key, 0):
                yield f"versions: {record} is of version {version}, over one of {held[record.key]}"
            held[record.key] = version
            self.count(f"value of version {version}")

    def _check_letters(self, partition: int) -> Iterator[str]:
        """See that no line of parked messages begins with one that can only meet a newer value."""
        for record in self.world.cluster.log(TopicPartition(DEAD_LETTERS, partition)).history:
            if record.is_committed and app.operation_of(record) == OPERATION:
                yield f"versions: {record} was parked"

    def _wanted(self, partition: int) -> dict[bytes, int]:
        """Give what comes of the inputs, whichever program had them."""
        state: dict[bytes, int] = {}
        for record in self.inputs(partition):
            if not app.is_decodable(record) or app.operation_of(record) != OPERATION:
                continue
            how, _, number = record.value.partition(b":")[2].partition(b"-")
            if how in (b"add", b"catch"):
                state[record.key] = state.get(record.key, 0) + 1
            elif how == b"set":
                state[record.key] = int(number)
            elif how == b"absent":
                state.setdefault(record.key, int(number))
            else:
                state.pop(record.key, None)
        return state
