"""Numbers that an actor sends on, and sinks write as files, to a service and by a function."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from actors import App, Context
from actors.sinks import Batch, Record
from actors.sinks.http import Webhook
from actors.sinks.parquet import Parquet

NAME = os.environ["APP_NAME"]
FOLDER = Path(os.environ["SINK_FOLDER"])
app = App(NAME, broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)

numbers = app.topic(f"{NAME}-numbers", key_type=str, value_type=int)
doubles = app.topic(f"{NAME}-doubles", key_type=str, value_type=int)
OPTIONS: dict[str, Any] = {"batch": 50, "within": timedelta(seconds=0.05)}


@app.actor(numbers)
async def double(ctx: Context, number: int) -> None:
    ctx.send(doubles, key=ctx.key, value=2 * number)


@app.sink(doubles, to=Parquet(FOLDER / "lake"), **OPTIONS)
def columns(record: Record) -> dict[str, Any]:
    return {"key": record.key, "number": record.value}


@app.sink(doubles, to=Webhook(os.environ["SINK_URL"]), **OPTIONS)
def item(record: Record) -> dict[str, Any]:
    return {"at": f"{record.partition}/{record.offset}", "number": record.value}


@app.sink(doubles, **OPTIONS)
def append(batch: Batch) -> None:
    """Append a line to the partition's file, whole or not at all."""
    numbers = [record.value for record in batch.records]
    line = json.dumps({"first": batch.first, "next": batch.next, "token": batch.token, "numbers": numbers})
    with (FOLDER / f"{batch.partition}.lines").open("a") as file:
        file.write(line + "\n")
