"""What a task decides: its state, its claim, what it commits, what a takeover does."""
