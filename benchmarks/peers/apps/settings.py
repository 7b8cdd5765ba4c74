"""What a job is told through its environment. Imports nothing but the standard library: Quix Streams runs elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for every Python system; times in seconds."""

    work: str
    app: str
    brokers: str
    source: str
    other: str
    target: str
    exactly_once: bool
    typed: bool
    instance: str
    session_s: float
    commit_s: float
    partitions: int
    folder: str
    phases: str

    @classmethod
    def read(cls) -> Settings:
        """Read the environment that `benchmarks.peers.systems` made."""
        given = os.environ
        return cls(
            work=given["PEER_WORK"],
            app=given["PEER_APP"],
            brokers=given["PEER_BROKERS"],
            source=given["PEER_SOURCE"],
            other=given["PEER_OTHER"],
            target=given["PEER_TARGET"],
            exactly_once=given["PEER_GUARANTEE"] == "exactly_once",
            typed=given["PEER_VALUES"] == "json",
            instance=given["PEER_INSTANCE"],
            session_s=float(given["PEER_SESSION_S"]),
            commit_s=float(given["PEER_COMMIT_S"]),
            partitions=int(given["PEER_PARTITIONS"]),
            folder=given["PEER_FOLDER"],
            phases=given["PEER_PHASES"],
        )
