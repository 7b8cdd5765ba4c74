"""The app's settings as admin commands need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.groups import member_count
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp
from actors.declare.publishing import AppTopics
from actors.errors import ConfigurationError
from actors.ports import TaskLog
from actors.runtime.commands import CommandKey
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.spec import ActorSpec, Feeds
from stores._core.printable import counted


class Setup(AppTopics, Protocol):
    """The settings of an app for its clients; `actors._faust.setup.Setup` is one.

    Attributes:
        connection: how to reach the brokers.
        group: the workers' consumer group.
    """

    connection: Connection
    group: str

    def topics(self, control: ControlPlane) -> Topics:
        """Return the client for topics, which creates some only if the settings allow it."""

    async def check_topics(self, topics: Topics) -> dict[str, TopicInfo]:
        """Return the input topics, or raise a `ConfigurationError` that names the missing ones."""

    def compacted(self, inputs: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Return the partition counts of the app's compacted topics, by name."""

    async def outputs(self, topics: Topics) -> Callable[[Any], OutputTopic]:
        """Look up the topics that handlers may send to; call it before `specs`."""

    async def specs(
        self, inputs: Mapping[str, TopicInfo], changelogs: Mapping[str, TopicInfo], topics: Topics
    ) -> list[ActorSpec]:
        """Return the actors as the runtime needs them."""

    def feeds(self) -> Mapping[str, Feeds]:
        """Return the feeds of the actors' event time, by actor."""

    def command_key(self, topic: str, info: TopicInfo) -> CommandKey:
        """Return the key that signs admin commands to an input."""

    def lone_log(self, actor: str, partition: int) -> TaskLog:
        """Return a transactional writer for a command; no worker may run."""


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
