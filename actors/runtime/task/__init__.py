"""A task: one partition of an actor's input, from its first claim to its end."""
