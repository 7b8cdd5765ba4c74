"""The user's declarations: actors, messages, stores, codecs and options."""
