"""fences."""
