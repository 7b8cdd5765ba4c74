"""The actor that a `parked` command names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.admin.parked.reader import actor_of
from actors.cli.session import Session

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition


def known_actor(session: Session, name: str) -> ActorDefinition:
    """Return an actor that parks.

    Raises:
        ConfigurationError: the app has none of that name.
        ParkedError: it parks nothing.
    """
    return actor_of(session.app, session.actor(name).name)
