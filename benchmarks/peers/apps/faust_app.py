"""faust-streaming: `faust -A benchmarks.peers.apps.faust_app worker`, a table on RocksDB (rocksdict) and an agent."""

from __future__ import annotations

from typing import Any

import faust

from benchmarks.peers.apps.settings import Settings

settings = Settings.read()
app = faust.App(
    settings.app,
    broker=";".join(f"kafka://{address}" for address in settings.brokers.split(",")),
    # Not left to -D, which comes too late: the table below asks for the folder when it is made.
    datadir=settings.folder,
    store="rocksdb://?driver=rocksdict",
    processing_guarantee="exactly_once" if settings.exactly_once else "at_least_once",
    broker_commit_interval=settings.commit_s,
    broker_session_timeout=settings.session_s,
    broker_heartbeat_interval=min(1.0, settings.session_s / 3),
    consumer_group_instance_id=settings.instance or None,
    topic_replication_factor=1,
    topic_partitions=settings.partitions,
)


class RunCommand(faust.Record):  # type: ignore[misc]
    """The typed value of the main job."""

    command: str
    args: list[str]


# Keys and raw values are text here, because a table of Faust's keeps everything as JSON, which has no bytes.
counting = settings.work == "counter"
types: dict[str, Any] = {"key_type": str, "key_serializer": "raw"}
types |= {"value_type": RunCommand} if settings.typed else {"value_type": str, "value_serializer": "raw"}
source = app.topic(settings.source, **types)
target = app.topic(settings.target, key_type=str, key_serializer="raw", value_serializer="raw")
state = app.Table(
    "state",
    key_type=str,
    value_type=int if counting else types["value_type"],
    default=int if counting else None,
    options={"driver": "rocksdict"},
)


async def count_per_key(stream: Any) -> None:
    """Count the records of each key, and send every running count with the record that led to it."""
    async for event in stream.events():
        key = event.key
        count = state[key] + 1
        state[key] = count
        await target.send(key=key, value=f"{count}:{event.value}".encode())


async def pass_first(stream: Any) -> None:
    """Pass on the first record of each key."""
    async for key, value in stream.items():
        if key not in state:
            state[key] = value
            await target.send(key=key, value=value.dumps(serializer="json") if settings.typed else value)


app.agent(source, name="work")(count_per_key if counting else pass_first)
