"""What windows cost: all that close at once beside input, and a record's share of the processor."""
