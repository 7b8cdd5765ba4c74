"""Where the settings of an app come from: arguments of `App`, `pyproject.toml`, the environment.

values.py    what a text or a TOML value says
secrets.py   tokens, the secret of an app, and the keys derived from it
sources.py   reads the environment and `pyproject.toml`, and decides which one counts
"""
