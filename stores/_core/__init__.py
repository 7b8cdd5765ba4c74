"""The pure half of `stores`: no I/O, no clock, no Kafka."""
