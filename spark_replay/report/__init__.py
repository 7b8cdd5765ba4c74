"""What the user is told, as text and as a page."""
