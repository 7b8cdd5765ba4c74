"""Topics, offsets, permissions and the registry of owners."""
