"""Pauses and resumes an actor, or one partition of it: a record of the app's registry that all workers follow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from actors._core.task.pauses import MAX_BY_CHARS, Pause
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import write_pause
from actors.admin.host import Setup
from actors.declare.arguments import say_unknown
from actors.errors import BrokerUnavailableError, ConfigurationError
from actors.ports import TopicPartition

WRITE_S = 20.0
"""How long the brokers may take."""


async def set_pause(setup: Setup, actor: str, partition: int | None, *, is_paused: bool, by: str) -> int:
    """Pause or resume all partitions of an actor, or one; return how many partitions that is about.

    Workers follow within about a second. `by` says who asked for it.

    Raises:
        ConfigurationError: the app has no such actor, the actor no such partition, or the app has never run.
        BrokerUnavailableError: the record may not have been written.
    """
    definition = setup.app.actors.get(actor)
    if definition is None:
        known = ", ".join(sorted(setup.app.actors)) or "none"
        raise ConfigurationError(f"{say_unknown('actor', [actor], setup.app.actors)}. The app's actors: {known}")
    pause = Pause(
        actor=actor,
        partition=partition,
        is_paused=is_paused,
        at_ms=setup.app.actor_clock.wall_ms(),
        by=by[:MAX_BY_CHARS],
    )
    topic, registry = definition.topic_name, setup.owners_topic
    try:
        async with asyncio.timeout(WRITE_S), ControlPlane.connect(setup.connection, setup.group) as control:
            found = await control.topics([topic, registry])
            if topic not in found or registry not in found:
                missing = topic if topic not in found else registry
                raise ConfigurationError(
                    f"topic {missing} isn't on the broker: start a worker of app {setup.app.conf.id} once, which "
                    "checks and makes the app's topics"
                )
            count = found[topic].partitions
            if partition is not None:
                check_partition(actor, TopicPartition(topic, partition), found)
            await write_pause(setup.connection, registry, pause)
    except TimeoutError:
        raise BrokerUnavailableError(
            f"writing into {registry}: no answer within {WRITE_S:g} s, so it isn't known whether actor {actor} is "
            f"{'paused' if is_paused else 'resumed'}; the same command may be given again"
        ) from None
    return count if partition is None else 1


def check_partition(actor: str, source: TopicPartition, found: Mapping[str, TopicInfo]) -> None:
    """Refuse a partition that an actor's input doesn't have; `found` are the topics on the broker.

    Raises:
        ConfigurationError: it doesn't, or isn't on the broker.
    """
    topic, partition = source
    count = found[topic].partitions if topic in found else 0
    if not 0 <= partition < count:
        has = f"has {count}, from 0 to {count - 1}" if count else "isn't on the broker"
        raise ConfigurationError(f"actor {actor} has no partition {partition}: its input {topic} {has}")
