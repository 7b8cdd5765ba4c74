"""What Kafka's clients in Spark's JVM answer: topics, their bounds and settings, and the newest records."""
