"""An app's declarations, class actors, queries and effects; and the wrappers around a handler."""
