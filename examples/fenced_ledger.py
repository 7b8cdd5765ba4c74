"""A lock protects a SQLite database, and the database refuses writes of former holders.

Start the lock service, then two of these; stop one for longer than its lease (Ctrl-Z, wait, fg):

    faust -A actors.coordination.app worker
    python -m examples.fenced_ledger first ledger.db
    python -m examples.fenced_ledger second ledger.db

A suspended process learns that its lease has ended only when it continues, and then it may be in the middle of a write.
So the lock alone protects nothing. Each lease has a token that is greater than all earlier ones. The database keeps the
greatest token that it has seen, in the transaction of the write, and refuses a smaller one.
"""

import contextlib
import os
import sys
import time

from actors.coordination import FencedSqlite, LeaseLostError, StaleTokenError, SyncCoordination

RESOURCE = "ledger"
LINES_PER_LEASE = 10


def write(ledger: FencedSqlite, token: int, line: str) -> None:
    """Write a line; raises `StaleTokenError` if somebody with a later lease has written."""
    with ledger.writing(token) as connection:
        # One transaction with the token. What is read in it can't change before its end either.
        connection.execute("CREATE TABLE IF NOT EXISTS lines (token INTEGER NOT NULL, line TEXT NOT NULL)")
        connection.execute("INSERT INTO lines VALUES (?, ?)", (token, line))


def lines(ledger: FencedSqlite) -> list[tuple[int, str]]:
    """Give (token, line) in the order of writing."""
    return list(ledger.connection.execute("SELECT token, line FROM lines ORDER BY rowid"))


def main(name: str, path: str, ttl: float = 5.0, pause: float = 0.5) -> None:
    """Take the lock, write for a while, let go, for ever; `ttl` and `pause` are seconds."""
    service = SyncCoordination(
        os.environ.get("KAFKA_URL", "127.0.0.1:9092"), app=os.environ.get("COORDINATION_APP", "coordination")
    )
    with service as coordination, FencedSqlite.open(path, RESOURCE) as ledger:
        while True:
            with contextlib.suppress(LeaseLostError), coordination.lock(RESOURCE, ttl) as lease:
                try:
                    for number in range(LINES_PER_LEASE):
                        write(ledger, lease.token, f"{name} {number}")
                        print(f"{name} wrote {number} with token {lease.token}", flush=True)
                        time.sleep(pause)
                except StaleTokenError as error:
                    print(f"{name} refused: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
