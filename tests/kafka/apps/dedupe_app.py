"""Put-if-absent with raw values."""

import os

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"])
commands = app.topic(f"{NAME}-in", key_type=bytes, value_type=bytes)
runs = app.topic(f"{NAME}-out", key_type=bytes, value_type=bytes)
seen = app.store("seen", key_type=bytes, value_type=bytes)


@app.actor(commands, stores=[seen])
def run_once(ctx: Context, command: bytes) -> None:
    """Forward a command the first time; a plain function is an actor too."""
    if seen.put_if_absent(ctx.key, command) is None:
        ctx.send(runs, key=ctx.key, value=command)


@app.timer(0.2, on_leader=True)
async def lead() -> None:
    """Say so."""
    print("the leader is here")
