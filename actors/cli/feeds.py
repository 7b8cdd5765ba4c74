"""`faust -A APP feeds release ACTOR TOPIC PARTITION`: the event time of an actor goes on without a feed."""

from __future__ import annotations

import asyncio

import click

from actors._core.event_time import utc_text
from actors.admin.pausing import release_feed
from actors.cli.pausing import who
from actors.cli.session import Session, with_session
from actors.ports import TopicPartition


@click.group("feeds")
def feeds() -> None:
    """Have event time go on without a feed that holds it back: `faust actors` names it."""


@feeds.command("release")
@click.argument("actor")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@with_session
def release(session: Session, actor: str, topic: str, partition: int) -> None:
    """Have the event time of ACTOR go on without partition PARTITION of TOPIC.

    Windows that wait for it close. The feed counts again when it has committed a later time; what it still delivers of
    the time before may be late then. TOPIC is an input of the actor, or the first input of an actor upstream.
    """
    source = TopicPartition(topic, partition)
    time_ms = asyncio.run(release_feed(session.setup, actor, source, by=who()))
    if session.as_json:
        session.say_json({"actor": actor, "topic": topic, "partition": partition, "time_ms": max(time_ms, 0) or None})
        return
    at = "has no time" if time_ms < 0 else f"is at {utc_text(time_ms)}"
    session.say(
        f"actor {actor}: event time goes on without {source}, which {at}. Workers follow within about a second, and "
        "the feed counts again when it has committed a later time"
    )
