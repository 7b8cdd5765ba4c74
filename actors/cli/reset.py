"""`faust -A APP reset`: moves the offsets of actors, with or without their state; or deletes local databases only."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal

import click

from actors._faust.setup import Setup
from actors._faust.startup.programs import check_program
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.reset.moves import Move
from actors.admin.reset.reset import Resetter, effects_of_kept_state
from actors.admin.reset.scope import Scope, scope_of
from actors.admin.reset.targets import FORMS, parse_target
from actors.cli.session import Session, with_session
from actors.errors import ConfigurationError
from stores._core.printable import counted
from stores.folder import DataFolder

_COLUMNS = ("actor", "input topic", "#partition", "#committed", "#becomes", "effect")


@click.command("reset")
@click.option("--to", "target", help=f"Where the offsets go: {FORMS}; times are UTC.")
@click.option("--actor", "names", multiple=True, help="Only this actor, with those that it is connected with by keys.")
@click.option(
    "--state",
    type=click.Choice(["keep", "delete"]),
    default="keep",
    show_default=True,
    help="Whether stores, timers, waiting effects and parked messages go too.",
)
@click.option("--yes", is_flag=True, help="Do it, in place of printing what would be done.")
@with_session
def reset(
    session: Session, target: str | None, names: Sequence[str], state: Literal["keep", "delete"], yes: bool
) -> None:
    """Move the offsets of actors, with or without their state. All workers must be stopped.

    Without --to, only this machine's databases of stores, tables and views are deleted; workers rebuild them from the
    changelogs, and nothing on the broker is changed. What would be done is printed; --yes does it. If it is
    interrupted, run it again: it finishes.
    """
    if target is None:
        if names or state != "keep":
            raise click.UsageError("--actor and --state are about offsets: say where they go with --to")
        _delete_databases(session, is_done=yes)
        return
    where, scope = parse_target(target), scope_of(session.app, names)
    _refuse_locks(scope)
    if not scope.actors:
        raise ConfigurationError(f"app {session.app.conf.id} has no actors")
    moves = asyncio.run(_reset(session.setup, scope, where, deletes_state=state == "delete", is_done=yes))
    if session.as_json:
        session.say_json(_as_json(session.setup, scope, moves, state, is_done=yes))
    else:
        _say(session, scope, moves, state, is_done=yes)


async def _reset(setup: Setup, scope: Scope, target: Any, *, deletes_state: bool, is_done: bool) -> list[Move]:
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        if setup.owners_topic in await Topics(setup.connection, control).existing([setup.owners_topic]):
            owners = KafkaOwners(setup.owners_topic, KafkaLogs(setup.connection, control))
            check_program(setup.app, await owners.all(), moved=[one.name for one in scope.actors])
        resetter = Resetter(setup, control, scope, target, deletes_state=deletes_state)
        return await (resetter.perform() if is_done else resetter.look())


def _refuse_locks(scope: Scope) -> None:
    if any(actor.topic_name.endswith("-coordination") and actor.name == "coordination" for actor in scope.actors):
        raise ConfigurationError(
            "actor coordination is the lock service: its fencing tokens have to grow, and its requests were answered. "
            "Name the other actors with --actor"
        )


def _say(session: Session, scope: Scope, moves: Sequence[Move], state: str, *, is_done: bool) -> None:
    rows = [
        (
            move.actor,
            move.source.topic,
            str(move.source.partition),
            "-" if move.before is None else str(move.before.offset),
            str(move.offset),
            move.effect,
        )
        for move in moves
    ]
    session.say_table(f"Offsets of group {session.setup.group}", _COLUMNS, rows)
    stores = ", ".join(store.name for _, store in scope.stores)
    if stores and state == "delete":
        session.say(f"state of {stores}: {'deleted, with its changelogs' if is_done else 'its changelogs are deleted'}")
    elif stores:
        session.say(f"state of {stores}: kept")
        for line in effects_of_kept_state(scope):
            session.say(line)
    session.say("done" if is_done else "nothing was changed: --yes does it")


def _as_json(setup: Setup, scope: Scope, moves: Sequence[Move], state: str, *, is_done: bool) -> dict[str, Any]:
    return {
        "done": is_done,
        "state": state,
        "changelogs": [setup.changelog_topic(store.name) for _, store in scope.stores] if state == "delete" else [],
        "offsets": [
            {
                "actor": move.actor,
                "topic": move.source.topic,
                "partition": move.source.partition,
                "committed_offset": None if move.before is None else move.before.offset,
                "new_offset": move.offset,
            }
            for move in moves
        ],
    }


def _delete_databases(session: Session, *, is_done: bool) -> None:
    app, setup, verb = session.app, session.setup, "deleted" if is_done else "would be deleted"
    if (app.actors or app.views) and (setup.folder.exists() or setup.views_folder.exists()):
        # Opened in both cases: a folder that a worker uses is refused.
        with closing(DataFolder.open(setup.folder, app=str(app.conf.id))) as folder:
            for store in folder.stores_on_disk():
                partitions = folder.partitions_on_disk(store)
                session.say(f"store {store}: {counted(len(partitions), 'database')} {verb}")
                for partition in partitions if is_done else ():
                    folder.discard(store, partition)
            if setup.views_folder.exists():
                session.say(f"views: their databases {verb}")
                if is_done:
                    shutil.rmtree(setup.views_folder)
    for table in app.tables.values():
        session.say(f"table {table.name}: its database {verb}")
        if is_done:
            table.reset_state()
    session.say("done" if is_done else f"nothing was changed in {setup.folder.parent}: --yes does it")
