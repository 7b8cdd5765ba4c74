"""The damage: runs an example in a process whose fence lets everything through."""

import runpy
import sys

from actors.coordination import Fence

if __name__ == "__main__":
    Fence.check = lambda *_: None
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
