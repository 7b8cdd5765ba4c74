"""Windows over event time: their stores, stream time, and what closes."""
