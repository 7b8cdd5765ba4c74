"""The lock service of the app: whether it runs one, and a client for the time of a command."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors.coordination.client.client import Coordination
from actors.coordination.errors import CoordinationError
from actors.coordination.messages import ACTOR
from actors.coordination.service.coordinator import Coordinator
from actors.errors import ConfigurationError

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition

TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 3600.0
TIMEOUT = "How many seconds to wait for an answer of the service."


class UnknownNameError(CoordinationError):
    """Nothing of what the command is about is under that name."""


class NameType(click.ParamType):
    """The name of a resource: a text that isn't empty."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Parse the option's value."""
        text = str(value)
        if not text:
            self.fail("a name has at least one character", param, ctx)
        if not is_text(text):
            self.fail(f"{text!r} isn't UTF-8 text", param, ctx)
        return text


NAME = NameType()


def is_text(value: str) -> bool:
    """Return whether an argument is text: bytes that aren't UTF-8 arrive as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def service_of(setup: Setup) -> ActorDefinition:
    """Return the actor that is the app's lock service.

    Raises:
        ConfigurationError: it has none.
    """
    definition = setup.app.actors.get(ACTOR)
    declared = None if definition is None else definition.declared
    if definition is None or not (isinstance(declared, type) and issubclass(declared, Coordinator)):
        raise ConfigurationError(
            f"app {setup.app.conf.id} runs no coordination service: name the app that does, such as "
            "`-A actors.coordination.app`, or add it with actors.coordination.coordination(app)"
        )
    return definition


async def existing(setup: Setup, control: ControlPlane, topic: str) -> TopicInfo:
    """Return one of the service's topics.

    Raises:
        ConfigurationError: the service's actor is missing.
    """
    found = await control.topics([topic])
    if topic not in found:
        raise ConfigurationError(
            f"topic {topic} isn't on the broker: the coordination service of app {setup.app.conf.id} was never "
            "started there. Start a worker, or name another app or broker"
        )
    return found[topic]


@contextlib.asynccontextmanager
async def client_of(setup: Setup, timeout_s: float) -> AsyncIterator[Coordination]:
    """Return a client of the app's service, for the time of the block. Each call waits at most so long.

    Raises:
        ConfigurationError: the app has no service, or it was never started.
        BrokerUnavailableError: no broker answers.
    """
    topic = service_of(setup).topic_name
    # The client asks on until its time is over: what can be known at once is said at once.
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        await existing(setup, control, topic)
    connection = setup.connection
    async with Coordination(
        connection.bootstrap, app=str(setup.app.conf.id), call_timeout=timeout_s, security=connection.security
    ) as client:
        yield client
