"""Whole workers behind a connection that fails at random: what is committed is the input, once and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.protocol.admin import ApiVersionResponse_v0, ApiVersionResponse_v1

from actors._faust.setup import Setup
from actors._kafka.admin.control import UPGRADE, ControlPlane
from actors._kafka.connection import Connection
from actors.cli.doctor.examine import examine
from actors.cli.doctor.report import Level
from actors.errors import ConfigurationError
from tests.kafka.apps import needs_app
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique
from tests.kafka.runtime.test_exactly_once import MODULE, PARTITIONS, all_echoed, begin, expected_echo, records, stored
from tests.kafka.wire.proxy import Action, Api, Chaos, Exchange, WireProxy

TOO_OLD = {Api.PRODUCE: 8, Api.OFFSET_FETCH: 6, Api.INIT_PRODUCER_ID: 2, Api.TXN_OFFSET_COMMIT: 2}
INPUTS = 20_000
SHARE = 200
FAULTS = 40


@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 2], ids=["one worker", "two workers"])
async def test_workers_behind_a_bad_network(
    brokers: str, proxy: WireProxy, tmp_path: Path, workers: list[WorkerProcess], count: int
) -> None:
    """Connections end before and after requests, requests are late and come twice; seeded, and bounded in number."""
    name = await begin(brokers)
    sent = records(INPUTS, seed=count)
    for number in range(count):
        worker = WorkerProcess(
            MODULE, proxy.bootstrap, tmp_path / f"data-{number}", APP_NAME=name, MAX_POLL_RECORDS="20"
        )
        workers.append(worker.start())
        await eventually(lambda worker=worker: "owns" in worker.log(), what=worker.log)
    chaos = Chaos(count, faults=FAULTS, chance=0.1)
    proxy.on(None, chaos, times=None)
    done, is_calm = 0, False
    while not is_calm:
        assert done < len(sent), f"{chaos.left} faults are left"
        # The last share meets no fault: after a commit whose reply is lost, the stores are behind until the next one.
        is_calm = not chaos.left
        await send(brokers, f"{name}-in", sent[done : done + SHARE], partitions=PARTITIONS)
        done += SHARE
        await all_echoed(brokers, name, sent[:done], *workers)
    # Blocks otherwise, and the workers' way to the broker is in this loop.
    assert [await asyncio.to_thread(worker.terminate) for worker in workers] == [0] * count
    if count == 1:
        held = stored(workers[0].folder, name)
        assert held == {key: len(values) for key, values in expected_echo(sent[:done]).items()}


def with_highest(highest: dict[Api, int]) -> Action:
    """The broker is one that knows these requests up to these versions."""

    async def action(exchange: Exchange) -> bytes:
        reply = await exchange.ask()
        if exchange.version > 2:
            return reply
        said = (ApiVersionResponse_v1 if exchange.version else ApiVersionResponse_v0).decode(reply[4:])
        said.api_versions = [(key, low, min(high, highest.get(key, high))) for key, low, high in said.api_versions]
        return reply[:4] + said.encode()

    return action


@pytest.mark.parametrize("api", TOO_OLD)
async def test_a_broker_that_lacks_a_request_is_named(brokers: str, proxy: WireProxy, api: Api) -> None:
    control = await ControlPlane.open(Connection((proxy.bootstrap,)), "nobody")
    try:
        await control.require_versions()
        rule = proxy.on(Api.API_VERSIONS, with_highest({api: TOO_OLD[api]}), times=None)
        missing = rf"{api.name.title().replace('_', '')} {TOO_OLD[api] + 1} \(it has {TOO_OLD[api]}\)\."
        with pytest.raises(ConfigurationError, match=rf"a broker of {proxy.bootstrap} is too old: .*{missing}"):
            await control.require_versions()
        assert rule.hits
    finally:
        await control.close()


async def test_a_worker_does_not_start_with_brokers_that_are_too_old(
    brokers: str, proxy: WireProxy, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("old")
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    proxy.on(Api.API_VERSIONS, with_highest(TOO_OLD), times=None)
    worker = WorkerProcess(MODULE, proxy.bootstrap, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    assert await asyncio.to_thread(worker.wait, 60) == 1
    [line] = [line for line in worker.log().splitlines() if "CRITICAL" in line]
    assert "Workers need Kafka 2.8 or later: upgrade the brokers" in line
    app = needs_app.make(name, [], broker=f"kafka://{proxy.bootstrap}", datadir=str(tmp_path / "command"))
    [found] = [one for one in await examine(Setup(app)) if one.check == "brokers"]
    assert (found.level, found.remedy) == (Level.ERROR, UPGRADE)
    assert f"a broker of {proxy.bootstrap} is too old: it lacks the requests " in found.what
