"""What the locks protect: a SQLite file that keeps the greatest tokens it saw, and refuses those who come too late."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

_TABLES = (
    "CREATE TABLE IF NOT EXISTS fence (name TEXT PRIMARY KEY, written INTEGER NOT NULL, seen INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS accepted (place INTEGER PRIMARY KEY, name TEXT, token INTEGER, acquisition TEXT, "
    "reads INTEGER)",
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A use that was let through: by which token of which acquisition."""

    name: str
    token: int
    acquisition: str
    reads: bool = False


class Resource:
    """A value per lock. A write needs a token that is no smaller than any before it; a read one that is no smaller than
    that of any write.

    Whoever is stopped in the middle of a transaction keeps the others waiting, as in any database.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=120, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        # Threads take turns; processes do by the file.
        self._turn = threading.Lock()
        for table in _TABLES:
            self._database.execute(table)

    def use(self, one: Accepted) -> bool:
        """Write or read; False if the token is refused."""
        with self._turn, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute("SELECT written, seen FROM fence WHERE name = ?", (one.name,)).fetchone()
            written, seen = row or (0, 0)
            if one.token < (written if one.reads else seen):
                return False
            written = written if one.reads else one.token
            database.execute("INSERT OR REPLACE INTO fence VALUES (?, ?, ?)", (one.name, written, max(seen, one.token)))
            database.execute(
                "INSERT INTO accepted (name, token, acquisition, reads) VALUES (?, ?, ?, ?)",
                (one.name, one.token, one.acquisition, one.reads),
            )
        return True

    def greatest(self, name: str) -> int:
        """Give the greatest token that was let through."""
        with self._turn:
            row = self._database.execute("SELECT seen FROM fence WHERE name = ?", (name,)).fetchone()
        return row[0] if row else 0

    def accepted(self) -> list[Accepted]:
        """Give what was let through, in order."""
        rows = self._database.execute("SELECT name, token, acquisition, reads FROM accepted ORDER BY place")
        return [Accepted(name, token, acquisition, bool(reads)) for name, token, acquisition, reads in rows]

    def close(self) -> None:
        self._database.close()
