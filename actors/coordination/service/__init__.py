"""The lock service: the actor and its state."""
