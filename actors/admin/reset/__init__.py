"""Moves the offsets of an app's actors, with or without their state, while no worker runs.

targets.py   where to: earliest, latest, a time, or stated offsets
scope.py     which actors, inputs, stores and topics belong together
moves.py     what would be committed, and why a worker takes it
reset.py     the steps, in an order in which a death leaves nothing that a worker would run on
"""
