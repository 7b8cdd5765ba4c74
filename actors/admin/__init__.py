"""What an operator asks of an app: parked messages, adopted state, read models that are filled."""
