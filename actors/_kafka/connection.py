"""The settings of every client of the worker, and the translation of its errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from actors._kafka.outage import Outages
from actors._kafka.permissions import DESCRIBE, Operation, lacking, principal
from actors._kafka.tokens import PROVIDER, Tokens
from actors.errors import BrokerUnavailableError
from actors.runtime.cancellation import is_cancelled


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the brokers are (`host:port`, …) and the credentials (aiokafka's own arguments)."""

    bootstrap: tuple[str, ...]
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    client_id: str = "faust-actors"
    request_timeout_ms: int = 20_000
    outages: Outages = field(default_factory=Outages, compare=False, repr=False)

    @classmethod
    def to(
        cls, brokers: str | Sequence[str], *, client_id: str, security: Mapping[str, Any] | None = None
    ) -> Connection:
        """Return the connection to brokers as users name them: `host:port`, several with commas, or a list."""
        names = brokers.split(",") if isinstance(brokers, str) else brokers
        bootstrap = tuple(name.strip().removeprefix("kafka://") for name in names)
        return cls(bootstrap, security=dict(security or {}), client_id=client_id)

    @property
    def principal(self) -> str:
        """The user's name in access lists, "" if only the brokers know it."""
        return principal(self.security)

    def arguments(self, role: str) -> dict[str, Any]:
        """Return the arguments that all of aiokafka's classes take; `role` identifies a client in the broker's log."""
        return {
            "bootstrap_servers": list(self.bootstrap),
            "client_id": f"{self.client_id}-{role}",
            "request_timeout_ms": self.request_timeout_ms,
            **self.login,
        }

    @property
    def login(self) -> dict[str, Any]:
        """The credentials, with a token provider whose errors the client handles."""
        provider = self.security.get(PROVIDER)
        return dict(self.security) if provider is None else {**self.security, PROVIDER: Tokens(provider)}


@contextlib.contextmanager
def broker_errors(what: str, connection: Connection | None = None, operation: Operation = DESCRIBE) -> Iterator[None]:
    """Turn the client's errors into `BrokerUnavailableError`, which begins with `what` was being done.

    The error names a missing permission with the user of `connection`; `operation` is what a topic was needed for.

    The client cancels its own futures when a connection dies: if nobody cancelled the running task, a cancellation
    means that the broker is away.
    """
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        missing = lacking(error, "" if connection is None else connection.principal, operation)
        why = missing or words_of(error)
        raise BrokerUnavailableError(f"{what}: {why}", missing=missing) from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise BrokerUnavailableError(f"{what}: the client gave the request up") from error


def words_of(error: BaseException) -> str:
    """Return an error's type, and its text if it has one; the client's texts begin with the type."""
    name, text = type(error).__name__, str(error)
    return text if text.startswith(name) else f"{name}: {text}" if text else name


def is_denied(error: BrokerUnavailableError) -> bool:
    """Return whether the brokers don't let this user look at the topic."""
    return isinstance(error.__cause__, TopicAuthorizationFailedError)
