"""Counts like `counter_app`, and forgets a key at each third message; its counts are published if `PUBLISH` says so.

`PLANT=outside` damages it: what is published goes out in no transaction, before the commit's.
"""

import os
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaProducer

from actors import App, Context
from actors._kafka.produce.writer import TransactionWriter
from tests.kafka.apps import counter_app  # noqa: F401  it sets the points at which the process kills itself

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    consumer_group_instance_id=os.environ.get("INSTANCE_ID", ""),
    # Many small commits.
    broker_max_poll_records=20,
    broker_commit_interval=0.01,
)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
readers = app.topic(f"{NAME}-readers", key_type=str, value_type=int, partitions=3)
counts = app.store("counts", key_type=str, value_type=int, publish=readers if "PUBLISH" in os.environ else None)


@app.actor(source, stores=[counts])
async def count(ctx: Context, value: str) -> None:
    """Count the key's messages, in two writes."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, -number)
    if int(value) % 3 == 2:
        counts.delete(ctx.key)
    else:
        counts.set(ctx.key, number)


def _publish_outside() -> None:
    write = TransactionWriter._write

    async def send(self: Any, sequences: Any, identity: Any, batches: Any) -> Any:
        async with AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA_URL"].removeprefix("kafka://")) as other:
            for output in (output for batch in batches for output in batch.outputs):
                if output.topic == f"{NAME}-readers":
                    await other.send_and_wait(output.topic, output.value, output.key)
        inside = [
            replace(batch, outputs=[output for output in batch.outputs if output.topic != f"{NAME}-readers"])
            for batch in batches
        ]
        return await write(self, sequences, identity, inside)

    TransactionWriter._write = send  # type: ignore[method-assign]


if os.environ.get("PLANT") == "outside":
    _publish_outside()
