"""A lock protects the order of a topic, and what those who lost the lock still write counts for nobody.

Start the lock service, two writers and a reader; stop one writer for longer than its lease (Ctrl-Z, wait, fg):

    faust -A actors.coordination.app worker
    python -m examples.fenced_topic first fenced-lines
    python -m examples.fenced_topic second fenced-lines
    python -m examples.fenced_topic read fenced-lines

A broker can't compare tokens. So each record carries the one of its writer's lease, and all who read the topic pass
over a record that comes after one with a greater token: the order of the log decides, which is the same for everybody.
The writer reads its own record back, and is told whether it counts. See `actors.coordination.fences.topic` for what
the topic has to be like.
"""

import asyncio
import contextlib
import os
import sys

from actors.coordination import Coordination, FencedReader, FencedTopic, LeaseLostError, StaleTokenError

RESOURCE = "ledger"
LINES_PER_LEASE = 10
BROKERS = os.environ.get("KAFKA_URL", "127.0.0.1:9092")


async def read(topic: str) -> None:
    """Print what counts, from the start of the log on. Who keeps `reader.state` can go on from there."""
    async with FencedReader(BROKERS, topic) as reader:
        async for record in reader:
            print(f"{record.offset}: token {record.token}: {record.value.decode()}", flush=True)


async def write(name: str, topic: str, ttl: float = 5.0, pause: float = 0.5) -> None:
    """Take the lock, write for a while, let go, for ever; `ttl` and `pause` are seconds."""
    service = Coordination(BROKERS, app=os.environ.get("COORDINATION_APP", "coordination"))
    async with service as coordination, FencedTopic(BROKERS, topic, RESOURCE) as ledger:
        while True:
            with contextlib.suppress(LeaseLostError):
                async with coordination.lock(RESOURCE, ttl) as lease:
                    try:
                        # From here on nothing that was written before can change: who decides by it reads it now.
                        await ledger.claim(lease.token)
                        for number in range(LINES_PER_LEASE):
                            record = await ledger.append(lease.token, f"{name} {number}".encode())
                            print(f"{name} wrote {number} with token {record.token}", flush=True)
                            await asyncio.sleep(pause)
                    except StaleTokenError as error:
                        print(f"{name} refused: {error}", flush=True)


if __name__ == "__main__":
    who, where, *seconds = sys.argv[1:]
    asyncio.run(read(where) if who == "read" else write(who, where, *map(float, seconds)))
