"""Commands of operators: parked messages, forgotten state, backfilled read models."""
