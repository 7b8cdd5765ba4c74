"""Removes a store or an actor from an app's registry, so that a program without it may start."""

from __future__ import annotations

import msgspec

from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners, forget_owners, newest_owners, write_stores
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.host import Setup, require_stopped
from actors.declare.names import OPTION_STORES
from actors.errors import ConfigurationError


async def forget(setup: Setup, name: str) -> list[str]:
    """Forget the store `name`, and the actor `name` with the stores of its options; return their changelogs.

    A store's record stays, marked: a worker of the former program may still start. Topics are left as they are.

    Raises:
        ConfigurationError: the app's registry has neither; the program still has it; workers run that own the actor.
        BrokerUnavailableError: it may not have been written.
    """
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        logs = KafkaLogs(setup.connection, control)
        if not await Topics(setup.connection, control).existing([setup.owners_topic]):
            raise ConfigurationError(f"topic {setup.owners_topic} isn't on the broker: the app has never run")
        owners = KafkaOwners(setup.owners_topic, logs)
        stores, ran = await owners.stores(), newest_owners(await owners.all())
        kept = {
            setup.changelog_topic(store.name) for definition in setup.app.actors.values() for store in definition.stores
        }
        definition = setup.app.actors.get(name)
        is_gone = name in ran and (definition is None or ran[name].topic not in ("", definition.topic_name))
        names = {name, *(f"{name}-{suffix}" for suffix in OPTION_STORES if is_gone)}
        # A renamed store has a record for each of its names.
        topics = {record.changelog for store, record in stores.items() if store in names} - kept
        gone = {store: record for store, record in stores.items() if record.changelog in topics}
        if not gone and not is_gone:
            raise _nothing_to_forget(setup, name, sorted({*stores, *ran}))
        if is_gone:
            await require_stopped(setup, f": they may own actor {name}")
        given_up = {store: msgspec.structs.replace(record, is_given_up=True) for store, record in gone.items()}
        await write_stores(setup.connection, setup.owners_topic, given_up)
        if is_gone:
            records = [record for record in await owners.all() if record.actor == name]
            await forget_owners(setup.connection, setup.owners_topic, records, owners.pauses.keys(name))
    return sorted(topics)


def _nothing_to_forget(setup: Setup, name: str, known: list[str]) -> ConfigurationError:
    if name in known:
        return ConfigurationError(
            f"{name}: the program of -A still has it. Use a program without it, or stop the workers and delete its "
            "topics"
        )
    return ConfigurationError(
        f"{name}: the registry of app {setup.app.conf.id} has neither a store nor an actor of that name, only: "
        f"{', '.join(known) or 'nothing'}"
    )
