"""State computed again from the input by the app's own handlers."""
