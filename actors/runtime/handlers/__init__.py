"""What a handler sees: its context, stores, timers and expiry."""
