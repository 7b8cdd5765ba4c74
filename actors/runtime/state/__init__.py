"""Stores of a partition, and their restore from the changelog."""
