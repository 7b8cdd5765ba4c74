"""Does what a test's environment says: what the registry is to notice is how two runs of it differ."""

import os
from typing import Any

import msgspec

from actors import Actor, App, Context, receive

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    changelogs=dict(pair.split("=") for pair in os.environ.get("APP_CHANGELOGS", "").split(",") if pair),
)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)


class Purse(msgspec.Struct):
    """A state as it was first."""

    coins: int = 0


class Wallet(msgspec.Struct):
    """The same with another name for its field."""

    money: int = 0


class Grown(msgspec.Struct):
    """The first with another field."""

    coins: int = 0
    notes: int = 0


KIND = os.environ.get("APP_KIND", "copy")

if KIND in ("copy", "other"):

    @app.actor(source, name=KIND)
    def copy(ctx: Context, value: str) -> None:
        """Send on what comes."""
        ctx.send(out, key=ctx.key, value=value)

elif KIND in ("purse", "wallet", "grown"):
    State = {"purse": Purse, "wallet": Wallet, "grown": Grown}[KIND]

    class Saver(Actor[State]):  # type: ignore[valid-type]
        """Keeps a state."""

        @receive
        def more(self, value: str) -> None:
            """Look at the state."""
            self.state  # noqa: B018

    app.actor(source, name="saver")(Saver)

elif KIND in ("parks", "stops"):

    @app.actor(source, name="copy", on_error="park" if KIND == "parks" else "stop")
    def fail(ctx: Context, value: Any) -> None:
        """Handle nothing."""
        raise ValueError(value)

else:
    count = app.store(KIND, value_type=int, renamed_from=os.environ.get("APP_RENAMED"))

    @app.actor(source, name="counter", stores=[count])
    def add(ctx: Context, value: str) -> None:
        """Count a key's messages."""
        number = (count.get(ctx.key) or 0) + 1
        count.set(ctx.key, number)
        ctx.send(out, key=ctx.key, value=f"{number}")
