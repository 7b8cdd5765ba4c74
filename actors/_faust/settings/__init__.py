"""Where the settings of an app come from: arguments of `App`, `pyproject.toml`, the environment.

values.py    what a text or a TOML value says
sources.py   reads the environment and `pyproject.toml`, and decides which one counts
shown.py     each setting with its value and its source, for `faust settings`
"""
