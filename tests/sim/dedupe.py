"""Ids of messages: what comes again under an id that its key had is skipped, all else is handled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from actors.runtime.handlers.dedupe import deduplicated
from actors.runtime.message.context import Context
from tests.sim import app
from tests.sim.part import Handler, Host, Operation, Part, Stores

STORE = TOPIC = "ids"
OPERATION = "once"


class DedupePart(Part):
    """Inputs with few ids, each of them several times; the first one that comes may fail first."""

    name = "dedupe"
    stores = (STORE,)
    topics = (TOPIC,)

    def make_input(self, key: str) -> str:
        return f"{OPERATION}:{self.random.randrange(6)}"

    def around(self, handler: Handler, stores: Stores) -> Handler:
        return deduplicated(handler, stores[0], self._id_of)

    @staticmethod
    def _id_of(ctx: Context, message: Any) -> str | None:
        operation, _, argument = message.partition(":")
        return argument if operation == OPERATION else None

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        async def once(ctx: Context, id: str) -> None:
            if ctx.offset % 3 == 0 and self.is_first_attempt(ctx.partition, ctx.offset):
                self.fail_with_garbage(ctx)
            ctx.send(TOPIC, key=ctx.key, value=f"handled {id} {ctx.message_id}")

        return {OPERATION: once}

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self) -> Iterator[str]:
        for partition in self.partitions:
            handled: defaultdict[tuple[bytes, str], list[str]] = defaultdict(list)
            for key, (_, id, message) in self.events(TOPIC, partition):
                self.count("id handled")
                handled[key, id].append(message)
            wanted = self._wanted(partition)
            for name in sorted(wanted.keys() | handled.keys()):
                found, first = handled[name], wanted.get(name)
                if found != first:
                    yield f"dedupe: {name} of partition {partition}: handled {found}, not {first}"

    def _wanted(self, partition: int) -> dict[tuple[bytes, str], list[str]]:
        """Give by key and id the first message that came."""
        wanted: dict[tuple[bytes, str], list[str]] = {}
        for record in self.inputs(partition):
            if app.operation_of(record) == OPERATION:
                name = record.key, record.value.partition(b":")[2].decode()
                if name in wanted:
                    self.count("id skipped")
                wanted.setdefault(name, [f"{app.INPUT}-{partition}-{record.offset}"])
        return wanted
