"""An `EndTxn` that arrives in the middle of a later transaction, of our worker and of Kafka Streams.

Jepsen's report on Bufstream describes it: the client's connection ends, the client goes on over another one, and what
was on its way commits a transaction that isn't complete. Then the process is killed, so that what must not be seen of
that transaction is seen.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.streams import StreamsProcess
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send
from tests.kafka.runtime.test_exactly_once import MODULE, PARTITIONS, begin, records
from tests.kafka.wire.proxy import Api, Cut, Exchange, WireProxy

FLEXIBLE, VERSION_2 = 3, 5
"""The first versions of `EndTxn` with tags, and of transactions of version 2."""
SHARE, SHARES = 50, 100
NEXT_S = 0.2


class LateEnd:
    """Keeps an `EndTxn` until the later transaction is half done, then calls `then`.

    `half_done` are the requests that come when something of a transaction is on the brokers, but not all.
    """

    def __init__(self, half_done: tuple[Api, ...], then: Callable[[], None]) -> None:
        self.code: int | None = None
        self.version = 0
        self._half_done = half_done
        self._then = then
        self._late: Exchange | None = None
        self._is_next = False

    async def __call__(self, exchange: Exchange) -> bytes | None:
        if self.code is not None:
            return await exchange.ask()
        if exchange.api == Api.END_TXN:
            if self._late is None:
                self._late = exchange
                raise Cut
            self._is_next = True
        elif exchange.api in self._half_done and self._is_next and self._late is not None:
            reply = await self._late.ask_late()
            self.version = self._late.version
            begin = 8 + (self.version >= FLEXIBLE)
            self.code = int.from_bytes(reply[begin : begin + 2], "big", signed=True)
            self._then()
            raise Cut
        return await exchange.ask()


def ours(proxy: WireProxy, name: str, folder: Path) -> WorkerProcess:
    return WorkerProcess(MODULE, proxy.bootstrap, folder, APP_NAME=name, MAX_POLL_RECORDS="20")


def kafka_streams(proxy: WireProxy, name: str, folder: Path) -> WorkerProcess:
    return StreamsProcess(name, proxy.bootstrap, folder, replicas=1)


def read_ours(value: bytes) -> tuple[int, str]:
    number, _, text = value.decode().partition(":")
    return int(number), text


def read_kafka_streams(value: bytes) -> tuple[int, str]:
    echo = json.loads(value)
    return echo["stats"]["count"], str(echo["value"])


PROGRAMS: dict[str, tuple[Any, ...]] = {
    # Offsets go first, records follow.
    "ours": (ours, "out", read_ours, (Api.PRODUCE,)),
    # Records go first, offsets follow.
    "Kafka Streams": (kafka_streams, "echo", read_kafka_streams, (Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT)),
}


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_an_end_that_arrives_in_a_later_transaction(
    brokers: str, proxy: WireProxy, tmp_path: Path, workers: list[WorkerProcess], program: str
) -> None:
    """With version 2 the broker refuses it. With version 1 only our writer's new epoch makes it do so."""
    make, suffix, read, half_done = PROGRAMS[program]
    name = await begin(brokers)
    if suffix != "out":
        await make_topics(brokers, f"{name}-{suffix}", partitions=PARTITIONS)
    sent = records(SHARE * SHARES)
    worker = make(proxy, name, tmp_path / "data")
    workers.append(worker.start())

    async def echoes() -> dict[bytes, list[tuple[int, str]]]:
        found: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
        for record in await read_all(brokers, f"{name}-{suffix}"):
            found[record.key].append(read(record.value))
        return found

    async def echoed(count: int) -> None:
        async def enough() -> bool:
            return sum(map(len, (await echoes()).values())) >= count

        await eventually(enough, deadline_s=180, what=worker.log)

    await send(brokers, f"{name}-in", sent[:SHARE], partitions=PARTITIONS)
    await echoed(SHARE)
    late = LateEnd(half_done, worker.kill)
    proxy.on(None, late, times=None)
    done = SHARE
    while late.code is None:
        assert done < len(sent), f"the late request wasn't delivered: {worker.log()[-3000:]}"
        await send(brokers, f"{name}-in", sent[done : done + SHARE], partitions=PARTITIONS)
        done += SHARE
        await asyncio.sleep(NEXT_S)
    proxy.calm()
    worker.start()
    sent = sent[: done + SHARE]
    await send(brokers, f"{name}-in", sent[done:], partitions=PARTITIONS)
    await echoed(len(sent))

    expected: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
    for key, value in sent:
        expected[key].append((len(expected[key]) + 1, value.decode()))
    is_version_2 = late.version >= VERSION_2
    results = await echoes()
    doubled = sum(map(len, results.values())) - len(sent)
    print(f"{program}: EndTxn {late.version} was answered with {late.code}; {len(sent)} inputs, {doubled} doubled")
    if program == "ours" or is_version_2:
        assert late.code != 0
        assert results == expected
    else:
        # What Kafka Streams does there isn't ours to mend: this is what the late request does without a new epoch.
        assert late.code == 0
        assert doubled > 0
