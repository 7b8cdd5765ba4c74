"""A handler that does what its message says, to see what each mistake leads to."""

import os

import msgspec

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"])


class Order(msgspec.Struct):
    """What to do."""

    do: str


source = app.topic(f"{NAME}-in", key_type=str, value_type=Order)
out = app.topic(f"{NAME}-out", key_type=str, value_type=bytes)
small = app.topic(f"{NAME}-small", key_type=str, value_type=bytes)
compacted = app.topic(f"{NAME}-compacted", key_type=str, value_type=bytes)
nowhere = app.topic(f"{NAME}-nowhere", key_type=str, value_type=bytes)
mine = app.store("mine", key_type=str, value_type=bytes)
loose = app.store("loose", key_type=str, value_type=bytes)


@app.actor(source, stores=[mine])
async def obey(ctx: Context, order: Order) -> None:  # noqa: C901  a case a mistake
    """Write and send, then do it."""
    mine.set(ctx.key, order.do.encode())
    ctx.send(out, key=ctx.key, value=order.do.encode())
    match order.do:
        case "raise":
            raise KeyError("of the handler")
        case "unknown store":
            loose.get(ctx.key)
        case "foreign key":
            for number in range(100):
                mine.set(f"other-{number}", b"x")
        case "large value":
            mine.set(ctx.key, bytes(2_000_000))
        case "large output":
            ctx.send(out, key=ctx.key, value=bytes(2_000_000))
        case "unknown topic":
            ctx.send(nowhere, key=ctx.key, value=b"x")
        case "no such partition":
            ctx.send(out, key=ctx.key, value=b"x", partition=99)
        case "no key":
            ctx.send(compacted, value=b"x")
        case "text header":
            ctx.send(out, key=ctx.key, value=b"x", headers={"a": "b"})  # type: ignore[dict-item]
        case "float time":
            ctx.send(out, key=ctx.key, value=b"x", timestamp_ms=1.5)  # type: ignore[arg-type]
        case "many":
            for number in range(1000):
                ctx.send(small, key=ctx.key, value=b"%0100d" % number)
        case "to small":
            ctx.send(small, key=ctx.key, value=bytes(10_000))
        case "faust send":
            await out.send(key=ctx.key, value=b"x")
        case _:
            pass
