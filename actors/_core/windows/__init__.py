"""Windows over event time: which there are, what a record changes in them, and how they lie in a store."""
