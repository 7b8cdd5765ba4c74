"""The errors of the local Kafka cluster."""


class LocalKafkaError(Exception):
    """Something a person has to put right; the text says what and how, in one line."""


class ToolMissingError(LocalKafkaError):
    """There is no Java on this machine, or nothing to fetch jars with."""


class ClusterStateError(LocalKafkaError):
    """The data folder does not hold the cluster that was asked for."""


class BrokerNotReadyError(LocalKafkaError):
    """A broker ended, or was not ready before its deadline."""
