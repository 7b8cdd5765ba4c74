"""A shared map, its worker and its clients; also made by tests, which write to it."""

import os
from types import SimpleNamespace

from actors import App


def make(name: str, brokers: str) -> SimpleNamespace:
    """Make the app."""
    app = App(name, broker=brokers, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
    shared = app.shared("counts", value_type=int, partitions=2)
    doubles = app.topic(f"{name}-in", key_type=str, value_type=str)
    results = app.topic(f"{name}-out", key_type=str, value_type=int)
    view = app.view(shared)

    @app.actor(doubles)
    async def look(ctx, _) -> None:
        """Send what this worker's view has."""
        ctx.send(results, key=ctx.key, value=view.get(ctx.key, 0))

    return SimpleNamespace(app=app, shared=shared, view=view)


if "APP_NAME" in os.environ:
    app = make(os.environ["APP_NAME"], os.environ["KAFKA_URL"]).app
