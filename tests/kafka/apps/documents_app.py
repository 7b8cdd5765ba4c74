"""What blocks of code of the documents talk to: the lock service and a shared map."""

import os

import msgspec

from actors import App
from actors.coordination import coordination


class Limits(msgspec.Struct):
    """How much a printer may print."""

    pages: int


def make(name: str, brokers: str) -> App:
    """Make the app, without the shared map."""
    url = ";".join(f"kafka://{broker}" for broker in brokers.split(","))
    return App(name, broker=url, broker_session_timeout=6.0, broker_heartbeat_interval=0.5)


if "APP_NAME" in os.environ:
    app = make(os.environ["APP_NAME"], os.environ["KAFKA_URL"].replace("kafka://", "").replace(";", ","))
    coordination(app, partitions=1)
    app.view(app.shared("printers", value_type=Limits, partitions=1))
