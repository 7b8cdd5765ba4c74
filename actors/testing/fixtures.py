"""Fixtures for pytest where its plugins aren't loaded by themselves: `pytest_plugins = ["actors.testing.fixtures"]`.

Else they are there without it: `pytest_faust_actors` is a plugin that pytest finds.
"""

from pytest_faust_actors import actor_driver as actor_driver
from pytest_faust_actors import kafka as kafka
