"""Windows and joins behind a backlog, ours beside Kafka Streams: which records are late, which results are wrong."""
