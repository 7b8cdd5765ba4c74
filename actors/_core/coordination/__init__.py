"""Locks and configuration entries as values, and what each request makes of them."""
