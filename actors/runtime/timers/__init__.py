"""Durable timers, and the input that they wait for after a takeover."""
