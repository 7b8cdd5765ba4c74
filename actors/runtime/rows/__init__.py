"""Map, list and set stores: rows below a key, each a record of its own."""
