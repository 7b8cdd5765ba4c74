"""Commands of operators: parked messages, adopted and forgotten state, backfilled read models."""
