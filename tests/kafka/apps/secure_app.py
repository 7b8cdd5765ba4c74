"""An app whose brokers want TLS and a password: an actor, a view, and the lock service."""

import os
import ssl
from pathlib import Path
from typing import Any

import faust

from actors import App, Context
from actors.coordination.service.coordinator import coordination

NAME = os.environ["APP_NAME"]
options: dict[str, Any] = {}
if "WEB_FILES" in os.environ:
    files = Path(os.environ["WEB_FILES"])
    options = {
        "web_certificate": files / "worker.pem",
        "web_key": files / "worker.key",
        "web_client_ca": files / "ca.pem",
        "admin_certificates": ["CN=ops"],
    }

app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_credentials=faust.SASLCredentials(
        username=os.environ["BROKER_USER"],
        password=os.environ["BROKER_PASSWORD"],
        mechanism=os.environ["BROKER_MECHANISM"],
        ssl_context=ssl.create_default_context(cafile=os.environ["BROKER_CA"]),
    ),
    broker_commit_interval=0.05,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    web_port=int(os.environ.get("WEB_PORT", "6066")),
    **options,
)
words = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)
Coordinator = coordination(app, partitions=1)
view = app.view(counts, in_memory=True)


@app.actor(words, stores=[counts])
async def count(ctx: Context, word: str) -> None:
    """Count the key's words."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    ctx.send(echo, key=ctx.key, value=str(number))
