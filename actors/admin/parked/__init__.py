"""Parked messages and effects as they are committed, and the commands about them, for the CLI and the dashboard.

reader.py      the parked entries of each key, from the changelogs
showing.py     the content of an entry
control.py     retry and drop: sends commands to the partitions' owners, and waits for their outcome
operations.py  the operations of the command line and the dashboard
"""
