"""An outer join within 10 s whose pairs, and records without a match, are sent."""

import os
from datetime import timedelta

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
    table_standby_replicas=int(os.environ.get("STANDBYS", "0")),
)
left = app.topic(f"{NAME}-left", key_type=str, value_type=int)
right = app.topic(f"{NAME}-right", key_type=str, value_type=int)
results = app.topic(f"{NAME}-out", key_type=str, value_type=list)


@app.join(left, right, within=timedelta(seconds=10), how="outer", grace=timedelta(seconds=40))
async def pairs(ctx: Context, one: int | None, other: int | None) -> None:
    """Send a pair."""
    ctx.send(results, key=ctx.key, value=[one, other])
