"""`faust -A APP state adopt STORE --from TOPIC`: a changelog's records, for the one that a store has now."""

from __future__ import annotations

import asyncio

import click

from actors.cli.session import Session, with_session
from actors.errors import ConfigurationError


@click.command("adopt")
@click.argument("name", metavar="STORE")
@click.option("--from", "source", required=True, metavar="TOPIC", help="The changelog that the store had before.")
@with_session
def adopt(session: Session, name: str, source: str) -> None:
    """Copy all of TOPIC into the changelog of STORE, while no worker runs.

    For a store that was given another changelog with App(..., changelogs=...). The last line on stdout is JSON with the
    number of records.
    """
    actor = session.actor_of(session.store(name).name)
    if actor is None:
        raise ConfigurationError(f"store {name}: no actor lists it in stores=, so it has no state")
    topic = session.setup.changelog_topic(name)
    records = asyncio.run(_adopt(session, name, actor, source))
    session.say_json({"store": name, "from": source, "topic": topic, "records": records})


async def _adopt(session: Session, store: str, actor: str, source: str) -> int:
    from actors.admin.adopt import adopt as copy

    def report(partition: int, records: int) -> None:
        session.remark(f"partition {partition} is copied, {records} records so far")

    return await copy(session.setup, store, actor, source, report)
