"""What every client of the worker is made with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError

from actors._kafka.outage import Outages
from actors.errors import BrokerUnavailableError


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the brokers are (`host:port`, …) and how to get in (aiokafka's own arguments)."""

    bootstrap: tuple[str, ...]
    security: Mapping[str, Any] = field(default_factory=dict)
    client_id: str = "faust-actors"
    request_timeout_ms: int = 20_000
    outages: Outages = field(default_factory=Outages, compare=False, repr=False)

    def arguments(self, role: str) -> dict[str, Any]:
        """Give the arguments that all of aiokafka's classes take; `role` tells clients apart in the broker's log."""
        return {
            "bootstrap_servers": list(self.bootstrap),
            "client_id": f"{self.client_id}-{role}",
            "request_timeout_ms": self.request_timeout_ms,
            **self.security,
        }


@contextlib.contextmanager
def broker_errors(what: str) -> Iterator[None]:
    """Turn the client's errors into `BrokerUnavailableError`, naming what was being done."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise BrokerUnavailableError(f"{what}: {error}") from error


@contextlib.contextmanager
def own_cancellation(what: str) -> Iterator[None]:
    """Tell a cancellation of the caller from one of the client's futures."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailableError(f"{what}: the client gave the request up") from error
