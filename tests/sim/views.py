"""Views: handlers read what another program publishes, whatever becomes of the copy on disk.

A database that can't be read any more is built anew, and it alone: those of the task's stores stay as they are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from actors._core.partitioner import partition_for
from actors.errors import BrokerUnavailableError, ViewError
from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.replicas.view_replica import ViewParts, ViewReplicaStores
from actors.runtime.replicas.views import TopicView, ViewCodecs
from actors.testing.fakes.views import FakeTopicLogs
from stores.errors import StoreError
from tests.sim.fakes.disk import Disk
from tests.sim.fakes.loop import Process
from tests.sim.part import Host, Operation, Part, Stores

if TYPE_CHECKING:
    from tests.sim.node import Node

TOPIC, PRICES = "looks", "prices"
ITEMS = ("i0", "i1", "i2", "i3")
SKEW_MARGIN_MS = 10_000
RETRY_S = 0.5
View = TopicView[str, str]


class ViewsPart(Part):
    """Each process has a view; inputs look into it. Its database is damaged while it is open, or one of the task's."""

    name = "views"
    topics = (TOPIC,)
    compacted = (PRICES,)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._views: dict[str, View] = {}
        self._disks: dict[Disk, Disk] = {}
        """What a machine has of the view, by its other disk."""
        self._machines: dict[str, Node] = {}
        self._seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._versions = 0

    def make_input(self, key: str) -> str:
        if self.random.random() < 0.4:
            self._publish(self.random.choice(ITEMS))
        return f"look:{self.random.choice(ITEMS)}"

    def _publish(self, item: str) -> None:
        """Have the other program write a version, or delete what there is."""
        self._versions += 1
        value = None if self.random.random() < 0.1 else b"%d" % self._versions
        self.world.cluster.produce(self._home(item), [(item.encode(), value, [])])

    def _home(self, item: str) -> TopicPartition:
        return TopicPartition(PRICES, partition_for(item.encode(), self.world.partitions))

    # --- the processes ---------------------------------------------------------------------------------------------

    async def open(self, node: Node, process: Process) -> None:
        """Open the process's view, on the disk that its machine has for it; it dies with the process."""
        world = self.world
        self._machines[node.name] = node
        disk = self._disks.setdefault(node.disk, Disk())

        async def connect() -> ViewParts:
            cache = disk.cache(process)
            return ViewParts(
                logs=FakeTopicLogs(world.cluster, world.network, chunk_records=world.chunk_records),
                stores=ViewReplicaStores(cache, on_disk=lambda slot: _partitions(disk, slot), release=cache.close),
                clock=node.clock,
                clock_skew_margin_ms=SKEW_MARGIN_MS,
            )

        codecs = ViewCodecs(encode_key=str.encode, decode_key=bytes.decode, decode_value=bytes.decode)
        view = View(lambda: PRICES, codecs=lambda: codecs, connect=connect)
        while True:
            try:
                await view.open()
            except BrokerUnavailableError:
                await asyncio.sleep(RETRY_S)
            else:
                break
        self._views[process.name] = view

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        def damage_view() -> None:
            """What a machine has of the view can't be read any more, while it is open."""
            self._damage(self._disks.get(self.random.choice(nodes).disk), "view damaged")

        def damage_store() -> None:
            """One of a machine's stores can't be read any more, while it is open."""
            self._damage(self.random.choice(nodes).disk, "store damaged")

        return iter((damage_view, damage_store))

    def _damage(self, disk: Disk | None, what: str) -> None:
        files = [] if disk is None else disk.files()
        if files:
            self.random.choice(files).is_damaged = True
            self.count(what)

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        async def look(ctx: Context, item: str) -> None:
            value = self._views[host.name].get(item)
            self._check_look(host, item, value)
            ctx.send(TOPIC, key=ctx.key, value=f"saw {item} {value}")

        return {"look": look}

    def _check_look(self, host: Host, item: str, value: str | None) -> None:
        """See that it is one of the published versions, and no older one than the process has seen."""
        self.count("looked")
        raw, least = None if value is None else value.encode(), self._seen[host.name][item]
        versions = self._versions_of(item)
        found = next((at for at in range(least, len(versions)) if versions[at] == raw), None)
        if found is None:
            self.world.audit.violated(f"views: {host.name} sees {raw!r} of {item}, behind number {least} of {versions}")
        else:
            self._seen[host.name][item] = found

    # --- the oracle ------------------------------------------------------------------------------------------------

    def _versions_of(self, item: str) -> list[bytes | None]:
        """Give all that was ever published, beginning with nothing."""
        history = self.world.cluster.log(self._home(item)).history
        return [None, *(record.value for record in history if record.key == item.encode() and record.is_committed)]

    def unsettled(self) -> Iterator[str]:
        """Say which view can't be read, or hasn't all that was published."""
        for node in self._machines.values():
            view = None if node.process is None else self._views.get(node.process.name)
            for item in () if view is None else ITEMS:
                wanted, found = self._versions_of(item)[-1], self._read(view, item)
                if found != wanted:
                    yield f"views: {node.process} has {found!r} of {item}, not {wanted!r}"

    @staticmethod
    def _read(view: View, item: str) -> object:
        try:
            value = view.get(item)
        except (StoreError, ViewError) as error:
            return error
        return None if value is None else value.encode()


def _partitions(disk: Disk, slot: str) -> set[int]:
    return {files.partition for files in disk.files() if files.store == slot}
