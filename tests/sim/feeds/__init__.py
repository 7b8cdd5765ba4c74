"""Event time under faults: actors that feed each other, on the simulated cluster."""
