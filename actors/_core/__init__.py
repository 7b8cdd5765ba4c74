"""The decisions of `actors`: pure, without I/O, clocks or Kafka."""
