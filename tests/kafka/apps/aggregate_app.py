"""Accounts that move between branches, and what each branch has."""

import os

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
)
results = app.topic(f"{NAME}-results", key_type=str, value_type=list)
accounts = app.table(app.topic(f"{NAME}-accounts", key_type=str, value_type=list), name="accounts")


async def changed(ctx: Context, value: list[int] | None) -> None:
    """Send what a branch has."""
    ctx.send(results, key=ctx.key, value=value)


branches = accounts.aggregate(
    "branches",
    by=lambda account: account[0],
    of=lambda account: account[1],
    add=lambda held, cents: [held[0] + 1, held[1] + cents],
    remove=lambda held, cents: None if held[0] == 1 else [held[0] - 1, held[1] - cents],
    initial=[0, 0],
    value_type=list[int],
    on_change=changed,
)


@app.actor(accounts.topic, stores=[accounts])
async def keep(ctx: Context, account: list | None) -> None:
    """Do nothing beside."""
