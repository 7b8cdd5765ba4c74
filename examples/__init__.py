"""One runnable file a feature."""
