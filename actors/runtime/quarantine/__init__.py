"""Parked messages: what a handler refused, in the order of its key."""
