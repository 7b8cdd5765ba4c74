"""What a worker checks, waits for and says before its tasks run."""
