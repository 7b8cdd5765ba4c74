"""Checks that admin commands share."""

from __future__ import annotations

from actors._faust.setup import Setup
from actors._kafka.admin.groups import member_count
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp
from actors.errors import ConfigurationError
from stores._core.printable import counted


def definition_of(app: DeclaredApp, name: str) -> ActorDefinition:
    """Return the app's actor of that name.

    Raises:
        ConfigurationError: there is none.
    """
    definition = app.actors.get(name)
    if definition is None:
        names = ", ".join(sorted(app.actors)) or "none"
        raise ConfigurationError(f"app {app.conf.id} has no actor {name!r}. Its actors: {names}")
    return definition


async def require_stopped(setup: Setup, advice: str = "") -> None:
    """Check that no worker of the app runs.

    Raises:
        ConfigurationError: one does; `advice` ends its text.
        BrokerUnavailableError: the group's coordinator doesn't answer.
    """
    if members := await member_count(setup.connection, setup.group):
        raise ConfigurationError(
            f"group {setup.group} has {counted(members, 'member')}: stop all workers of the app first{advice}"
        )
