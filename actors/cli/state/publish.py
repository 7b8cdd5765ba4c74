"""`faust -A APP state publish STORE`: all that a store holds, for its read-model topic."""

from __future__ import annotations

import asyncio

import click

from actors.cli.progress import reporting
from actors.cli.session import Session, with_session
from actors.errors import ConfigurationError
from actors.runtime.message.publishing import PublishedStore


@click.command("publish")
@click.argument("name", metavar="STORE")
@with_session
def publish(session: Session, name: str) -> None:
    """Write all keys of STORE into the topic that it is published to, while no worker runs.

    For a store that had keys before it got publish=. It may be run again at any time. The last line on stdout is JSON
    with the number of partitions and keys.
    """
    store = session.store(name)
    if not isinstance(store, PublishedStore):
        raise ConfigurationError(
            f"store {name} isn't published: give app.store(...), or @app.actor of a class, publish="
        )
    topic, partitions, keys = asyncio.run(_publish(session, name, session.owner_of(name)))
    session.say_json({"store": name, "topic": topic, "partitions": partitions, "keys": keys})


async def _publish(session: Session, store: str, actor: str) -> tuple[str, int, int]:
    from actors.admin.backfill import Backfill

    async with Backfill.connect(session.setup, store, actor) as backfill:
        await backfill.check_stopped()
        partitions, keys = list(range(backfill.partition_count)), 0
        with reporting(session.stderr, quiet=session.quiet) as report:
            for partition in partitions:
                keys += await backfill.write(partition, report)
        # A worker that was started meanwhile may have been faster.
        await backfill.check_stopped()
    return backfill.topic, len(partitions), keys
