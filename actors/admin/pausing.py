"""Pauses and resumes an actor, or one partition of it, and releases feeds of its event time.

Each is a record of the app's registry that all workers follow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from actors._core.event_time import utc_text
from actors._core.task.commit import parse_mark
from actors._core.task.feed_times import NO_TIMES
from actors._core.task.pauses import MAX_BY_CHARS, Pause, Release
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import write_pause
from actors.admin.host import definition_of
from actors.admin.operation import Answer, Caller, Operation, argument
from actors.declare.arguments import say_unknown
from actors.errors import BrokerUnavailableError, ConfigurationError, UsageError
from actors.ports import TopicPartition

WRITE_S = 20.0
"""How long the brokers may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Switch(Operation):
    is_paused: ClassVar[bool]
    where: str = argument("ACTOR[:PARTITION]")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Write the record. Workers follow within about a second.

        Raises:
            UsageError: what follows the colon is no number.
            ConfigurationError: the app has no such actor, the actor no such partition, or the app has never run.
            BrokerUnavailableError: the record may not have been written.
        """
        actor, colon, number = self.where.partition(":")
        if colon and not (number.isascii() and number.isdigit() and len(number) < 8):
            text = f"{self.where!r}: {number!r} isn't a partition's number. Write ACTOR or ACTOR:PARTITION"
            raise UsageError(text)
        topic, partition = definition_of(setup.app, actor).topic_name, int(number) if colon else None
        at_ms = setup.app.actor_clock.wall_ms()
        by = caller.name[:MAX_BY_CHARS]
        pause = Pause(actor=actor, partition=partition, is_paused=self.is_paused, at_ms=at_ms, by=by)
        state = "paused" if self.is_paused else "resumed"
        async with _writing(setup, f"actor {actor} is {state}") as control:
            topics = await _topics(setup, control, topic)
            if partition is not None:
                check_partition(actor, TopicPartition(topic, partition), topics)
            await write_pause(setup.connection, setup.owners_topic, pause)
        count = topics[topic].partitions if partition is None else 1
        what = f"partition {partition}" if partition is not None else f"all {count} partitions"
        what = "its partition" if partition is None and count == 1 else what
        follows = "stop handling records" if self.is_paused else "go on"
        return Answer(
            content={"actor": actor, "partition": partition, "partitions": count, "is_paused": self.is_paused},
            lines=[f"actor {actor}, {what}: {state}. Workers {follows} within about a second"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseActor(_Switch):
    """Let an actor, or one partition of it, handle nothing until it is resumed.

    No records are handled, no timers fire, no windows close, and no effects are begun. Messages whose handlers run come
    to their end, and are committed. Partitions stay with their workers, keep their state and answer queries. A pause
    outlives restarts, rebalances and takeovers.
    """

    command: ClassVar[str] = "pause"
    is_paused: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeActor(_Switch):
    """Let a paused actor, or one partition of it, go on where it was."""

    command: ClassVar[str] = "resume"
    is_paused: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFeed(Operation):
    """Have the event time of ACTOR go on without partition PARTITION of TOPIC.

    `faust actors` names the feed that holds event time back. Windows that wait for it close. The feed counts again when
    it has committed a later time; its records from before that time may be late. TOPIC is an input of the actor, or the
    first input of an actor upstream.
    """

    command: ClassVar[str] = "feeds release"
    actor: str
    topic: str
    partition: int

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Write the record. Workers follow within about a second.

        Raises:
            ConfigurationError: the app has no such actor, the actor no such feed, or the app has never run.
            BrokerUnavailableError: the record may not have been written.
        """
        actor, feed = self.actor, TopicPartition(self.topic, self.partition)
        definition = definition_of(setup.app, actor)
        feeds = setup.feeds().get(actor)
        if feeds is None:
            raise ConfigurationError(f"actor {actor} has one input, and its event time is that of its own records")
        upstream = {topic for topics in feeds.upstream.values() for topic in topics}
        names = sorted(upstream | (set(definition.topic_names) - feeds.upstream.keys()))
        if feed.topic not in names:
            unknown = say_unknown("feed", [feed.topic], names)
            raise ConfigurationError(f"{unknown}. Those of {actor}: {', '.join(names)}")
        async with _writing(setup, f"{feed} is released") as control:
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
                by=caller.name[:MAX_BY_CHARS],
            )
            await write_pause(setup.connection, setup.owners_topic, release)
        at = "has no time" if time_ms < 0 else f"is at {utc_text(time_ms)}"
        text = (
            f"actor {actor}: event time goes on without {feed}, which {at}. Workers follow within about a second, and "
            "the feed counts again when it has committed a later time"
        )
        where = {"actor": actor, "topic": self.topic, "partition": self.partition}
        return Answer(content={**where, "time_ms": max(time_ms, 0) or None}, lines=[text])


@contextlib.asynccontextmanager
async def _writing(setup: Setup, outcome: str) -> AsyncIterator[ControlPlane]:
    """Connect for the time of a write to the registry, which `outcome` says of as a text."""
    try:
        async with asyncio.timeout(WRITE_S), ControlPlane.connect(setup.connection, setup.group) as control:
            yield control
    except TimeoutError:
        raise BrokerUnavailableError(
            f"the broker didn't confirm the write to {setup.owners_topic} within {WRITE_S:g} s, so it is unknown "
            f"whether {outcome}: run the same command again"
        ) from None


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
