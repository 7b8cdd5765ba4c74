"""Reads of a partition's state from outside its task."""
