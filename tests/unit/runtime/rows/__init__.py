"""Map, list and set stores."""
