"""Registers that are written, compared and set, and read; also made by tests, to ask from outside.

`PLANT` takes out one of the rules that make answers right:

    no-lease    the worker believes that it owns what it was given, whatever the time
    no-wait     a query doesn't wait for the commit that is under way, which takes `SLOW_COMMIT_S` longer
    blind       `compare_and_set` compares with nothing
"""

import os
from types import SimpleNamespace

import msgspec

from actors import App, Context
from actors.runtime.message.store import Store
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.task.context import TaskContext
from tests.kafka.apps.slow_commits import slow_commits


class Read(msgspec.Struct, tag="read"):
    """Return the value."""


class Write(msgspec.Struct, tag="write"):
    """Write a value, and return the one before it."""

    value: str


class Swap(msgspec.Struct, tag="swap"):
    """Write a value if another one is there, and return whether it was; None is no value."""

    expected: str | None
    value: str | None


def make(name: str, brokers: str) -> SimpleNamespace:
    """Make the app; with `INSTANCE_ID` its worker is a static member, of which a restart waits for no session."""
    options = {"consumer_group_instance_id": os.environ["INSTANCE_ID"]} if "INSTANCE_ID" in os.environ else {}
    app = App(
        name,
        broker=brokers,
        web_port=int(os.environ.get("WEB_PORT", "6066")),
        broker_session_timeout=6.0,
        broker_heartbeat_interval=0.5,
        broker_commit_interval=0.05,
        **options,
    )
    registers = app.store("registers", key_type=str, value_type=str)

    @app.actor(app.topic(f"{name}-in", key_type=str, value_type=Read | Write | Swap), stores=[registers])
    async def register(ctx: Context, message: Read | Write | Swap) -> str | bool | None:
        """Do what is asked."""
        match message:
            case Swap(expected, value):
                return registers.compare_and_set(ctx.key, expected, value)
            case Write(value):
                before = registers.get(ctx.key)
                registers.set(ctx.key, value)
                return before
        return registers.get(ctx.key)

    @app.query(register)
    def look(ctx: Context) -> str | None:
        """Return the value."""
        return registers.get(ctx.key)

    return SimpleNamespace(app=app, register=register)


def _plant(damage: str) -> None:
    match damage:
        case "no-lease":
            ReadLease.holds = lambda *_: True
        case "no-wait":
            TaskContext.commit_end = lambda *_: None
        case "blind":
            compare_and_set = Store.compare_and_set
            Store.compare_and_set = lambda self, key, _, value: compare_and_set(self, key, self.get(key), value)


if "APP_NAME" in os.environ:
    slow_commits(float(os.environ.get("SLOW_COMMIT_S", "0")))
    _plant(os.environ.get("PLANT", ""))
    app = make(os.environ["APP_NAME"], os.environ["KAFKA_URL"]).app
