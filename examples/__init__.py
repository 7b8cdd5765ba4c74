"""One runnable file a feature."""

import os

# Two names for one setting, as `dev.kafka` and the tests take it.
if "KAFKA_BROKERS" in os.environ:
    os.environ.setdefault("KAFKA_URL", os.environ["KAFKA_BROKERS"])
