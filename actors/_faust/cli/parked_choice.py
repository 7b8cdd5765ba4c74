"""The actor that a `parked` command names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from actors._faust.cli.session import Session
from actors._faust.parking.lines import UnknownActorError, actor_of

if TYPE_CHECKING:
    from actors._faust.definition import ActorDefinition


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
