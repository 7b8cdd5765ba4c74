"""Which apps may use the same changelog: names of apps and stores may contain dashes, as changelogs' names do."""

from __future__ import annotations

_END = "-changelog"


def possible_owners(changelog: str, app: str) -> list[str]:
    """Return the other apps whose stores may have this changelog: it begins with its app's id and a dash."""
    places = [place for place, letter in enumerate(changelog) if letter == "-" and place > 0]
    return [changelog[:place] for place in places if changelog[:place] != app]


def store_of(changelog: str, app: str) -> str | None:
    """Return the store of `app` that has this changelog unless its settings say otherwise, None if none can."""
    name = changelog.removeprefix(f"{app}-").removesuffix(_END)
    return name if name and changelog == f"{app}-{name}{_END}" else None
