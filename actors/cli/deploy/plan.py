"""`faust -A APP plan`: what a deploy would change. `faust -A APP topics create`: makes the topics that it lists."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import click

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors.cli.deploy.changes import Action, Change, exit_code
from actors.cli.deploy.changes import plan as plan_of
from actors.cli.deploy.schemas import planned as planned_schemas
from actors.cli.deploy.topics import partitions_option, replication_option, topics
from actors.cli.session import Session, with_session
from actors.errors import ConfigurationError


class _ChangesAreTwo(click.Command):
    """A command whose exit code 2 means changes: wrong usage ends with 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; wrong usage ends with 1."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.exit_code = 1
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; wrong usage ends with 1."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.exit_code = 1
            raise


@click.command("plan", cls=_ChangesAreTwo)
@partitions_option
@with_session
def plan(session: Session, partitions: int) -> None:
    """Print what a deploy of this program would change on the cluster, and change nothing.

    Topics to create, settings that differ, stores that are added or removed, versions of state, definitions of windows,
    schemas that the registry lacks; and what a worker of this program would refuse to start with, or a schema breaks.
    Exit code: 0 nothing to do, 2 changes, 1 a worker
    would refuse the program, or the plan can't be made.
    """
    changes = [*asyncio.run(_planned(session.setup, partitions)), *planned_schemas(session)]
    code = exit_code(changes)
    if session.as_json:
        session.say_json({"changes": [_as_json(change) for change in changes], "exit_code": code})
    else:
        for change in changes:
            session.say(str(change))
        session.say(_summary(changes))
    if code:
        raise click.exceptions.Exit(code)


@topics.command("create")
@partitions_option
@replication_option
@with_session
def create(session: Session, partitions: int, replication: int | None) -> None:
    """Make the topics that `plan` lists, and nothing else. Topics that are there aren't changed."""
    made = asyncio.run(_create(session, partitions, replication))
    if session.as_json:
        session.say_json([_as_json(change) for change in made])
    elif not made:
        session.say("all topics are there: nothing was made")


async def _planned(setup: Setup, partitions: int) -> list[Change]:
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        return await plan_of(setup, control, partitions)


async def _create(session: Session, partitions: int, replication: int | None) -> list[Change]:
    setup = session.setup
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        changes = await plan_of(setup, control, partitions)
        refused = [change for change in changes if change.action is Action.REFUSE]
        if refused:
            reasons = "; ".join(f"{change.kind} {change.name}: {change.text}" for change in refused)
            raise ConfigurationError(f"a worker would refuse this program, so no topic was made: {reasons}")
        client, made = Topics(setup.connection, control), []
        for change in changes:
            if change.action is not Action.CREATE:
                continue
            await client.create(
                change.name,
                partitions=change.partitions,
                replication_factor=replication or setup.changelog_settings.replication_factor,
                config=change.config,
            )
            made.append(change)
            if not session.as_json:
                session.say(f"made topic {change.name}: {change.text}")
    return made


def _summary(changes: list[Change]) -> str:
    if not changes:
        return "nothing to do: the cluster is as this program needs it"
    count = {action: sum(change.action is action for change in changes) for action in Action}
    return ", ".join(f"{number} to {action.value}" for action, number in count.items() if number)


def _as_json(change: Change) -> dict[str, Any]:
    return {**{name: value or None for name, value in asdict(change).items()}, "action": change.action.value}
