"""Pauses and resumes an actor, or one partition of it, and releases feeds of its event time.

Each is a record of the app's registry that all workers follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from actors._core.task.commit import parse_mark
from actors._core.task.feed_times import NO_TIMES
from actors._core.task.pauses import MAX_BY_CHARS, Pause, Release
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

    Workers follow within about a second. `by` names the client that asked for it.

    Raises:
        ConfigurationError: the app has no such actor, the actor no such partition, or the app has never run.
        BrokerUnavailableError: the record may not have been written.
    """
    definition = _definition(setup, actor)
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
            topics = await _topics(setup, control, topic)
            count = topics[topic].partitions
            if partition is not None:
                check_partition(actor, TopicPartition(topic, partition), topics)
            await write_pause(setup.connection, registry, pause)
    except TimeoutError:
        raise BrokerUnavailableError(
            f"the broker didn't confirm the write to {registry} within {WRITE_S:g} s, so it is unknown whether actor "
            f"{actor} is {'paused' if is_paused else 'resumed'}: run the same command again"
        ) from None
    return count if partition is None else 1


async def release_feed(setup: Setup, actor: str, feed: TopicPartition, *, by: str) -> int:
    """Have an actor's event time go on without a feed until the feed has a later time; return its time, -1 for none.

    Workers follow within about a second. `feed` is an input of the actor, or the first input of a task upstream.

    Raises:
        ConfigurationError: the app has no such actor, the actor no such feed, or the app has never run.
        BrokerUnavailableError: the record may not have been written.
    """
    definition = _definition(setup, actor)
    feeds = setup.feeds().get(actor)
    if feeds is None:
        raise ConfigurationError(f"actor {actor} has one input, and its event time is that of its own records")
    upstream = {topic for topics in feeds.upstream.values() for topic in topics}
    names = sorted(upstream | (set(definition.topic_names) - feeds.upstream.keys()))
    if feed.topic not in names:
        raise ConfigurationError(f"{say_unknown('feed', [feed.topic], names)}. Those of {actor}: {', '.join(names)}")
    try:
        async with asyncio.timeout(WRITE_S), ControlPlane.connect(setup.connection, setup.group) as control:
            check_partition(actor, feed, await _topics(setup, control, feed.topic))
            committed = await control.committed(feed)
            mark = None if committed is None else parse_mark(committed.metadata)
            times = NO_TIMES if mark is None else mark.times
            time_ms = times.output_ms if feed.topic in upstream else times.source_ms
            release = Release(
                actor=actor,
                topic=feed.topic,
                partition=feed.partition,
                time_ms=time_ms,
                at_ms=setup.app.actor_clock.wall_ms(),
                by=by[:MAX_BY_CHARS],
            )
            await write_pause(setup.connection, setup.owners_topic, release)
    except TimeoutError:
        raise BrokerUnavailableError(
            f"the broker didn't confirm the write to {setup.owners_topic} within {WRITE_S:g} s, so it is unknown "
            f"whether {feed} is released: run the same command again"
        ) from None
    return time_ms


def _definition(setup: Setup, actor: str) -> Any:
    definition = setup.app.actors.get(actor)
    if definition is None:
        names = ", ".join(sorted(setup.app.actors)) or "none"
        raise ConfigurationError(f"{say_unknown('actor', [actor], setup.app.actors)}. The app's actors: {names}")
    return definition


async def _topics(setup: Setup, control: ControlPlane, topic: str) -> Mapping[str, TopicInfo]:
    """Return a topic and the registry.

    Raises:
        ConfigurationError: one isn't on the broker.
    """
    topics = await control.topics([topic, setup.owners_topic])
    for name in (topic, setup.owners_topic):
        if name not in topics:
            raise ConfigurationError(
                f"topic {name} isn't on the broker: start a worker of app {setup.app.conf.id} once, which checks and "
                "creates the app's topics"
            )
    return topics


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
