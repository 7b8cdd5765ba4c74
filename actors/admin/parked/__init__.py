"""Parked messages and effects as they are committed, and the commands about them, for the CLI and the dashboard.

reader.py    the parked entries of each key, from the changelogs or from an owner's stores
showing.py   the content of an entry
commands.py  retry and drop: sends a command to the partition's owner, and waits for its outcome
many.py      the same for many keys at once
"""
