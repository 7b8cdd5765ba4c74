"""Counts messages per key and echoes each running value; another program's damage can be planted with `PLANT`."""

import os

from actors import App, Context
from actors._core import placement

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=float(os.environ.get("SESSION_S", "6")),
    broker_heartbeat_interval=float(os.environ.get("HEARTBEAT_S", "0.5")),
    table_standby_replicas=int(os.environ.get("STANDBYS", "1")),
    acceptable_recovery_lag=int(os.environ.get("ACCEPTABLE_LAG", "1000")),
    web_port=int(os.environ.get("WEB_PORT", "6066")),
)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)


@app.actor(source, stores=[counts])
async def count(ctx: Context, value: str) -> None:
    """Count the key's messages."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    ctx.send(echo, key=ctx.key, value=str(number))


if os.environ.get("PLANT") == "ignore warmth":
    placement._Placing._is_cold = lambda self, task, index: False  # type: ignore[method-assign]
if os.environ.get("PLANT") == "no standbys":
    placement._Placing._choose_standbys = lambda self: None  # type: ignore[method-assign]
