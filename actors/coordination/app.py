"""The lock service as an app of its own: `faust -A actors.coordination.app worker`.

KAFKA_URL says where the broker is, COORDINATION_APP how the app is called.
"""

from __future__ import annotations

import os

from actors import App
from actors.coordination.service import coordination

app = App(
    os.environ.get("COORDINATION_APP", "coordination"),
    broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"),
)
Coordinator = coordination(app)
