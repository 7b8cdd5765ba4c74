"""Decisions of a task: its state, its claim, the content of a commit, the steps of a takeover."""
