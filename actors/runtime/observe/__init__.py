"""What an operator sees of a worker: its status, traces, and what its start waits for."""
