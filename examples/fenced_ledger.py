"""A lock protects a SQLite database, and the database protects itself from those who lost the lock.

Start the lock service, then two of these; stop one for longer than its lease (Ctrl-Z, wait, fg):

    faust -A actors.coordination.app worker
    python -m examples.fenced_ledger first ledger.db
    python -m examples.fenced_ledger second ledger.db

A process that was stopped can't know that its lease is over before it runs on, and by then it may be in the middle of a
write. So the lock alone protects nothing. Each lease has a token that is greater than all before it; the database keeps
the greatest that it has seen, in the transaction of the write, and refuses a smaller one.
"""

import contextlib
import os
import sqlite3
import sys
import time
from pathlib import Path

from actors.coordination import LeaseLostError, SyncCoordination

RESOURCE = "ledger"


class StaleTokenError(Exception):
    """Somebody with a later lease has written: whoever has this token lost the lock."""


class FencedLedger:
    """A table of lines that takes no line from those who lost the lock."""

    def __init__(self, path: str | Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("CREATE TABLE IF NOT EXISTS fence (resource TEXT PRIMARY KEY, token INTEGER NOT NULL)")
        self._database.execute("CREATE TABLE IF NOT EXISTS lines (token INTEGER NOT NULL, line TEXT NOT NULL)")

    def write(self, token: int, line: str) -> None:
        """Write a line.

        Raises:
            StaleTokenError: a greater token was seen; nothing is written.
        """
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            raised = self._database.execute(
                "INSERT INTO fence VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET token = excluded.token "
                "WHERE excluded.token >= fence.token",
                (RESOURCE, token),
            )
            if raised.rowcount != 1:
                raise StaleTokenError(
                    f"token {token} is older than one that has written already: acquire the lock anew"
                )
            self._database.execute("INSERT INTO lines VALUES (?, ?)", (token, line))

    def lines(self) -> list[tuple[int, str]]:
        """Give (token, line) in the order of writing."""
        return list(self._database.execute("SELECT token, line FROM lines ORDER BY rowid"))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def main(name: str, path: str) -> None:
    """Take the lock, write for a while, let go, for ever."""
    ledger = FencedLedger(path)
    with SyncCoordination(os.environ.get("KAFKA_URL", "127.0.0.1:9092")) as coordination:
        while True:
            with contextlib.suppress(LeaseLostError), coordination.lock(RESOURCE, ttl=5) as lease:
                for number in range(10):
                    try:
                        ledger.write(lease.token, f"{name} {number}")
                    except StaleTokenError as error:
                        print(f"{name}: refused: {error}", flush=True)
                        break
                    print(f"{name} wrote {number} with token {lease.token}", flush=True)
                    time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:3])
