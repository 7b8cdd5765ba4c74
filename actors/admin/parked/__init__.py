"""What was put aside, as it is committed, and what is done about it: for commands and for the dashboard.

lines.py    the lines of parked messages and effects, from their changelogs, or from an owner's stores
showing.py  what one of them holds
admin_commands.py  retry and drop: a command on its way to the partition's owner, and what came of it
many.py     the same for many keys at once
"""
