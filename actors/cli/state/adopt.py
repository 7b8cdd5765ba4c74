"""`faust -A APP state adopt STORE --from TOPIC`: a changelog's records, for the one that a store has now."""

from __future__ import annotations

import asyncio

import click

from actors.admin.adopt import adopt as copy
from actors.cli.session import Session, with_session


@click.command("adopt")
@click.argument("name", metavar="STORE")
@click.option("--from", "source", required=True, metavar="TOPIC", help="The changelog that the store had before.")
@with_session
def adopt(session: Session, name: str, source: str) -> None:
    """Copy all of TOPIC into the changelog of STORE, while no worker runs.

    For a store that was given another changelog with App(..., changelogs=...). The last line on stdout is JSON with the
    number of records.
    """
    actor = session.owner_of(session.store(name).name)
    topic = session.setup.changelog_topic(name)

    def report(partition: int, records: int) -> None:
        session.remark(f"partition {partition} is copied, {records} records so far")

    records = asyncio.run(copy(session.setup, name, actor, source, report))
    session.say_json({"store": name, "from": source, "topic": topic, "records": records})
