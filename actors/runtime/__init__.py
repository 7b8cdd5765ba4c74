"""Executes what `actors._core` decides, over the ports of `actors.ports`. Knows neither Kafka's client nor Faust.

worker.py    one per process: dispatches records to tasks, starts and stops them as partitions come and go
task.py      one per owned partition: takes over, handles, commits
restore.py   brings a task's stores to the end of their changelogs
context.py   what a handler sees: `Context` and `Store`
"""
