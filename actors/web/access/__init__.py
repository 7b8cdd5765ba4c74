"""Access control of a worker's web server. Every part that shows or changes anything is mounted with `protect`.

    part = web.Application()
    part.router.add_get("", page)
    part.router.add_post("/parked/{id}/retry", retry)
    protect(app, web_app, "/dashboard", part, level=Level.READ, login=True)

`protect` mounts a part under a prefix, behind the app's one guard. Levels are `OPEN` (everybody who reaches the port),
`READ` and `ADMIN`. GET and HEAD need the part's level; other methods need `ADMIN`, unless the handler is marked:

    @needs(Level.READ)
    async def many(request): ...

A token is sent as `Authorization: Bearer TOKEN`, or as the password of HTTP Basic with any user name. With
`login=True` a browser asks its user for it. A browser sends passwords and certificates with every request, whichever
site's page made it: such requests must come from the worker's own pages, or be links to a part with `login=True`.
`caller_of(request)` returns the caller, for a page that shows buttons to administrators only. Handlers may raise
`Problem`. The handler decides which level is needed, never the text of the path.
`protect_rest` guards what others mounted on the same server: Faust's pages and the app's own.
"""

from actors._faust.settings.secrets import Level
from actors.web.access.guard import caller_of, guard_of, protect, protect_rest
from actors.web.access.levels import Caller, needs

__all__ = ["Caller", "Level", "caller_of", "guard_of", "needs", "protect", "protect_rest"]
