"""Accounts that move between branches, and what each branch has."""

from actors import Context
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
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
