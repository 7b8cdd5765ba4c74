"""What ours has in common for all jobs: the app, and what it is told."""

from __future__ import annotations

from actors import App
from benchmarks.peers.apps.settings import Settings

settings = Settings.read()
app = App(
    settings.app,
    broker=";".join(f"kafka://{address}" for address in settings.brokers.split(",")),
    broker_commit_interval=settings.commit_s,
    broker_session_timeout=settings.session_s,
    broker_heartbeat_interval=min(1.0, settings.session_s / 3),
    consumer_group_instance_id=settings.instance or None,
)
