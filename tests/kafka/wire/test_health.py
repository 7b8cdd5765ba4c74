"""What a worker says of its health while brokers don't answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, unique
from tests.kafka.wire.proxy import Api, WireProxy, lose_request

PARTITIONS = 2


@pytest.mark.nightly
async def test_a_worker_is_ready_only_while_the_group_and_the_leaders_answer(
    brokers: str, proxy: WireProxy, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, port = unique("health"), free_port()
    await make_topics(brokers, f"{name}-in", f"{name}-out", f"{name}-accounts", partitions=PARTITIONS)
    module = "tests.kafka.apps.query_app"
    worker = WorkerProcess(module, proxy.bootstrap, tmp_path / "data", APP_NAME=name, WEB_PORT=str(port))
    workers.append(worker.start(web=True))
    async with aiohttp.ClientSession() as session:

        async def health(path: str = "") -> tuple[int, Any]:
            try:
                async with session.get(f"http://127.0.0.1:{port}/health{path}") as reply:
                    return reply.status, await reply.json()
            except aiohttp.ClientError:
                return 0, {"missing": ["no answer"]}

        async def is_ready() -> bool:
            return (await health("/ready"))[0] == 200

        async def misses(*texts: str, how: Callable[[Iterable[bool]], bool] = all) -> bool:
            missing = "; ".join((await health())[1]["missing"])
            return how(text in missing for text in texts)

        await eventually(is_ready, what=worker.log)
        for api in (Api.HEARTBEAT, Api.FETCH):
            proxy.on(api, lose_request, times=None)
        silent = (
            "the group's coordinator hasn't taken a heartbeat",
            f"of {2 * PARTITIONS} partitions: the leader hasn't",
        )
        await eventually(lambda: misses(*silent), what=worker.log)
        status, said = await health()
        assert (status, said["status"], said["live"], said["startup"]) == (503, "unavailable", True, True)
        proxy.calm()
        await eventually(is_ready, what=worker.log)
        proxy.on(None, lose_request, times=None)
        # It may just be joining again.
        cut_off = silent[0], "the group hasn't given out its partitions"
        await eventually(lambda: misses(*cut_off, how=any), what=worker.log)
        assert (await health("/live"))[0] == 200
        proxy.calm()
        await eventually(is_ready, what=worker.log)
