"""State of one partition of one store; knows nothing of Kafka.

`ports` says what a store must do, `memory` is the reference and `rocks` the product. `_core` is the pure
half: metadata, positions, the overlay of uncommitted writes and the manifest of an export.
"""
