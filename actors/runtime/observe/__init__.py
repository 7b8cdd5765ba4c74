"""An operator's view of a worker: its status, traces, and what its start waits for."""
