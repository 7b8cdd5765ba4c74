"""What a user declares: actors, messages, stores, codecs and options."""
