"""Reads committed state for queries."""
