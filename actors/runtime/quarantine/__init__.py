"""Messages that can't be handled, and the later ones of their keys."""
