"""Whether a program is the one that has run under its app's id: two of them would share one group's partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from actors.errors import ConfigurationError
from actors.ports import OwnerRecord
from stores._core.printable import moment

if TYPE_CHECKING:
    from actors._faust.app import App

OWN_STORES = ("ids", "timers", "effects", "parked", "answers")
"""What follows an actor's name and a dash in the names of the stores of its options."""


def check_program(app: App, owners: Iterable[OwnerRecord]) -> None:
    """Refuse a program that has nothing of the one that has run under the app's id, or has its names otherwise.

    Raises:
        ConfigurationError: it names both.
    """
    ran = newest_owners(owners)
    inputs = {owner.topic: owner for owner in sorted(ran.values(), key=_at_ms) if owner.topic}
    for definition in app.actors.values():
        name, topic = definition.name, definition.topic_name
        before = ran.get(name)
        if before is not None and before.topic not in ("", topic):
            raise _other_program(
                app, before, f"the input of actor {name} is topic {before.topic}, and this program's {name} has {topic}"
            )
        other = inputs.get(topic)
        if other is not None and other.actor != name:
            raise _other_program(
                app,
                other,
                f"topic {topic} is the input of actor {other.actor}, and this program gives it to actor {name} (an "
                f'actor that is called otherwise keeps its name with @app.actor(..., name="{other.actor}"))',
            )
    if ran and app.actors and ran.keys().isdisjoint(app.actors):
        before = max(ran.values(), key=_at_ms)
        raise _other_program(
            app, before, f"its actors are {', '.join(sorted(ran))}, and this program has {', '.join(app.actors)}"
        )


def newest_owners(owners: Iterable[OwnerRecord]) -> dict[str, OwnerRecord]:
    """Return the newest record of each actor: its partitions were another topic's once, if its input has changed."""
    return {owner.actor: owner for owner in sorted(owners, key=_at_ms)}


def _at_ms(owner: OwnerRecord) -> int:
    return owner.at_ms


def _other_program(app: App, owner: OwnerRecord, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"another program has run under the id {app.conf.id}: {what}. Worker {owner.worker} took over partition "
        f"{owner.partition} of actor {owner.actor} last, at {moment(owner.at_ms)}. Workers of two programs would "
        f'share the partitions of one group: give this program an id of its own, App("ID"); or, if it replaces the '
        f"other one, stop all workers and give the former actor and its state up with "
        f"`faust -A … state forget {owner.actor}`"
    )
