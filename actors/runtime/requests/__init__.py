"""Requests between actors, and the replies to them."""
