"""What a worker counts and says of itself."""
