"""The commands that run an app: `worker`, `dev`, `send`.

worker.py, send.py   replace Faust's own commands
dev.py               a broker and a worker that is reloaded, for development
supervisor.py        `worker --processes N`
spawned.py, child.py the two ends of a worker that is another process's child
dev_worker.py, reload.py   the worker of `dev`, and which files it is reloaded for
"""
