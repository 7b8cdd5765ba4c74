"""message."""
