"""Whether a program is the one that has run under its app's id: two of them would share one group's partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from actors._kafka.admin.owners import StoreRecord, newest_owners, taken_over_ms
from actors.declare.host import DeclaredApp
from actors.errors import ConfigurationError
from actors.ports import OwnerRecord
from stores._core.printable import moment

if TYPE_CHECKING:
    from actors._faust.setup import Setup
    from actors._kafka.admin.topics import Topics


def check_program(app: DeclaredApp, owners: Iterable[OwnerRecord]) -> None:
    """Refuse a program that has nothing of the one that has run under the app's id, or has its names otherwise.

    Raises:
        ConfigurationError: it names both.
    """
    ran = newest_owners(owners)
    newest = sorted(ran.values(), key=taken_over_ms)
    inputs = {one.topic: owner for owner in newest for one in owner.inputs if one.topic}
    for definition in app.actors.values():
        name, topic = definition.name, definition.topic_name
        before = ran.get(name)
        if before is not None and before.topic not in ("", topic):
            raise _other_program(
                app, before, f"the input of actor {name} is topic {before.topic}, and this program's {name} has {topic}"
            )
        for topic in definition.topic_names:
            other = inputs.get(topic)
            if other is None or other.actor == name:
                continue
            raise _other_program(
                app,
                other,
                f"topic {topic} is the input of actor {other.actor}, and this program gives it to actor {name} (an "
                f'actor that is called otherwise keeps its name with @app.actor(..., name="{other.actor}"))',
            )
    if ran and app.actors and ran.keys().isdisjoint(app.actors):
        before = max(ran.values(), key=taken_over_ms)
        raise _other_program(
            app, before, f"its actors are {', '.join(sorted(ran))}, and this program has {', '.join(app.actors)}"
        )


async def check_counts(setup: Setup, topics: Topics, known: Mapping[str, StoreRecord | None]) -> None:
    """Refuse to write stores back to changelogs with another number of partitions than the stores were made for.

    Raises:
        ConfigurationError: an input has another number now.
    """
    definitions = setup.app.actors.values() if setup.lost_changelog.restores else ()
    inputs = await topics.existing(definition.topic_name for definition in definitions)
    for definition in definitions:
        topic = definition.topic_name
        for store in definition.stores if topic in inputs else ():
            record, count = known.get(store.name), inputs[topic].partitions
            if record is None or record.is_given_up or record.partitions in (0, count):
                continue
            raise ConfigurationError(
                f"store {store.name} was partitioned for {record.partitions}, and topic {topic}, the input of actor "
                f"{definition.name}, has {count}: keys would be looked for in the wrong partition if workers' stores "
                f"were written back to topic {record.changelog}. Re-create the input with {record.partitions} "
                "partitions (its records that aren't handled yet are deleted with it: copy them before), and start "
                "with this setting again. When the changelog is whole, the state can be carried over to another number "
                "of partitions (docs/how-to/snapshots.md)"
            )


def _other_program(app: DeclaredApp, owner: OwnerRecord, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"another program has run under the id {app.conf.id}: {what}. Worker {owner.worker} took over partition "
        f"{owner.partition} of actor {owner.actor} last, at {moment(owner.at_ms)}. Workers of two programs would "
        f'share the partitions of one group: give this program an id of its own, App("ID"); or, if it replaces the '
        f"other one, stop all workers and give the former actor and its state up with "
        f"`faust -A … state forget {owner.actor}`"
    )
