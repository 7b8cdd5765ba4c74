"""A join by a foreign key: parcels name depots, and both are replaced and deleted while workers die.

The halves of the join are those of `app.join(…, on=)`. Here one actor is both: the owner of parcels and of depots. What
they tell each other goes through the actor's last input, which is the second one in runs with two, into other
partitions. The oracle is that of the crash run: each result has its place in what both tables went through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from actors._core.partitioner import partition_for
from actors.declare.streams.foreign_joins import _Left, _Right, _Subscribing
from actors.ports import TopicPartition
from actors.runtime.message import grouping
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.table import Table
from tests.crash.checks import Record
from tests.crash.foreign_checks import ForeignEvidence, check_deliveries
from tests.sim import app
from tests.sim.part import Host, Operation, Part, Stores, raw_store

TABLES = ("parcels", "depots")
STORES = (*TABLES, "delivery-taken", "delivery-results", "delivery-subscribers")
TOPIC = "deliveries"
PARCEL, DEPOT, NAMED, TOLD = "parcel", "depot", "named", "answered"
NOWHERE, END = "-", "end"
DEPOTS = ("k0", "k1", "k2")
"""What parcels name; not each run has rows of all."""
LARGEST_PAGE = 256

Row = tuple[int, str | None]
"""The number of a row; of a parcel also the depot that it names."""


def _row(argument: str) -> Row | None:
    """Read what an input says of a row, None for a delete."""
    number, _, depot = argument.partition(",")
    return None if depot == END else (int(number), None if depot == NOWHERE else depot)


def _decode_row(raw: bytes) -> Any:
    return _row(raw.decode().partition(":")[2])


def _table(name: str) -> Table[str, Row]:
    return Table(
        name,
        SimpleNamespace(get_topic_name=lambda: app.INPUT),
        encode_key=str.encode,
        decode_key=bytes.decode,
        decode_value=_decode_row,
        history=None,
        history_ms=0,
        declare_aggregate=raw_store,
    )


class ForeignPart(Part):
    """Left and inner joins; a change of a depot may be answered in pages."""

    name = "foreign"
    stores = STORES
    topics = (TOPIC,)
    counts = (40, 80, 160)
    limits = ((grouping, "PAGE_ROWS", (1, 2, LARGEST_PAGE, LARGEST_PAGE)),)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._numbers = 0
        self._is_swept = False
        self._tables: dict[Any, tuple[Table[str, Row], Table[str, Row]]] = {}

    def make_input(self, key: str) -> str:
        self._numbers += 1
        operation = self.random.choice((PARCEL, DEPOT))
        what = self.random.choice((*DEPOTS, *DEPOTS, NOWHERE, END) if operation == PARCEL else ("", "", END))
        return f"{operation}:{self._numbers},{what}"

    # --- the handler -----------------------------------------------------------------------------------------------

    def make_stores(self, host: Host) -> Stores:
        parcels, depots = map(_table, TABLES)
        self._tables[parcels] = parcels, depots
        return (parcels, depots, *map(raw_store, STORES[len(TABLES) :]))

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        parcels, depots, taken, results, subscribers = (*self._tables[stores[0]], *stores[len(TABLES) :])
        named, told = self._through(NAMED), self._through(TOLD)
        parcels.groupings.append(
            _Subscribing(
                "delivery",
                answers=told,
                by=lambda _, row: row[1],
                to=named,
                encode_key=str.encode,
                decode_key=parcels.decode_key,
                decode_row=parcels.decode_value,
                taken=taken,
                stops=lambda: True,
            )
        )
        left = _Left(parcels, _decode_row, results, on=lambda _, row: row[1], is_left=True, call=self._deliver)
        right = _Right(depots, subscribers, subscriptions=named, answers=told)

        async def parcel(ctx: Context, argument: str) -> None:
            row = _row(argument)
            if parcels._take(ctx, row):
                await left.changed(ctx, row)

        async def depot(ctx: Context, argument: str) -> None:
            row = _row(argument)
            if depots._take(ctx, row):
                await right.changed(ctx, row)

        async def subscribe(ctx: Context, argument: str) -> None:
            await right.subscribed(ctx, bytes.fromhex(argument))

        async def answer(ctx: Context, argument: str) -> None:
            await left.answered(ctx, bytes.fromhex(argument))

        return {PARCEL: parcel, DEPOT: depot, NAMED: subscribe, TOLD: answer}

    def _through(self, operation: str) -> OutputTopic:
        """Give the topic by which one half tells the other one."""

        def encode(raw: bytes) -> bytes:
            return f"{operation}:{raw.hex()}".encode()

        return OutputTopic(self.world.inputs[-1], bytes, encode, 1_000_000, partition_count=self.world.partitions)

    async def _deliver(self, ctx: Context, parcel: Row | None, depot: Row | None) -> None:
        may_fail = sum(row[0] for row in (parcel, depot) if row is not None) % 3 == 0
        if may_fail and self.is_first_attempt(ctx.topic, ctx.partition, ctx.offset):
            self.fail_with_garbage(ctx)
        told = None if parcel is None else {"parcel": parcel[0], "depot": None if depot is None else depot[0]}
        ctx.send(TOPIC, key=ctx.key, value=json.dumps(told))

    def operate(self) -> bool:
        """Change each depot once more: whoever owns its row in the end has to know who is subscribed."""
        if self._is_swept:
            return False
        self._is_swept = True
        for depot in DEPOTS:
            self._numbers += 1
            key = depot.encode()
            source = TopicPartition(app.INPUT, partition_for(key, self.world.partitions))
            self.world.cluster.produce(source, [(key, f"{DEPOT}:{self._numbers},".encode(), (), None)])
        return True

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self) -> Iterator[str]:
        found = check_deliveries(self._evidence(), is_paged=grouping.PAGE_ROWS < LARGEST_PAGE)
        for kind, times in found.seen.items():
            self.world.audit.counted[f"foreign {kind}"] += times
        yield from (f"foreign: {example}" for example in found.examples)

    def _evidence(self) -> ForeignEvidence:
        rows: dict[str, list[Record]] = {PARCEL: [], DEPOT: []}
        deliveries = []
        for partition in self.partitions:
            for at, record in enumerate(self.inputs(partition)):
                operation, _, argument = (record.value or b"").decode(errors="replace").partition(":")
                if operation in rows:
                    row = _row(argument)
                    told = None if row is None else {"number": row[0], "depot": row[1]}
                    rows[operation].append(_record(partition, at, record.key, told))
            for at, (key, words) in enumerate(self.events(TOPIC, partition)):
                deliveries.append(_record(partition, at, key, json.loads(" ".join(words))))
        return ForeignEvidence(parcels=rows[PARCEL], depots=rows[DEPOT], deliveries=deliveries)


def _record(partition: int, offset: int, key: bytes, told: object) -> Record:
    return Record(partition, offset, key, None if told is None else json.dumps(told).encode())
