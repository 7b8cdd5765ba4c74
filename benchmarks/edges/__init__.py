"""Measures the edges of an app: messages by HTTP, streams of changes, and sinks."""
