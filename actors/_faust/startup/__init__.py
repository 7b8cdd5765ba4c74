"""The checks, waits and log lines of a worker before its tasks run."""
