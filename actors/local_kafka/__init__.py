"""A Kafka cluster on this machine: the broker of `faust dev`, and those of this project's tests."""
