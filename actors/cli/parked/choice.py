"""The actor that a `parked` command names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from actors.admin.parked.reader import UnknownActorError, actor_of
from actors.cli.session import Session

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition


def known_actor(session: Session, name: str) -> ActorDefinition:
    """Give an actor that parks.

    Raises:
        click.UsageError: the app has none of that name.
        ParkedError: it parks nothing.
    """
    try:
        return actor_of(session.app, name)
    except UnknownActorError as error:
        raise click.UsageError(str(error)) from error
