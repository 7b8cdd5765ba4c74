"""`faust -A APP parked …`: a module for each command; `control` has what `retry` and `drop` share."""
