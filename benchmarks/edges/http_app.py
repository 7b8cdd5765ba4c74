"""The app of `benchmarks.edges.http`: counts each number that comes by HTTP, and visits that come by Kafka."""

import os

import msgspec

from actors import Actor, App, Context, receive

app = App(
    "edge",
    broker=os.environ["KAFKA_URL"],
    web_bind="127.0.0.1",
    web_port=int(os.environ["WEB_PORT"]),
    write_tokens=["writer-0123456789-abcd"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_commit_interval=0.05,
)


class Add(msgspec.Struct, tag="add"):
    """A number."""

    number: int


class Count(msgspec.Struct):
    """How often a number came."""

    count: int = 0


@app.actor(app.topic("edge-in", key_type=str))
class Number(Actor[Count]):
    """Counts one number."""

    @receive
    async def add(self, message: Add) -> int:
        """Count it."""
        self.state.count += 1
        return self.state.count


visits = app.store("visits", key_type=str, value_type=int)


@app.actor(app.topic("edge-visits", key_type=str, value_type=int), stores=[visits])
async def visit(ctx: Context, number: int) -> None:
    """Count visits, the main job beside which clients follow keys."""
    visits.set(ctx.key, (visits.get(ctx.key) or 0) + number)
