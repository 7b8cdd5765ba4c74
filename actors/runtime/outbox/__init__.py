"""What a commit sends: outputs, read models, and calls outside Kafka."""
