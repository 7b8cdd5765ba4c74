"""What apps of broker tests share: they commit soon, and the group soon forgets a worker that was killed."""

import os
from typing import Any

from actors import App

NAME = os.environ["APP_NAME"]


def quick_app(**options: Any) -> App:
    """Make the app `NAME` on the test's broker, with its standbys."""
    return App(
        NAME,
        broker=os.environ["KAFKA_URL"],
        broker_session_timeout=6.0,
        broker_heartbeat_interval=0.5,
        broker_max_poll_records=50,
        broker_commit_interval=0.05,
        table_standby_replicas=int(os.environ.get("STANDBYS", "0")),
        **options,
    )
