"""`faust -A APP state forget NAME`: a store or an actor that the program doesn't have any more."""

from __future__ import annotations

import asyncio

import click

from actors.admin.forget import forget as give_up
from actors.cli.session import Session, with_session


@click.command("forget")
@click.argument("name", metavar="STORE|ACTOR")
@with_session
def forget(session: Session, name: str) -> None:
    """Give up the state of a store, or of an actor, that the program of -A doesn't have any more.

    Without it, a worker that would leave the state behind refuses to start. Workers of the former program may go on
    with a store; to give up an actor, stop them. No topic is deleted. The last line on stdout is JSON with the
    changelogs that nobody needs any more.
    """
    topics = asyncio.run(give_up(session.setup, name))
    for topic in topics:
        session.remark(
            "when no worker of the former program runs, delete its topic: kafka-topics.sh --bootstrap-server BROKER "
            f"--delete --topic {topic}"
        )
    session.say_json({"forgotten": name, "topics": topics})
