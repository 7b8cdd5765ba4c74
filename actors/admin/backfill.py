"""Writes all that a store holds into its read-model topic: for keys that were written before it was published.

Each partition is written with a transactional id of its own. Its changelog is restored into a database in a temporary
folder, and what that holds goes out in transactions of this id. So each value is the last one: a worker that takes over
a partition with a published store ends the id's transaction first, and from then on nothing of it is committed. A
process that dies in here leaves a topic that has some of the keys, each with a right value, and is run again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from actors._core.task.takeover import LostChangelog
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.host import require_stopped
from actors.declare.options import milliseconds
from actors.declare.publishing import ensure_published
from actors.errors import ActorsError, ConfigurationError, OutcomeUnknownError
from actors.ports import CommitBatch, Output
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES
from actors.runtime.message.publishing import Publication
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import Restorer
from stores._core.record import METADATA_BYTES, is_expired
from stores.rocks import RocksStore
from stores.rocks_options import RocksResources

CHUNK_RECORDS = 5_000
"""So many keys go into a transaction, fewer where they have more bytes than a commit may."""

ADVICE = ", and start them with publish= afterwards"
Report = Callable[[int, int], None]
"""Called with a partition and the keys of it so far."""


def chunks(records: Iterable[Output], max_bytes: int) -> Iterator[list[Output]]:
    """Yield the records of each transaction; a record of more than `max_bytes` has one of its own."""
    chunk: list[Output] = []
    size = 0
    for record in records:
        record_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        if chunk and (len(chunk) >= CHUNK_RECORDS or size + record_bytes > max_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += record_bytes
    if chunk:
        yield chunk


async def publish_all(setup: Setup, store: str, actor: str, report: Report) -> tuple[str, int, int]:
    """Write all that a store of an actor holds; return its topic, and how many partitions and keys were written.

    Makes the topic for readers if it is missing.

    Raises:
        ConfigurationError: a topic is missing, or can't be used; a worker runs.
        ActorsError: a worker took a partition over, or the broker is away.
        RecordTooLargeError: a value doesn't fit into the topic.
    """
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        spec = await _spec(setup, control, actor)
        await require_stopped(setup, ADVICE)
        partitions, keys = spec.changelogs[store].partition_count, 0
        for partition in range(partitions):
            keys += await _write(setup, control, spec, spec.published[store], partition=partition, report=report)
        # A worker that was started meanwhile may have been faster.
        await require_stopped(setup, ADVICE)
    return spec.published[store].topic.name, partitions, keys


async def _spec(setup: Setup, control: ControlPlane, actor: str) -> ActorSpec:
    topics = setup.topics(control)
    inputs = await setup.check_topics(topics)
    changelogs = await topics.existing(setup.compacted(inputs))
    if missing := setup.compacted(inputs).keys() - changelogs.keys():
        raise ConfigurationError(
            f"topic {min(missing)} isn't on the broker: a worker creates it when it starts, and there is nothing to "
            "publish before that"
        )
    await ensure_published(setup.app, setup.changelog_settings, topics, inputs)
    await setup.outputs(topics)
    return next(spec for spec in await setup.specs(inputs, changelogs, topics) if spec.name == actor)


async def _write(
    setup: Setup, control: ControlPlane, spec: ActorSpec, publication: Publication, *, partition: int, report: Report
) -> int:
    """Write a partition; return the number of its keys."""
    options, clock, log = setup.app.actor_options, setup.app.actor_clock, setup.lone_log(spec.name, partition)
    margin_ms, logs = milliseconds(options.clock_skew_margin), KafkaLogs(setup.connection, control)
    restorer = Restorer(logs, clock, clock_skew_margin_ms=margin_ms, lost=LostChangelog.REBUILD)
    with tempfile.TemporaryDirectory(prefix="actors-publish-") as folder:
        store, count = RocksStore.open(Path(folder) / "store", resources=RocksResources()), 0
        try:
            await log.fence()
            await restorer.restore(store, spec.changelogs[publication.store], partition)
            for chunk in chunks(_records(store, publication, clock.wall_ms()), options.commit_max_bytes):
                await log.commit(CommitBatch(partition, {}, outputs=chunk))
                count += len(chunk)
                report(partition, count)
        except OutcomeUnknownError as error:
            raise ActorsError(
                f"partition {partition} of store {publication.store}: {error}. Was a worker started meanwhile? The "
                "written values are right but incomplete: stop the workers and run the command again"
            ) from error
        finally:
            await log.close()
            store.close()
    return count


def _records(store: RocksStore, publication: Publication, now_ms: int) -> Iterator[Output]:
    for key, raw in store.scan():
        # What has expired is for nobody to read; its tombstone comes when a worker removes it.
        if not is_expired(raw, now_ms):
            publication.check(key, raw[METADATA_BYTES:])
            yield from publication.records({key: (b"", raw[METADATA_BYTES:])})
