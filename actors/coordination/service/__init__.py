"""The lock service: the actor, its state, and its panel on the dashboard."""
