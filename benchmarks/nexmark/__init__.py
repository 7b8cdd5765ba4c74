"""Nexmark's queries, ours beside programs of Kafka Streams: rates, CPU and results that SQL judges."""
