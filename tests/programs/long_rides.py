"""Flink's exercise LongRideAlerts: rides of more than two hours, by event time; start and end come in any order."""

from datetime import timedelta

import msgspec

from actors import App, Context


class Ride(msgspec.Struct):
    ride: int
    is_start: bool
    at_ms: int


LONG_MS = 7_200_000
app = App("rides", broker="kafka://127.0.0.1:9092")
rides = app.topic("rides", key_type=str, value_type=Ride, timestamp=lambda ride: ride.at_ms)
alerts = app.topic("alerts", key_type=int, value_type=Ride)
firsts = app.store("firsts", key_type=int, value_type=Ride)


@app.actor(rides, by="ride", stores=[firsts], timers=True)
async def watch(ctx: Context, ride: Ride) -> None:
    first = firsts.get(ctx.key)
    if ctx.timer is None and first is None:
        firsts[ctx.key] = ride
        if ride.is_start:
            ctx.schedule(ride, after=timedelta(milliseconds=LONG_MS), name="long", stream_time=True)
    elif ctx.timer or ((ctx.cancel("long") or ride.is_start) and abs(ride.at_ms - firsts[ctx.key].at_ms) > LONG_MS):
        ctx.send(alerts, key=ctx.key, value=ride)
