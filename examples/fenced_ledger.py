"""A lock protects a ledger, and the ledger refuses writes of former holders.

Start a worker, which runs the lock service and the ledger, then two writers; stop one writer for longer than its lease
(Ctrl-Z, wait, fg):

    faust -A examples.fenced_ledger worker
    python -m examples.fenced_ledger first
    python -m examples.fenced_ledger second

A suspended process learns that its lease has ended only when it continues, and then it may be in the middle of a write.
So the lock alone protects nothing. Each lease has a token that is greater than all earlier ones. The ledger is an actor
whose state has the greatest token that it has seen, and refuses a smaller one. State and output are one transaction, so
consumers of `ledger-lines` see only accepted lines.
"""

import asyncio
import contextlib
import os
import sys

import msgspec

from actors import Actor, App, AskRejectedError, Rejected, receive
from actors.coordination import Coordination, LeaseLostError, coordination

NAME = os.environ.get("APP_NAME", "fenced-ledger")
BROKERS = os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092")
RESOURCE = "ledger"
LINES_PER_LEASE = 10


class Line(msgspec.Struct):
    """A line to write, with the token of the writer's lease."""

    token: int
    text: str


class Fence(msgspec.Struct):
    """The greatest token that was accepted."""

    token: int = 0


app = App(NAME, broker=BROKERS)
coordination(app)
writes = app.topic(f"{NAME}-writes", key_type=str, value_type=Line)
lines = app.topic(f"{NAME}-lines", key_type=str, value_type=Line)


@app.actor(writes)
class Ledger(Actor[Fence]):
    """One ledger. Its key is the name of the lock that protects it."""

    @receive
    def write(self, line: Line) -> int:
        """Write a line unless a later lease has written; returns the token."""
        if is_stale(line, self.state):
            raise Rejected(f"token {line.token} is refused, since {self.state.token} was seen")
        self.state.token = line.token
        self.ctx.send(lines, key=self.key, value=line)
        return line.token


def is_stale(line: Line, fence: Fence) -> bool:
    """Return whether the writer has lost the lock. An equal token is the same holder's next write."""
    return line.token < fence.token


async def main(name: str, ttl: float = 5.0, pause: float = 0.5) -> None:
    """Take the lock, write for a while, release it, for ever; `ttl` and `pause` are seconds."""
    async with Coordination(BROKERS, app=NAME) as client:
        while True:
            with contextlib.suppress(LeaseLostError):
                async with client.lock(RESOURCE, ttl) as lease:
                    try:
                        for number in range(LINES_PER_LEASE):
                            await app.ask(Ledger, RESOURCE, Line(lease.token, f"{name} {number}"))
                            print(f"{name} wrote {number} with token {lease.token}", flush=True)
                            await asyncio.sleep(pause)
                    except AskRejectedError as error:
                        print(f"{name} refused: {error}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(float, sys.argv[2:])))
