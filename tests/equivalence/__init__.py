"""Windows beside Kafka Streams: the same records into both, and the same results out of both."""
