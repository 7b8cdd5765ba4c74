"""Payments that are charged outside: each call writes lines to a file, and does what files say: hang, die, fail."""

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import msgspec

from actors import Actor, App, EffectCall, receive

NAME = os.environ["APP_NAME"]
FOLDER = Path(os.environ["EFFECTS_FOLDER"])
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_commit_interval=0.05,
)


class Pay(msgspec.Struct, tag="pay"):
    """Charge it."""

    number: int


class Charged(msgspec.Struct, tag="charged"):
    """It was charged."""

    number: int


class Account(msgspec.Struct):
    """How many payments were charged."""

    charged: int = 0


payments = app.topic(f"{NAME}-payments", key_type=str)
receipts = app.topic(f"{NAME}-receipts", key_type=str, value_type=str)


def write(call: EffectCall, number: int, what: str) -> None:
    """Append a line, whole or not at all."""
    line = {
        "what": what,
        "id": call.idempotency_key,
        "key": call.decoded_key,
        "number": number,
        "token": call.fencing_token,
        "attempt": call.attempt,
        "pid": os.getpid(),
    }
    file = os.open(FOLDER / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def die_if(order: str) -> None:
    """`kill -9` of this process, if there is a file that says so; for once."""
    file = FOLDER / order
    if file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@app.effect(attempts=3, first_wait=timedelta(milliseconds=50), timeout=timedelta(minutes=5))
async def charge(call: EffectCall, number: int) -> Charged:
    """Charge a payment."""
    write(call, number, "begun")
    while (FOLDER / f"hang-{number}").exists():  # noqa: ASYNC110  a file has no event
        await asyncio.sleep(0.02)
    if (FOLDER / f"fail-{number}").exists():
        raise ValueError(f"nobody charges {number}")
    write(call, number, "charged")
    die_if(f"die-after-{number}")
    return Charged(number)


@app.actor(payments, effects=[charge])
class Till(Actor[Account]):
    """Has payments charged, and gives receipts."""

    @receive
    async def pay(self, message: Pay) -> None:
        """Have it charged."""
        self.ctx.effect(charge, message.number)

    @receive
    async def charged(self, message: Charged) -> None:
        """Give a receipt."""
        self.state.charged += 1
        self.ctx.send(receipts, key=self.key, value=f"{message.number} {self.state.charged}")
        die_if(f"die-in-result-{message.number}")
