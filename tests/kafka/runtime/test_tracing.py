"""A trace goes through a real worker and real topics: from the input's headers by way of two actors to the output's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


async def test_an_output_carries_on_the_trace_of_its_input(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, file = unique("traced"), tmp_path / "spans"
    await make_topics(brokers, *(f"{name}-{topic}" for topic in ("in", "middle", "out")), partitions=1)
    async with producing(brokers) as producer:
        traceparent = f"00-{TRACE}-{PARENT}-01".encode()
        await producer.send_and_wait(f"{name}-in", b"hello", b"a", headers=[("traceparent", traceparent)])
        await producer.send_and_wait(f"{name}-in", b"alone", b"b")
    worker = WorkerProcess("tests.kafka.apps.traced_app", brokers, tmp_path / "data", APP_NAME=name, SPANS=str(file))
    workers.append(worker.start())

    async def arrived() -> list[Any]:
        assert worker.is_running(), worker.log()[-3000:]
        found = await read_all(brokers, f"{name}-out")
        return found if len(found) == 2 else []

    hello, alone = await eventually(arrived, what=worker.log)
    spans = {
        (span["name"], span["attributes"]["messaging.kafka.message.key"]): span
        for span in map(json.loads, file.read_text().splitlines())
    }
    assert len(spans) == 4
    one, two = spans[f"process {name}-in", "a"], spans[f"process {name}-middle", "a"]
    assert [span["context"]["trace_id"] for span in (one, two)] == [f"0x{TRACE}"] * 2
    assert [one["parent_id"], two["parent_id"]] == [f"0x{PARENT}", one["context"]["span_id"]]
    assert dict(hello.headers) == {"x": b"1", "traceparent": b"00-%s-%s-01" % (TRACE.encode(), _id(two))}
    # Nobody's: a trace of its own, and not that of the message before it.
    begun, ended = spans[f"process {name}-in", "b"], spans[f"process {name}-middle", "b"]
    assert begun["parent_id"] is None
    assert begun["context"]["trace_id"] == ended["context"]["trace_id"] != f"0x{TRACE}"
    assert dict(alone.headers)["traceparent"].split(b"-")[2] == _id(ended)


def _id(span: dict[str, Any]) -> bytes:
    return str(span["context"]["span_id"]).removeprefix("0x").encode()
