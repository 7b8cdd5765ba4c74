"""One message while it is handled: its context, the stores and outputs that it reaches, and its errors."""
