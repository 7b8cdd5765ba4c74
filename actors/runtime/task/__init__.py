"""One owned partition: the takeover, and the loop that handles, commits and stores."""
