"""A broker, a network, a disk and an event loop in memory and in virtual time."""
