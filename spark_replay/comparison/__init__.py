"""The rebuilt state against what workers hold."""
