"""Who may ask a worker's web server, and what for. Every part of ours that shows or changes anything is mounted here.

    part = web.Application()
    part.router.add_get("", page)
    part.router.add_post("/parked/{id}/retry", retry)
    protect(app, web_app, "/dashboard", part, level=Level.READ, login=True)

`protect` mounts a part under a prefix, behind the app's one guard. Levels are `OPEN` (whoever reaches the port),
`READ` and `ADMIN`. GET and HEAD need the part's level; other methods need `ADMIN`, unless the handler says otherwise:

    @needs(Level.READ)
    async def many(request): ...

A token comes as `Authorization: Bearer TOKEN`, or as the password of HTTP Basic with any user name. `login=True` has a
browser ask its user for it. A browser sends a password, and a certificate, for any page that asks: such requests must
come from the worker's own pages, or be links to a part with `login=True`.
`caller_of(request)` tells who asks, for a page that shows buttons to administrators only. Handlers may raise `Problem`.
What decides is the handler that runs, never the path's text: there is nothing in a path to get wrong.
`protect_rest` guards what others mounted on the same server: Faust's pages and the app's own.
"""

from actors.web.access.guard import caller_of, guard_of, protect, protect_rest
from actors.web.access.levels import Caller, Level, needs

__all__ = ["Caller", "Level", "caller_of", "guard_of", "needs", "protect", "protect_rest"]
