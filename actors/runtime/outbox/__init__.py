"""Effects outside of Kafka: recorded with a commit, called after it until they succeed."""
