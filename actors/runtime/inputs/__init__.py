"""The inputs of a task: what waits, in which order it is handled, and how far each is done with."""
