"""Copies that follow a topic: standbys of other owners' tasks, and views."""
