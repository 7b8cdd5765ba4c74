"""Bytes from outside, whatever they hold, hurt at most their own record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from actors import App, Context
from actors._kafka.admin.owners import KafkaOwners
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver
from actors.testing.fakes.log import StoredRecord

HOSTILE = {
    "not UTF-8": b'{"actor": "\xff", "what": "message", "command": "retry"}',
    "name not UTF-8": b'{"\xff": 1}',
    "nested": b'{"actor": "park", "what": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "cut": b"[" * 100_000,
}
BYTES = pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)


@BYTES
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_command_that_cannot_be_read_is_no_command(raw: bytes, concurrency: int, caplog: pytest.LogCaptureFixture):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    seen: list[str] = []

    @app.actor(topic, on_error="park", concurrency=concurrency)
    async def park(ctx: Context, text: str) -> None:
        seen.append(text)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="a", value="1", headers={"fa-control": raw})
        driver.send(topic, key="a", value="2")
    assert seen[-1] == "2"
    assert "offset 0" in caplog.text


@BYTES
async def test_a_record_of_the_registry_that_cannot_be_read_is_stepped_over(raw: bytes, caplog: Any) -> None:
    owners = KafkaOwners("shop-actors-owners", None)  # type: ignore[arg-type]
    for key in (b"store:counts", b"counter/0"):
        owners._take(StoredRecord(owners.topic, 0, 7, 0, key, raw, (), None))
    assert caplog.text.count("offset 7 isn't a record of the registry") == 2
    assert TopicPartition("shop-actors-owners", 0) == owners._source


def test_what_decoding_raises_is_named_in_one_place() -> None:
    """msgspec's own errors aren't all that msgspec raises."""
    own = re.compile(r"except \(?msgspec\.(MsgspecError|DecodeError)")
    found = [str(path) for path in Path("actors").rglob("*.py") if own.search(path.read_text())]
    assert found == []
