"""The results of commands, as text and as a page."""
