"""Snapshots of state that workers begin from."""
