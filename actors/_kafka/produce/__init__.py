"""Writing to Kafka: a worker's transactions."""
