"""Counts messages per key and echoes each running value: any message lost or doubled shows.

`CRASH_AT` makes the process kill itself with `kill -9` at the `CRASH_COUNT`-th time it passes a point:

    claim        inside the takeover's transaction
    handled      messages are handled, the transaction isn't begun
    inside       everything is produced, the transaction isn't ended
    ended        the transaction is committed, RocksDB isn't written
    stored       RocksDB is written
"""

import os
import signal
from datetime import timedelta
from typing import Any

from actors import App, Context
from actors._kafka.produce import writer
from stores.rocks import RocksStore

NAME = os.environ["APP_NAME"]
options: dict[str, Any] = {}
if "INSTANCE_ID" in os.environ:
    options["consumer_group_instance_id"] = os.environ["INSTANCE_ID"]
if "COMMIT_DEADLINE_S" in os.environ:
    options["commit_deadline"] = timedelta(seconds=float(os.environ["COMMIT_DEADLINE_S"]))
if "QUEUE_RECORDS" in os.environ:
    options["queue_records"] = int(os.environ["QUEUE_RECORDS"])
if "MAX_POLL_RECORDS" in os.environ:
    options["broker_max_poll_records"] = int(os.environ["MAX_POLL_RECORDS"])
if "WEB_PORT" in os.environ:
    options["web_port"] = int(os.environ["WEB_PORT"])
if "REPLICATION" in os.environ:
    options["topic_replication_factor"] = int(os.environ["REPLICATION"])

app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    **options,
)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)


@app.actor(source, stores=[counts])
async def count(ctx: Context, value: str) -> None:
    """Count the key's messages."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    ctx.send(echo, key=ctx.key, value=f"{number}:{value}")


_passed = 0


def _pass(point: str) -> None:
    global _passed
    if os.environ.get("CRASH_AT") == point:
        _passed += 1
        if _passed == int(os.environ.get("CRASH_COUNT", "1")):
            os.kill(os.getpid(), signal.SIGKILL)


def _crash_points() -> None:
    append, write_all, apply = writer.append, writer.TransactionWriter.write, RocksStore.apply

    async def send(client: Any, sequences: Any, packed: Any, **options: Any) -> Any:
        ends = await append(client, sequences, packed, **options)
        has_changes = any(partition.topic.endswith("-changelog") for partition in packed)
        _pass("inside" if has_changes else "claim")
        return ends

    async def write(self: Any, identity: Any, batches: Any) -> Any:
        has_changes = any(batch.changelogs for batch in batches)
        if has_changes:
            _pass("handled")
        receipts = await write_all(self, identity, batches)
        if has_changes:
            _pass("ended")
        return receipts

    def store(self: RocksStore, writes: Any, position: Any) -> None:
        apply(self, writes, position)
        _pass("stored")

    writer.append = send
    writer.TransactionWriter.write = write
    RocksStore.apply = store


if "CRASH_AT" in os.environ:
    _crash_points()
