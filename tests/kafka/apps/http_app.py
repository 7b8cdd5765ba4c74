"""Counters that take messages by HTTP."""

import os

import msgspec

from actors import Actor, App, Rejected, receive

NAME = os.environ.get("APP_NAME", "http")
app = App(
    NAME,
    broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"),
    web_bind="127.0.0.1",
    web_port=int(os.environ.get("WEB_PORT", "6066")),
    write_tokens=["writer-0123456789-abcd"],
    query_tokens=["reader-0123456789-abcd"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_commit_interval=0.05,
)


class Add(msgspec.Struct, tag="add"):
    """Count a number."""

    number: int


class Numbers(msgspec.Struct):
    """All numbers that came, in their order."""

    all: list[int] = []


@app.actor(app.topic(f"{NAME}-in", key_type=str))
class Counter(Actor[Numbers]):
    """Keeps numbers."""

    @receive
    async def add(self, message: Add) -> int:
        """Keep a number, and answer how many there are."""
        if message.number < 0:
            raise Rejected("a number below 0")
        self.state.all.append(message.number)
        return len(self.state.all)
