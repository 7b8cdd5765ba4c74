"""A bank that takes messages by HTTP, with its routes in FastAPI, on the test driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.testclient import TestClient

from actors import Actor, App, Context, Rejected, receive
from actors.testing import ActorTestDriver

WRITE, READ, ADMIN = "writer-0123456789-abcd", "reader-0123456789-abcd", "admin-0123456789-abcdef"
PROBLEM = "urn:faust-actors:problem:"


class Deposit(msgspec.Struct, tag="deposit"):
    """Put money in."""

    cents: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    """Take money out."""

    cents: int


class Break(msgspec.Struct, tag="break"):
    """Fail."""


class Wait(msgspec.Struct, tag="wait"):
    """Answer when the account gets money."""


class Balance(msgspec.Struct):
    """What is in an account."""

    cents: int = 0
    deposits: int = 0


def make_app(**options: Any) -> App:
    """Return the app."""
    tokens = {"write_tokens": [WRITE], "query_tokens": [READ], "admin_tokens": [ADMIN]}
    app = App("bank", broker="kafka://127.0.0.1:1", **{**tokens, **options})

    class Account(Actor[Balance]):
        @receive
        async def deposit(self, message: Deposit) -> int:
            self.state.cents += message.cents
            self.state.deposits += 1
            return self.state.cents

        @receive
        async def withdraw(self, message: Withdraw) -> int:
            if message.cents > self.state.cents:
                raise Rejected(f"there are {self.state.cents}", data={"cents": self.state.cents})
            self.state.cents -= message.cents
            return self.state.cents

        @receive
        async def fail(self, message: Break) -> int:
            raise ValueError("it is broken")

        @receive
        async def wait(self, message: Wait) -> int:
            self.ctx.answer_later()
            return 0

    app.actor(app.topic("accounts", key_type=str), on_error="skip")(Account)

    @app.actor(app.topic("notes", key_type=bytes, value_type=bytes), answer_ttl=timedelta(hours=1))
    async def note(ctx: Context, value: bytes) -> None: ...

    entries = app.store("entries", key_type=int)

    @app.actor(app.topic("log", key_type=int), stores=[entries])
    async def log(ctx: Context, value: Any) -> None:
        entries.set(ctx.key, value)

    return app


@dataclass
class Bank:
    """The app on the driver, and a client of its routes."""

    app: App
    driver: ActorTestDriver
    client: TestClient

    def post(self, path: str, body: Any = None, *, token: str | None = WRITE, **headers: str) -> tuple[int, Any]:
        """Send a message; give the status and the answer. Headers are written with underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent.setdefault("Content-Type", "application/json")
        reply = self.client.post(path, content=content, headers=sent)
        if reply.status_code >= 400:
            assert reply.headers["Content-Type"] == "application/problem+json"
            assert reply.json()["status"] == reply.status_code
            assert reply.json()["detail"]
        return reply.status_code, reply.json()


@contextmanager
def serving(**options: Any) -> Iterator[Bank]:
    """Give the bank."""
    app = make_app(**options)
    api = FastAPI()
    api.include_router(app.router())
    with ActorTestDriver(app) as driver:
        yield Bank(app, driver, TestClient(api))
