"""The tracing of an app's messages. OpenTelemetry is imported only if they are traced."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from actors.errors import ConfigurationError
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


def trace_headers(app: Any) -> list[tuple[str, bytes]]:
    """Return the headers that carry the caller's span to an actor, for messages from outside of handlers."""
    if not app.actor_options.tracing:
        return []
    from actors.runtime.observe.tracing import current_headers

    return current_headers()
