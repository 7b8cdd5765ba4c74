"""Ours: `faust -A benchmarks.nexmark.app worker`, for the query that the environment names."""

from __future__ import annotations

import os
from datetime import timedelta

from benchmarks.peers.apps.settings import Settings
from tests.nexmark.queries import QUERIES, Nexmark

settings = Settings.read()
nexmark = Nexmark(
    settings.work,
    prefix=settings.source,
    grace=timedelta(seconds=float(os.environ["NEXMARK_GRACE_S"])),
    broker=f"kafka://{settings.brokers}",
    broker_commit_interval=settings.commit_s,
    broker_session_timeout=settings.session_s,
    broker_heartbeat_interval=min(1.0, settings.session_s / 3),
)
QUERIES[settings.work](nexmark)
app = nexmark.app
