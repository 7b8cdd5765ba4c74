"""The state that a changelog stands for."""
