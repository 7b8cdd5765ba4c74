"""An outer join within 10 s whose pairs, and records without a match, are sent."""

from datetime import timedelta

from actors import Context
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
left = app.topic(f"{NAME}-left", key_type=str, value_type=int)
right = app.topic(f"{NAME}-right", key_type=str, value_type=int)
results = app.topic(f"{NAME}-out", key_type=str, value_type=list)


@app.join(left, right, within=timedelta(seconds=10), how="outer", grace=timedelta(seconds=40))
async def pairs(ctx: Context, one: int | None, other: int | None) -> None:
    """Send a pair."""
    ctx.send(results, key=ctx.key, value=[one, other])
