"""`View`, as programs make it: by itself, or for a topic or store of an app."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from faust.types.auth import to_credentials
from faust.utils.urls import urllist

from actors._core.logs import escaping
from actors._faust.brokers import reached
from actors._faust.setup import connection
from actors._kafka.connection import Connection
from actors._kafka.consume.logs import KafkaLogs
from actors.declare.host import DeclaredApp, changelog_topic
from actors.declare.options import milliseconds
from actors.declare.values.codecs import resolve, resolve_key
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError, UnreadableLogError
from actors.ports import Clock
from actors.runtime.clock import SystemClock
from actors.runtime.message.store import Store
from actors.runtime.replicas.view_replica import ViewParts, ViewReplicaStores
from actors.runtime.replicas.views import TopicView, ViewCodecs
from actors.runtime.state.stores import StoreCache
from stores.errors import ForeignDatabaseError
from stores.folder import DataFolder
from stores.memory import MemoryStore
from stores.ports import PartitionStore
from stores.rocks import RocksStore
from stores.rocks_options import RocksResources

logger = escaping(logging.getLogger(__name__))

K = TypeVar("K")
V = TypeVar("V")

CACHE_BYTES = 16 << 20
WRITE_BUFFER_BYTES = 16 << 20
_MARGIN = timedelta(minutes=5)


class View(TopicView[K, V]):
    """A compacted topic as a read-only mapping that follows the topic; see the methods, and `docs/how-to/views.md`.

    Made like this it needs no app and no worker; `app.view(...)` makes one of an app's topic or store.

        async with View("config", broker="kafka://127.0.0.1:9092", key_type=str, value_type=Config) as view:
            print(view.get("printer"))

    Args:
        topic: the topic's name; it has to be compacted, with every key in one partition.
        broker: `kafka://host:port`, or several separated by semicolons.
        key_type: what keys are.
        value_type: `faust.Record`, `msgspec.Struct`, dataclass, `bytes`, `str`; None means any JSON.
        key_serializer: a codec of Faust's; follows from the type when left out.
        value_serializer: likewise.
        folder: where it is kept, for a quick start; in memory when left out. One view at a time has a folder.
        broker_credentials: as Faust's setting of that name.
        ssl_context: likewise.
        clock_skew_margin: how far the clocks of brokers and this machine may differ.
    """

    def __init__(
        self,
        topic: str,
        *,
        broker: str = "kafka://127.0.0.1:9092",
        key_type: Any = str,
        value_type: Any = None,
        key_serializer: str | None = None,
        value_serializer: str | None = None,
        folder: Path | str | None = None,
        broker_credentials: Any = None,
        ssl_context: Any = None,
        clock_skew_margin: timedelta = _MARGIN,
    ) -> None:
        key, value = resolve_key(key_type, key_serializer), resolve(value_type, value_serializer)
        codecs = ViewCodecs(key.encode, key.decode, value.decode)
        brokers = urllist(broker, default_scheme="kafka")
        there = reached(brokers, to_credentials(broker_credentials), ssl_context)
        self.folder = None if folder is None else Path(folder)
        self.in_memory = folder is None
        super().__init__(
            lambda: topic,
            codecs=lambda: codecs,
            connect=lambda: connect(topic, there, self.folder, milliseconds(clock_skew_margin)),
        )

    async def open_in_worker(self, app: DeclaredApp, default_folder: Path) -> None:
        """Open it as a worker does, which keeps it in its data folder unless told otherwise."""
        folder = None if self.in_memory else self.folder or default_folder / self.topic
        try:
            await self.open(await connect(self.topic, connection(app), folder, margin_ms(app), app.actor_clock))
        except (UnreadableLogError, ForeignDatabaseError) as error:
            # Handlers that read the view fail by their actors' policies; all others don't need it.
            logger.critical("the view of %s can't be opened: %s", self.topic, error)
            self.fail(error)


def view_of(app: DeclaredApp, source: Any, *, folder: Path | str | None, in_memory: bool) -> View[Any, Any]:
    """Make the view of a topic or store of the app; the app's settings are looked at when it is opened."""
    if not isinstance(source, Store) and getattr(source.schema.value_serializer, "ids", "") == "header":
        raise ConfigurationError(
            f"app.view(): topic {source.get_topic_name()} has ids of schemas in headers, which a view doesn't keep: "
            'list it as app.table() in an actor, and view that, or have it written with ids="prefix"'
        )

    def topic() -> str:
        return changelog_topic(app, source.name) if isinstance(source, Store) else str(source.get_topic_name())

    def codecs() -> ViewCodecs:
        if isinstance(source, Store):
            partitioner = app.partitioner_of_store(source.name)
            return ViewCodecs(source.encode_key, source.decode_key, source.decode_value, partitioner)
        key, value = topic_codecs(source)
        return ViewCodecs(key.encode, key.decode, value.decode, app.partitioner_for(topic()))

    view = View[Any, Any].__new__(View)
    view.folder, view.in_memory = None if folder is None else Path(folder), in_memory
    TopicView.__init__(
        view, topic, codecs=codecs, connect=lambda: connect(topic(), connection(app), view.folder, margin_ms(app))
    )
    return view


def margin_ms(app: DeclaredApp) -> int:
    """Return the app's clock skew margin."""
    return milliseconds(app.actor_options.clock_skew_margin)


async def connect(
    topic: str, there: Connection, folder: Path | None, clock_skew_margin_ms: int, clock: Clock | None = None
) -> ViewParts:
    """Return the parts of a view: its logs, stores and clock."""
    stores = copy_stores(topic, folder)
    try:
        logs = await KafkaLogs.open(there)
    except BaseException:
        stores.close()
        raise
    return ViewParts(logs, stores, clock or SystemClock(clock_skew_margin_ms), clock_skew_margin_ms)


def copy_stores(topic: str, folder: Path | None) -> ViewReplicaStores:
    """Return the stores of a view, in memory where there is no folder.

    Raises:
        StoreError: the folder can't be used.
    """
    if folder is None:
        cache = StoreCache(lambda *_: MemoryStore(), lambda *_: None)
        return ViewReplicaStores(cache, on_disk=lambda _: (), release=cache.close)
    data = DataFolder.open(folder, app=f"view of {topic}")
    resources = RocksResources(block_cache_bytes=CACHE_BYTES, write_buffer_bytes=WRITE_BUFFER_BYTES)

    def open_store(slot: str, partition: int) -> PartitionStore:
        path, identity = data.store_path(slot, partition), data.identity(slot, partition)
        return RocksStore.open(path, resources=resources, identity=identity)

    cache = StoreCache(open_store, data.discard)

    def release() -> None:
        cache.close()
        data.close()

    return ViewReplicaStores(cache, on_disk=data.partitions_on_disk, release=release)
