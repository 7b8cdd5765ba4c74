"""Writing to Kafka: transactions, single records, requests and replies."""
