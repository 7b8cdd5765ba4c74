"""Two actors in a row, traced: the SDK writes each span that ends as a line of JSON to `SPANS`."""

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from actors import App, Context

NAME = os.environ["APP_NAME"]
sink = Path(os.environ["SPANS"]).open("a", buffering=1)  # noqa: SIM115  it is the exporter's for as long as it runs
provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=sink, formatter=lambda span: f"{span.to_json(indent=None)}\n"))
)
trace.set_tracer_provider(provider)

app = App(NAME, broker=os.environ["KAFKA_URL"], tracing=True, broker_commit_interval=0.05)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
middle = app.topic(f"{NAME}-middle", key_type=str, value_type=str)
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)
seen = app.store("seen", key_type=str, value_type=str)


@app.actor(source)
async def first(ctx: Context, value: str) -> None:
    """Pass it on."""
    ctx.tell("second", ctx.key, value)


@app.actor(middle, stores=[seen])
async def second(ctx: Context, value: str) -> None:
    """Keep it, and send it on."""
    seen.set(ctx.key, value)
    ctx.send(out, key=ctx.key, value=value, headers={"x": b"1"})
