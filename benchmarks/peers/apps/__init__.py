"""The same jobs in the words of each Python system; Kafka Streams' are in `benchmarks/kafka_streams`."""
