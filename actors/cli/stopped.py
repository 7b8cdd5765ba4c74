"""`faust -A APP stopped retry | drop ACTOR PARTITION ID`: what stopped a partition between messages."""

from __future__ import annotations

import asyncio
from typing import Literal

import click

from actors.admin.parked.commands import Addressed, send_commands
from actors.admin.parked.reader import ParkedReader
from actors.admin.pausing import check_partition
from actors.cli.session import Session, with_session
from actors.ports import TopicPartition
from actors.runtime.commands import Command
from actors.runtime.task.release import HALT_LOOK_S


@click.group("stopped")
def stopped() -> None:
    """Retry or drop the timer, the result or the close that stopped a partition; the error in the log names it."""


@stopped.command("retry")
@click.argument("actor")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("id")
@with_session
def retry(session: Session, actor: str, partition: int, id: str) -> None:
    """Hand the timer, result or close of ID to its handler again."""
    _send(session, actor, partition, "retry", id)


@stopped.command("drop")
@click.argument("actor")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("id")
@with_session
def drop(session: Session, actor: str, partition: int, id: str) -> None:
    """Give up the timer, result or close of ID. A periodic timer goes on with its next time."""
    _send(session, actor, partition, "drop", id)


def _send(session: Session, actor: str, partition: int, command: Literal["retry", "drop"], id: str) -> None:
    definition = session.actor(actor)
    if not definition.obeys_commands:
        raise click.UsageError(
            f"actor {actor} has no timers, no effects and no on_close: nothing of it stops between messages. What "
            "stopped it is an input record, and the error in the log says how to give that up"
        )
    source = TopicPartition(definition.topic_name, partition)
    offset = asyncio.run(_sent(session, source, Command(actor=actor, what="turn", command=command, id=id)))
    session.say(
        f"sent to {source} at offset {offset}: the owner looks for it every {HALT_LOOK_S:g} s while {id} stops the "
        "partition, and skips it otherwise"
    )


async def _sent(session: Session, source: TopicPartition, command: Command) -> int:
    async with ParkedReader.connect(session.setup) as reader:
        check_partition(command.actor, source, await reader.control.topics([source.topic]))
        (offset,) = await send_commands(session.setup, reader.control, [Addressed(source, None, command)])
        return offset
