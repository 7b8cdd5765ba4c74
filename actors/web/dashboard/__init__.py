"""The dashboard: pages about all workers of the group, on each worker's web server.

pages.py      the routes
group.py      asks all workers what they say about themselves
waiting.py    what waits at this worker: parked messages, effects, timers, locks
view.py       what a page shows of all that
rendering.py  templates, and how numbers and times are written
actions.py    retries and drops, beside the request that asked for them
"""
