"""A table that follows a database's, and answers what its rows are."""

import os
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from actors import Context
from tests.kafka.apps.quick import NAME, quick_app


class Customer(msgspec.Struct):
    """A row."""

    id: int
    name: str
    balance: Annotated[Decimal, msgspec.Meta(extra={"scale": 2})]
    seen: datetime | None
    tags: dict[str, Any] | None
    note: str | None
    level: int = 7


app = quick_app()
questions = app.topic(f"{NAME}-questions", key_type=int, value_type=str)
answers = app.topic(f"{NAME}-answers", key_type=int, value_type=dict)
customers = app.table(
    app.topic(os.environ["APP_SOURCE"], key_type=int, value_type=Customer), name="customers", cdc="debezium"
)


@app.actor(questions, stores=[customers])
async def answer(ctx: Context, question: str) -> None:
    """Send the row of a key as plain data."""
    row = customers.get(ctx.key)
    ctx.send(answers, key=ctx.key, value={"question": question, "row": row and msgspec.to_builtins(row)})
