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
    from actors.admin.backfill import publish_all

    with reporting(session.stderr, quiet=session.quiet) as report:
        topic, partitions, keys = asyncio.run(publish_all(session.setup, name, session.owner_of(name), report))
    session.say_json({"store": name, "topic": topic, "partitions": partitions, "keys": keys})
