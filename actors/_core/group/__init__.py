"""Which member owns which partition, and which keeps a standby of it."""
