"""Ours beside Kafka Streams, Quix Streams and Faust: the same records, the same broker, the same clock."""
