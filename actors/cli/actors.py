"""`faust -A APP actors`: who owns what, and how far it is."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from actors._faust.setup import Setup
from actors.cli.cluster import Cluster, TaskStatus, owner_name
from actors.cli.session import Session, with_session

NOBODY = "(nobody yet)"
NO_TOPIC = "(the topic isn't on the broker)"
_COLUMNS = (
    "actor", "input topic", "#partition", "stores", "owner", "state", "#epoch", "#committed", "#end", "#lag",
)  # fmt: skip


@click.command("actors")
@with_session
def actors(session: Session) -> None:
    """List the tasks of the app's actors.

    A task is one actor on one partition of its inputs; each input has a line of its own. The owner is the worker that
    took it over last, as the app's leader registry has it; the state is what that worker answers. A partition that
    stands still is listed with its reason. The lag counts the records that wait, or the offsets where these are more
    than 100. Members of the group that get no partitions are named below the table.
    """
    rows, strangers = asyncio.run(_ask(session.setup))
    if session.as_json:
        session.say_json([_as_json(row) for row in rows])
        return
    if not rows:
        session.say(f"app {session.app.conf.id} has no actors")
        return
    session.say_table(f"Actors of {session.app.conf.id}", _COLUMNS, map(_as_row, rows))
    reasons = (f"{row.actor}, partition {row.partition}, {row.state}: {row.reason}" for row in rows if row.reason)
    for reason in dict.fromkeys(reasons):
        session.say(reason)
    for stranger in strangers:
        session.say(stranger)


async def _ask(setup: Setup) -> tuple[list[TaskStatus], list[str]]:
    async with Cluster.connect(setup) as cluster:
        return await cluster.tasks(), await cluster.strangers()


def _as_row(row: TaskStatus) -> list[str]:
    stores = ", ".join(row.stores) or "-"
    if row.partition is None:
        return [row.actor, row.topic, "-", stores, NO_TOPIC, "-", "-", "-", "-", "-"]
    owner = row.owner
    return [
        row.actor,
        row.topic,
        str(row.partition),
        stores,
        NOBODY if owner is None else owner_name(owner),
        row.state,
        "-" if owner is None else str(owner.epoch),
        "-" if row.committed is None else str(row.committed),
        str(row.end),
        str(row.lag),
    ]


def _as_json(row: TaskStatus) -> dict[str, Any]:
    owner, known = row.owner, row.partition is not None
    return {
        "actor": row.actor,
        "topic": row.topic,
        "partition": row.partition,
        "stores": list(row.stores),
        "owner": owner and {"worker": owner.worker, "address": owner.address, "since_ms": owner.at_ms},
        "state": row.state if known else None,
        "reason": row.reason or None,
        "epoch": None if owner is None else owner.epoch,
        "committed_offset": row.committed,
        "end_offset": row.end if known else None,
        "lag": row.lag if known else None,
    }
