"""Copies a changelog into the one that a store has now, for a store that was given another with `changelogs=`.

Keys, values, metadata and partitions stay as they are, so that a restore from the copy ends with the same state. Each
partition is written in transactions of its own. No worker runs meanwhile: the start of one is refused as long as the
registry names the former changelog, which it does until all is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import KafkaOwners, write_stores
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.backfill import chunks
from actors.admin.host import Setup, require_stopped
from actors.errors import ConfigurationError
from actors.ports import CommitBatch, Logs, Output, TopicPartition
from stores._core.printable import counted


async def adopt(setup: Setup, store: str, actor: str, source: str, report: Callable[[int, int], None]) -> int:
    """Copy all committed records of `source` into the changelog of `store`; return their number.

    Raises:
        ConfigurationError: a worker runs; `source` is missing or has other partitions; the changelog isn't empty.
        ActorsError: a worker took a partition over meanwhile, or the broker is away.
    """
    target = setup.changelog_topic(store)
    await require_stopped(setup)
    if source == target:
        raise ConfigurationError(
            f"store {store} has the changelog {source} itself: name another one with "
            f"App(..., changelogs={{{store!r}: …}})"
        )
    async with AsyncExitStack() as open_:
        control = await open_.enter_async_context(ControlPlane.connect(setup.connection, setup.group))
        topics, logs = setup.topics(control), KafkaLogs(setup.connection, control)
        inputs = await setup.check_topics(topics)
        partitions = inputs[setup.app.actors[actor].topic_name].partitions
        description = (await topics.existing([source])).get(source)
        _check_source(source, description, partitions)
        await topics.ensure_compacted({target: partitions}, setup.changelog_settings)
        for partition in range(partitions):
            bounds = await logs.bounds(TopicPartition(target, partition))
            if bounds.end > bounds.start:
                raise ConfigurationError(
                    f"topic {target} has records already, of a worker or of a copy that was interrupted: delete it "
                    f"with kafka-topics.sh --bootstrap-server BROKER --delete --topic {target}, and copy again"
                )
        count = 0
        for partition in range(partitions):
            count += await _copy(setup, logs, actor, TopicPartition(source, partition), target)
            report(partition, count)
        await carry_over(setup, topics, logs, store, source, target)
    return count


def _check_source(source: str, found: TopicInfo | None, partitions: int) -> None:
    if found is None:
        raise ConfigurationError(f"topic {source} isn't on the broker: there is nothing to copy")
    if found.partitions != partitions:
        raise ConfigurationError(
            f"topic {source} has {counted(found.partitions, 'partition')}, the actor's input has {partitions}: keys "
            "would lie in the wrong ones"
        )


async def _copy(setup: Setup, logs: KafkaLogs, actor: str, source: TopicPartition, target: str) -> int:
    log = setup.lone_log(actor, source.partition)
    count = 0
    try:
        await log.fence()
        bounds = await logs.bounds(source)
        async for records, _ in logs.read(source, bounds.start, bounds.end):
            outputs = [
                Output(target, source.partition, record.key, record.value, list(record.headers), record.timestamp)
                for record in records
            ]
            for chunk in chunks(outputs, setup.app.actor_options.commit_max_bytes):
                await log.commit(CommitBatch(source.partition, {}, outputs=chunk))
            count += len(outputs)
    finally:
        await log.close()
    return count


async def carry_over(setup: Setup, topics: Topics, logs: Logs, store: str, source: str, target: str) -> None:
    """Keep what is recorded of a store's values when `target`, with a copy of `source`, becomes its changelog."""
    descriptions = await topics.existing([setup.owners_topic, source, target])
    if setup.owners_topic not in descriptions:
        return
    record = (await KafkaOwners(setup.owners_topic, logs).stores()).get(store)
    if (
        record is None
        or record.changelog != source
        or str(descriptions[source].topic_id) not in (record.topic_id, record.last_id)
    ):
        return
    # A claim, so that the next start looks whether another app uses the topic.
    moved = msgspec.structs.replace(
        record,
        changelog=target,
        topic_id="",
        last_id=str(descriptions[target].topic_id),
        copied_id=str(descriptions[source].topic_id),
    )
    await write_stores(setup.connection, setup.owners_topic, {store: moved})
