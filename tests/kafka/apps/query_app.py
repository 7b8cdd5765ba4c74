"""State that is asked for: counters, accounts with queries, keys of several kinds.

`SLOW_COMMIT` is how many seconds pass between the end of a transaction and what RocksDB has of it. `PLANT` takes out
one of the rules that make answers right:

    no-lease    the worker believes that it owns what it was given, whatever the time
    no-wait     a question doesn't wait for the commit that is under way
"""

import os
from datetime import timedelta
from typing import Any

import msgspec

from actors import Actor, App, Context, Rejected, query, receive
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.task.context import TaskContext
from tests.kafka.apps.slow_commits import slow_commits

NAME = os.environ["APP_NAME"]
options: dict[str, Any] = {}
if "INSTANCE_ID" in os.environ:
    options["consumer_group_instance_id"] = os.environ["INSTANCE_ID"]
if "WEB_BIND_TO" in os.environ:
    options["web_bind"] = os.environ["WEB_BIND_TO"]

app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    web_port=int(os.environ.get("WEB_PORT", "6066")),
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_commit_interval=0.05,
    **options,
)
commands = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)
brief = app.store("brief", key_type=str, value_type=str, ttl=timedelta(hours=1), expires=True)
anywhere = app.store("anywhere", key_type=int, value_type=str, placement="task")
blobs = app.store("blobs", key_type=bytes, value_type=bytes)


@app.actor(commands, stores=[counts, brief, anywhere, blobs])
async def count(ctx: Context, command: str) -> None:
    """Count the key's messages; some say what else to do."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    ctx.send(echo, key=ctx.key, value=str(number))
    word, _, rest = command.partition(" ")
    if word == "brief":
        brief.set(ctx.key, rest, ttl=timedelta(milliseconds=int(rest)))
    elif word == "anywhere":
        anywhere.set(int(rest), ctx.key)
    elif word == "blob":
        blobs.set(ctx.key.encode(), rest.encode())
    elif word == "delete":
        counts.delete(ctx.key)
    elif word == "fail":
        raise RuntimeError("as it was told")


@app.query(count)
def status(ctx: Context, times: int = 1, loud: bool = False) -> str:
    """Tell the count in words."""
    text = f"{ctx.key}: {(counts.get(ctx.key) or 0) * times}"
    return text.upper() if loud else text


@app.query(count)
def misbehave(ctx: Context, how: str) -> None:
    """Try what a query may not do."""
    if how == "write":
        counts.set(ctx.key, 0)
    elif how == "delete":
        counts.delete(ctx.key)
    elif how == "send":
        ctx.send(echo, key=ctx.key, value="0")
    elif how == "look around":
        list(counts.items())
    elif how == "reject":
        raise Rejected("not today")
    elif how == "raise":
        raise RuntimeError("a secret")


class Deposit(msgspec.Struct):
    """Money that comes in."""

    amount: int


class Balance(msgspec.Struct):
    """An account's state."""

    amount: int = 0


@app.actor(app.topic(f"{NAME}-accounts", key_type=str))
class Account(Actor[Balance]):
    """An account."""

    @receive
    async def deposit(self, message: Deposit) -> None:
        """Take money in."""
        self.state.amount += message.amount

    @query
    def balance(self, currency: str = "EUR") -> str:
        """Tell the balance."""
        return f"{self.state.amount} {currency}"

    @query(name="steal")
    def take(self) -> int:
        """Try to change the state."""
        self.state.amount += 1
        return self.state.amount


def _plant(damage: str) -> None:
    if damage == "no-lease":
        ReadLease.holds = lambda *_: True
    elif damage == "no-wait":
        TaskContext.commit_end = lambda *_: None


if "SLOW_COMMIT" in os.environ:
    slow_commits(float(os.environ["SLOW_COMMIT"]))
_plant(os.environ.get("PLANT", ""))
