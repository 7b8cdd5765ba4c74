"""Transfers that are made once at most: each call writes lines to a file, and orders have what they were told."""

import asyncio
import json
import os
from pathlib import Path

from actors import Actor, App, EffectCall, GivenUp, Unknown, receive

NAME = os.environ["APP_NAME"]
FOLDER = Path(os.environ["EFFECTS_FOLDER"])
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_commit_interval=0.05,
)
orders = app.topic(f"{NAME}-orders", key_type=str, value_type=int)
told = app.topic(f"{NAME}-told", key_type=str, value_type=str)


def write(call: EffectCall, number: int, what: str) -> None:
    """Append a line, whole or not at all."""
    line = {"what": what, "id": call.idempotency_key, "number": number, "pid": os.getpid()}
    file = os.open(FOLDER / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


@app.effect(repeat="never", on_give_up="refused", on_unknown="unclear")
async def transfer(call: EffectCall, number: int) -> int:
    """Transfer something; each seventh is refused."""
    write(call, number, "begun")
    await asyncio.sleep(0.1)
    if number % 7 == 0:
        raise ValueError("refused")
    write(call, number, "made")
    return number


@app.actor(orders, effects=[transfer])
class Order(Actor[None, str]):
    """One order."""

    @receive
    async def place(self, number: int) -> None:
        """Have it transferred."""
        self.ctx.effect(transfer, number, then=self.made)

    async def made(self, number: int) -> None:
        """Note that it was made."""
        self.ctx.send(told, key=self.key, value=f"made {number}")

    async def refused(self, outcome: GivenUp) -> None:
        """Note that it was refused."""
        self.ctx.send(told, key=self.key, value=f"refused {outcome.attempts}")

    async def unclear(self, outcome: Unknown) -> None:
        """Note that nobody knows."""
        self.ctx.send(told, key=self.key, value=f"unclear {outcome.id}")
