"""What blocks of code of the documents talk to: the lock service."""

import os

from actors import App
from actors.coordination import coordination

app = App(
    os.environ["APP_NAME"], broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5
)
coordination(app, partitions=1)
