"""A task's stores: opens them, restores them from their changelogs, writes commits to them."""
