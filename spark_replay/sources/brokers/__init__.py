"""Topics, their bounds and settings, and the newest records, from Kafka's clients in Spark's JVM."""
