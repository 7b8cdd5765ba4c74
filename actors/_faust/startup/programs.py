"""A check that a program is the one that has run under its app's id: two of them would share one group's partitions.

And whether rows are what it takes them for: those of one kind of store mean something else to another kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors._core.aggregates import Aggregate
from actors._kafka.admin.owners import StoreRecord, newest_owners
from actors.declare.host import DeclaredApp
from actors.errors import ConfigurationError
from actors.ports import OwnerRecord
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.rows.stores import RowStore
from actors.runtime.task.identity import another_input
from actors.runtime.windows.closes import TimedStore
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.store import WindowStore
from stores._core.printable import moment

if TYPE_CHECKING:
    from actors._faust.setup import Setup
    from actors._kafka.admin.topics import Topics

_ANY_AGGREGATE = " of an aggregate"


def check_program(app: DeclaredApp, owners: Iterable[OwnerRecord], *, moved: Collection[str] = ()) -> None:
    """Refuse a program that has nothing of the one that has run under the app's id, or has its names otherwise.

    Actors of `moved` may have another topic as their only input.

    Raises:
        ConfigurationError: it names both.
    """
    ran = newest_owners(owners)
    newest = sorted(ran.values(), key=lambda owner: owner.at_ms)
    inputs = {one.topic: owner for owner in newest for one in owner.inputs if one.topic}
    for definition in app.actors.values():
        name, topic = definition.name, definition.topic_name
        before = ran.get(name)
        is_moved = name in moved and before is not None and before.is_of_another(definition.topic_names)
        if before is not None and before.topic not in ("", topic) and not is_moved:
            raise _other_input(before, definition.topic_names)
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
        before = newest[-1]
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
            if record is None or record.is_given_up or record.partitions == count:
                continue
            raise ConfigurationError(
                f"store {store.name} was partitioned for {record.partitions}, and topic {topic}, the input of actor "
                f"{definition.name}, has {count}: keys would be looked for in the wrong partition if workers' stores "
                f"were written back to topic {record.changelog}. Re-create the input with {record.partitions} "
                "partitions (its records that aren't handled yet are deleted with it: copy them before), and start "
                "with this setting again. When the changelog is whole, the state can be carried over to another number "
                "of partitions (the documentation's page 'Snapshots')"
            )


def _other_input(owner: OwnerRecord, topics: Sequence[str]) -> ConfigurationError:
    name, before = owner.actor, [one.topic for one in owner.inputs]
    if owner.is_of_another(topics):
        remedy = another_input(name, before[0], topics[0])
    else:
        remedy = "Declare the inputs in the former order, and new ones behind them"
    return ConfigurationError(
        f"actor {name} reads topic {', '.join(topics)} now, and read {', '.join(before)} when worker {owner.worker} "
        f"took over its partition {owner.partition} last, at {moment(owner.at_ms)}: its offsets are those of the "
        f"former topics. {remedy}. If this is another actor, give it a name of its own, @app.actor(..., "
        'name="NAME"); if it is another program, give that an id of its own, App("ID")'
    )


def _other_program(app: DeclaredApp, owner: OwnerRecord, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"another program has run under the id {app.conf.id}: {what}. Worker {owner.worker} took over partition "
        f"{owner.partition} of actor {owner.actor} last, at {moment(owner.at_ms)}. Workers of two programs would "
        f'share the partitions of one group: give this program an id of its own, App("ID"); or, if it replaces the '
        f"other one, stop all workers and give the former actor and its state up with "
        f"`faust -A … state forget {owner.actor}`"
    )


def windows_of(app: DeclaredApp) -> dict[str, str]:
    """Return the definitions of the app's window stores as text, by store."""
    return {
        store.name: f"{store.windows}, grace {store.grace_ms} ms, retention {store.retention_ms} ms"
        for definition in app.actors.values()
        for store in definition.windows
        if isinstance(store, WindowStore)
    }


def contents_of(app: DeclaredApp) -> dict[str, str]:
    contents = {name: _plain(store) for name, store in app.stores.items()}
    return contents | {store.name: _timed(store) for actor in app.actors.values() for store in actor.windows}


def _plain(store: Store[Any, Any]) -> str:
    if isinstance(store.below, RowStore):
        return f"rows of a {store.below.kind} below each key"
    return "rows of a table" if isinstance(store, Table) else _values("values", store.aggregation)


def _values(what: str, aggregate: Aggregate[object] | None) -> str:
    if aggregate is None:
        return what
    return f"{what} of the aggregate {aggregate.name}" if aggregate.name else f"{what}{_ANY_AGGREGATE}"


def _timed(store: TimedStore) -> str:
    if isinstance(store, JoinStore):
        return f"records of {store.layout}"
    if not isinstance(store, WindowStore):
        return store.layout
    return _values(f"windows of {store.layout}", store.aggregate)


def _is_of_any(contents: str) -> bool:
    return contents.endswith(_ANY_AGGREGATE)


def check_contents(record: StoreRecord, contents: str) -> None:
    """Refuse to take rows for what they aren't.

    Args:
        record: the store's, of the changelog that there is.
        contents: what this program takes the rows for.

    Raises:
        ConfigurationError: the record says otherwise.
    """
    both = {record.contents, contents}
    # Of an aggregate without a name nobody knows which one it is.
    is_alike = any(map(_is_of_any, both)) and len({one.rpartition(" of ")[:2] for one in both}) == 1
    if record.contents != contents and not is_alike:
        raise ConfigurationError(
            f"store {record.store}: topic {record.changelog} has {record.contents}, and this program would keep "
            f"{contents} there: run the program as it was, or give the store, or the join, another name"
        )
