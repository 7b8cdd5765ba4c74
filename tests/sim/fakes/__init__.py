"""What the simulation adds to the fakes of `actors.testing`: faults, a group with members, a disk that loses writes.

loop.py      processes that can be stopped and woken, and killed in a blocking call
network.py   requests that are lost, late, doubled
group.py     the group coordinator
cluster.py   the cluster with that group, compaction and operators
source.py    the fake of the worker's consumer
requests.py  questions by an idempotent producer
disk.py      stores that outlive their process, and lose and refuse writes
clock.py     a machine's clock that the product checks
"""
