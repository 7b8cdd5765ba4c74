"""The cluster in memory."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from actors.ports import TopicPartition
from actors.testing.fakes.cluster import MemoryKafka


async def test_the_error_of_a_poll_whose_caller_is_gone_is_not_reported() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    cluster = MemoryKafka("group")
    cluster.make_topic("inputs", 1)
    cluster.poll({TopicPartition("inputs", 0): 7}, max_records=1, timeout_s=1.0)
    gc.collect()
    assert reports == []
