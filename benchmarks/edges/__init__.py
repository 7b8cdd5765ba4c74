"""What the edges are worth: the sink into PostgreSQL, and HTTP in."""
