"""Removes a store or an actor from an app's registry, so that a program without it may start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners, forget_owners, newest_owners, write_stores
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.host import require_stopped
from actors.admin.operation import Answer, Caller, Operation, argument
from actors.declare.names import OPTION_STORES
from actors.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Operation):
    """Forget the state of a store, or of an actor, that the program of -A doesn't have any more.

    Without it, a worker that would leave the state behind refuses to start. Workers of the former program may go on
    with a store; to give up an actor, stop them. No topic is deleted. The last line on stdout is JSON with the
    changelogs that nobody needs any more.
    """

    command: ClassVar[str] = "state forget"
    name: str = argument("STORE|ACTOR")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Forget the store, and the actor with the stores of its options.

        A store's record stays, marked: a worker of the former program may still start.

        Raises:
            ConfigurationError: the app's registry has neither; the program still has it; workers run that own it.
            BrokerUnavailableError: it may not have been written.
        """
        topics = await _forget(setup, self.name)
        remarks = [
            "when no worker of the former program runs, delete its topic: kafka-topics.sh --bootstrap-server BROKER "
            f"--delete --topic {topic}"
            for topic in topics
        ]
        return Answer(content={"forgotten": self.name, "topics": topics}, remarks=remarks)


async def _forget(setup: Setup, name: str) -> list[str]:
    """Return the changelogs of what is forgotten."""
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
