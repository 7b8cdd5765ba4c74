"""Topics as companies have them: with a schema registry, and with the changes of a database."""
