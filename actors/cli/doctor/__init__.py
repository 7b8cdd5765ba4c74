"""The checks of `faust doctor`: of the brokers, the app's topics and offsets, and this machine. They change nothing.

report.py    a result, and what the results say together
examine.py   all checks, one after the other
brokers.py   versions, permissions, topics, clocks, members
offsets.py   the group's offsets and the inputs' retention
machine.py   settings, data folder, disk, open files, Java
"""
