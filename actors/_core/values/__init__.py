"""Values and keys: what can be read back as it was written, and the one form of equal keys."""
