"""Requests between actors and their replies."""
