"""A report each night, made once over all workers."""

from datetime import datetime

from actors import App, Context

app = App("reports", broker="kafka://127.0.0.1:9092")
reports = app.topic("reports", key_type=str, value_type=str)
runs = app.store("runs", key_type=str, value_type=int)


@app.cron("30 2 * * *", tz="Europe/Berlin", stores=[runs])
async def nightly(ctx: Context, at: datetime) -> None:
    number = runs[ctx.key] = (runs.get(ctx.key) or 0) + 1
    ctx.send(reports, key=f"{at:%Y-%m-%d}", value=f"report {number}")
