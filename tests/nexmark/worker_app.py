"""One of Nexmark's queries for a real worker."""

import os

from tests.nexmark.queries import QUERIES, Nexmark

nexmark = Nexmark(
    os.environ["QUERY"],
    prefix=os.environ["PREFIX"],
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
)
QUERIES[os.environ["QUERY"]](nexmark)
app = nexmark.app
