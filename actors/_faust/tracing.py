"""The tracing of an app's messages. OpenTelemetry is imported only if they are traced."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from actors.errors import ConfigurationError
from actors.runtime.message.outputs import RESERVED, SCHEMA_HEADERS
from actors.runtime.spec import ActorSpec


def check_tracing(app: Any) -> None:
    """Refuse to trace without OpenTelemetry.

    Raises:
        ConfigurationError: naming the setting.
    """
    if app.actor_options.tracing and find_spec("opentelemetry") is None:
        raise ConfigurationError("tracing=True takes OpenTelemetry's API: pip install 'faust-actors[tracing]'")


def traced(spec: ActorSpec, group: str) -> ActorSpec:
    """Return the actor with its handler wrapped in spans."""
    from actors.runtime.observe.tracing import Tracing

    return Tracing.of(spec.name, group).around(spec)


def propagated(spec: ActorSpec, names: Sequence[str]) -> ActorSpec:
    """Return the actor with its messages' headers of these names passed on.

    Raises:
        ConfigurationError: no header has one of the names, or it is the framework's, or that of the id of a schema, by
            which one value was written.
    """
    from actors.runtime.observe.propagation import Propagation

    ids = tuple(SCHEMA_HEADERS.values())
    for name in names:
        if not name or name.startswith(RESERVED) or name in ids:
            raise ConfigurationError(
                f"propagate_headers={name!r}: no name is empty, begins with {RESERVED!r} or is one of {', '.join(ids)}"
            )
    return Propagation(frozenset(names)).around(spec)


def trace_headers(app: Any) -> list[tuple[str, bytes]]:
    """Return the headers that carry the caller's span to an actor, for messages from outside of handlers."""
    if not app.actor_options.tracing:
        return []
    from actors.runtime.observe.tracing import current_headers

    return current_headers()
