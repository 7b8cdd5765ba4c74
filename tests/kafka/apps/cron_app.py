"""A cron that runs each second, for tests that can't wait for minutes."""

from datetime import datetime

from actors import Context
from actors.declare import calendar
from tests.kafka.apps.quick import NAME, quick_app

calendar._FIELDS = 6
app = quick_app()
runs = app.topic(f"{NAME}-runs", key_type=str, value_type=str)
count = app.store("count", key_type=str, value_type=int)


@app.cron("* * * * * *", tz="Europe/Berlin", missed="each", stores=[count])
async def report(ctx: Context, at: datetime) -> None:
    """Send the time, and how many runs there were."""
    number = count.get(ctx.key, 0) + 1
    count.set(ctx.key, number)
    ctx.send(runs, key=ctx.key, value=f"{int(at.timestamp())} {number}")
