"""parked."""
