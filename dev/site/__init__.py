"""Builds the documentation site: `python -m dev.site`, or `make docs`.

layout.py    the navigation, which is the index page's own tables, and where files outside of `docs` stand on the site
hooks.py     what mkdocs calls while it builds (`mkdocs.yml` names it)
__main__.py  the build: one folder for each version, and the list of versions
"""
