"""Numbers that two sinks write to PostgreSQL: the last one of each key, and a line for each record."""

import os
from datetime import timedelta
from typing import Any

import msgspec

from actors import App, OnError
from actors.sinks import Record
from actors.sinks.postgres import Postgres

NAME = os.environ["APP_NAME"]
DATABASE = os.environ["DATABASE"]
app = App(NAME, broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)


class Number(msgspec.Struct):
    """A value of a key."""

    number: int


numbers = app.topic(f"{NAME}-numbers", key_type=str, value_type=Number)
SHORT = timedelta(seconds=2)
POLICY = OnError(then="skip", dead_letters=True, longest_wait=timedelta(seconds=0.5))
OPTIONS: dict[str, Any] = {"batch": 100, "within": timedelta(seconds=0.02), "on_error": POLICY}


@app.sink(numbers, to=Postgres(DATABASE, table="latest", key="id", timeout=SHORT), **OPTIONS)
def latest(record: Record) -> dict[str, Any]:
    return {"id": record.key, "number": record.value.number}


@app.sink(numbers, to=Postgres(DATABASE, table="lines", timeout=SHORT), **OPTIONS)
def lines(record: Record) -> dict[str, Any]:
    return {"partition": record.partition, "at": record.offset, "id": record.key, "number": record.value.number}
