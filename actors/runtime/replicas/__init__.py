"""Followers of changelogs: standbys and views."""
