"""Measures the framework on this machine; every figure names its command."""
