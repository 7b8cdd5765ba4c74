"""`faust -A APP pause | resume ACTOR[:PARTITION]` and `feeds release ACTOR TOPIC PARTITION`.

An actor, or one partition of it, handles nothing for a while, or its event time goes on without a feed.
"""

from __future__ import annotations

import asyncio
import getpass
import socket

import click

from actors._core.event_time import utc_text
from actors.admin.pausing import release_feed, set_pause
from actors.cli.session import Session, with_session
from actors.ports import TopicPartition


@click.command("pause")
@click.argument("where", metavar="ACTOR[:PARTITION]")
@with_session
def pause(session: Session, where: str) -> None:
    """Let an actor, or one partition of it, handle nothing until it is resumed.

    No records are handled, no timers fire, no windows close, and no effects are begun. Messages whose handlers run come
    to their end, and are committed. Partitions stay with their workers, keep their state and answer queries. A pause
    outlives restarts, rebalances and takeovers.
    """
    _set(session, where, is_paused=True)


@click.command("resume")
@click.argument("where", metavar="ACTOR[:PARTITION]")
@with_session
def resume(session: Session, where: str) -> None:
    """Let a paused actor, or one partition of it, go on where it was."""
    _set(session, where, is_paused=False)


@click.group("feeds")
def feeds() -> None:
    """Release feeds that hold event time back."""


@feeds.command("release")
@click.argument("actor")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@with_session
def release(session: Session, actor: str, topic: str, partition: int) -> None:
    """Have the event time of ACTOR go on without partition PARTITION of TOPIC.

    `faust actors` names the feed that holds event time back. Windows that wait for it close. The feed counts again when
    it has committed a later time; its records from before that time may be late. TOPIC is an input of the actor, or the
    first input of an actor upstream.
    """
    source = TopicPartition(topic, partition)
    time_ms = asyncio.run(release_feed(session.setup, actor, source, by=_who()))
    if session.as_json:
        session.say_json({"actor": actor, "topic": topic, "partition": partition, "time_ms": max(time_ms, 0) or None})
        return
    at = "has no time" if time_ms < 0 else f"is at {utc_text(time_ms)}"
    session.say(
        f"actor {actor}: event time goes on without {source}, which {at}. Workers follow within about a second, and "
        "the feed counts again when it has committed a later time"
    )


def _set(session: Session, where: str, *, is_paused: bool) -> None:
    actor, partition = _place(where)
    count = asyncio.run(set_pause(session.setup, actor, partition, is_paused=is_paused, by=_who()))
    if session.as_json:
        session.say_json({"actor": actor, "partition": partition, "partitions": count, "is_paused": is_paused})
        return
    what = (
        f"partition {partition}"
        if partition is not None
        else f"all {count} partitions"
        if count > 1
        else "its partition"
    )
    if is_paused:
        session.say(f"actor {actor}, {what}: paused. Workers stop handling records within about a second")
    else:
        session.say(f"actor {actor}, {what}: resumed. Workers go on within about a second")


def _place(where: str) -> tuple[str, int | None]:
    actor, colon, number = where.partition(":")
    if not colon:
        return actor, None
    if not (number.isascii() and number.isdigit() and len(number) < 8):
        raise click.UsageError(f"{where!r}: {number!r} isn't a partition's number. Write ACTOR or ACTOR:PARTITION")
    return actor, int(number)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
