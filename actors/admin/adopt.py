"""Copies a changelog into the one that a store has now, for a store that was given another with `changelogs=`.

Keys, values, metadata and partitions stay as they are, so that a restore from the copy ends with the same state. Each
partition is written with the transactional id of its task, which shuts a worker out that was started meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from actors._faust.startup.registry import carry_over
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.groups import member_count
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.backfill import chunks
from actors.errors import ConfigurationError
from actors.ports import NO_OFFSET, CommitBatch, Output, TopicPartition

if TYPE_CHECKING:
    from actors._faust.setup import Setup


async def adopt(setup: Setup, store: str, actor: str, source: str, report: Callable[[int, int], None]) -> int:
    """Copy all committed records of `source` into the changelog of `store`; give their number.

    Raises:
        ConfigurationError: a worker runs; `source` isn't there or has other partitions; the changelog isn't empty.
        ActorsError: a worker took a partition over meanwhile, or the broker is away.
    """
    target = setup.changelog_topic(store)
    members = await member_count(setup.connection, setup.group)
    if members:
        raise ConfigurationError(f"group {setup.group} has {members} members: stop all workers of the app first")
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
        found = (await topics.existing([source])).get(source)
        _check_source(source, found, partitions)
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
            f"topic {source} has {found.partitions} partitions, the actor's input has {partitions}: keys would lie in "
            "the wrong ones"
        )


async def _copy(setup: Setup, logs: KafkaLogs, actor: str, source: TopicPartition, target: str) -> int:
    log = setup.transaction_log(actor, source.partition)
    input_ = TopicPartition(setup.app.actors[actor].topic_name, source.partition)
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
                await log.commit(CommitBatch(input_, NO_OFFSET, "", outputs=chunk))
            count += len(outputs)
    finally:
        await log.close()
    return count
