"""Three failed logins within ten minutes (`faust -A examples.failed_logins worker`).

A sliding window ends with each failure, so any three that are close enough are in one, wherever the minutes begin. The
alert goes out with the third failure, and again only for failures that an earlier alert hasn't counted.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context, Sliding, aggregates

app = App("failed-logins", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
WITHIN = timedelta(minutes=10)
LIMIT = 3


class Login(msgspec.Struct):
    """An attempt to log in."""

    succeeded: bool


class Alert(msgspec.Struct):
    """So many failures in a span of time, Unix milliseconds."""

    failures: int
    from_ms: int
    to_ms: int


logins = app.topic("logins", key_type=str, value_type=Login)
alerts = app.topic("login-alerts", key_type=str, value_type=Alert)
failures = app.window_store("failures", Sliding(WITHIN), grace=timedelta(minutes=1), aggregate=aggregates.count())
alerted = app.store("alerted", value_type=int)
"""Until when an account's failures are in an alert, Unix milliseconds."""


@app.actor(logins, stores=[failures, alerted])
async def watch_login(ctx: Context, login: Login) -> None:
    """Count a failure, and send an alert if it is one too many."""
    if login.succeeded:
        return
    until_ms = alerted.get(ctx.key) or 0
    for window, count in failures.add(ctx.key, login):
        if count >= LIMIT and window.start_ms > until_ms:
            alerted.set(ctx.key, window.end_ms)
            ctx.send(alerts, key=ctx.key, value=Alert(count, window.start_ms, window.end_ms))
            return
