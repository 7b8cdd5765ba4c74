"""What an app declares, class actors, queries and effects; and what is wrapped around a handler."""
