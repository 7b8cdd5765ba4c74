"""What every client of the worker is made with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from actors._core.logs import escaping
from actors._kafka.consume.records import RAW
from actors._kafka.outage import Outages
from actors._kafka.permissions import DESCRIBE, Operation, lacking, principal
from actors._kafka.tokens import PROVIDER, Tokens
from actors.errors import BrokerUnavailableError

logger = escaping(logging.getLogger(__name__))

CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the brokers are (`host:port`, …) and how to get in (aiokafka's own arguments)."""

    bootstrap: tuple[str, ...]
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    client_id: str = "faust-actors"
    request_timeout_ms: int = 20_000
    outages: Outages = field(default_factory=Outages, compare=False, repr=False)

    @classmethod
    def to(
        cls, brokers: str | Sequence[str], *, client_id: str, security: Mapping[str, Any] | None = None
    ) -> Connection:
        """Give one to brokers as users name them: `host:port`, several with commas, or a list of them."""
        names = brokers.split(",") if isinstance(brokers, str) else brokers
        bootstrap = tuple(name.strip().removeprefix("kafka://") for name in names)
        return cls(bootstrap, security=dict(security or {}), client_id=client_id)

    @property
    def principal(self) -> str:
        """The user's name in access lists, "" if only the brokers know it."""
        return principal(self.security)

    def arguments(self, role: str) -> dict[str, Any]:
        """Give the arguments that all of aiokafka's classes take; `role` tells clients apart in the broker's log."""
        return {
            "bootstrap_servers": list(self.bootstrap),
            "client_id": f"{self.client_id}-{role}",
            "request_timeout_ms": self.request_timeout_ms,
            **self.login,
        }

    @property
    def login(self) -> dict[str, Any]:
        """How to get in, with a token provider whose errors the client can bear."""
        provider = self.security.get(PROVIDER)
        return dict(self.security) if provider is None else {**self.security, PROVIDER: Tokens(provider)}


@contextlib.contextmanager
def broker_errors(what: str, connection: Connection | None = None, operation: Operation = DESCRIBE) -> Iterator[None]:
    """Turn the client's errors into `BrokerUnavailableError`, naming what was being done.

    A missing permission is named with the user of `connection`; `operation` is what a topic was wanted for.

    The client cancels futures of its own when a connection dies: a cancellation that the running task wasn't asked for
    is a broker that is away.
    """
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        missing = lacking(error, "" if connection is None else connection.principal, operation)
        why = missing or words_of(error)
        raise BrokerUnavailableError(f"{what}: {why}", missing=missing) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailableError(f"{what}: the client gave the request up") from error


def words_of(error: BaseException) -> str:
    """Return an error's type and what it says, if it says anything."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_denied(error: BrokerUnavailableError) -> bool:
    """Tell whether the brokers don't let this user look at the topic."""
    return isinstance(error.__cause__, TopicAuthorizationFailedError)


def committed_reader(connection: Connection, role: str, fetch_bytes: int) -> AIOKafkaConsumer:
    """Make a consumer without a group that reads what is committed, from where it is told to; it isn't started."""
    consumer = AIOKafkaConsumer(
        **connection.arguments(role),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=fetch_bytes,
        key_deserializer=RAW,
    )
    connection.outages.watch(consumer._client)
    return consumer


async def let_go(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    """Stop a client, though its brokers may be away."""
    try:
        async with asyncio.timeout(CLOSE_S):
            # A consumer that was only just started has a task that didn't begin yet; stopping it then ends half-way,
            # in that task's cancellation.
            await asyncio.sleep(0)
            await client.stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.info("a client was let go: %r", error)
        if isinstance(client, AIOKafkaConsumer):
            # A fetch that failed ends `stop` half-way.
            await client._client.close()
