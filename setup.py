"""Builds the package. `FAUST_ACTORS_COMPILE=1` compiles the modules below by mypyc: a wheel for one platform.

Calls between compiled and interpreted code cost what compiling saves: modules that call each other for each record are
here together. What users subclass, and what reads its own signatures, stays interpreted.
"""

import os

from setuptools import Extension, setup

COMPILED = [
    "actors/_core/windows/kinds.py",
    "actors/_core/windows/rows.py",
    "actors/runtime/inputs/inbox.py",
    "actors/runtime/inputs/progress.py",
    "actors/runtime/inputs/task_time.py",
    "actors/runtime/message/context.py",
    "actors/_core/values/ids.py",
    "actors/runtime/message/internal_messages.py",
    "actors/runtime/message/outputs.py",
    "actors/runtime/message/store.py",
    "actors/runtime/message/table.py",
    "actors/runtime/message/task_state.py",
    "actors/runtime/task/by_key.py",
    "actors/runtime/task/handling.py",
    "actors/runtime/task/in_order.py",
    "actors/runtime/task/processor.py",
    "actors/runtime/windows/changes.py",
    "actors/runtime/windows/closes.py",
    "actors/runtime/windows/committed.py",
    "actors/runtime/windows/distinct.py",
    "actors/runtime/windows/joins.py",
    "actors/runtime/windows/late.py",
    "actors/runtime/windows/removal.py",
    "actors/runtime/windows/store.py",
    "actors/runtime/windows/task_windows.py",
    "stores/_core/overlay.py",
]


def extensions() -> list[Extension]:
    """Return the extension modules of the wheel, none for the pure one."""
    if os.environ.get("FAUST_ACTORS_COMPILE", "0") == "0":
        return []
    from mypyc.build import mypycify

    return mypycify(COMPILED, group_name="faust_actors", debug_level="0")


setup(ext_modules=extensions())
