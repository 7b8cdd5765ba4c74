"""Interactive queries: the committed state of the app's actors over HTTP, on Faust's web server.

server.py         the routes: request, partitions, answer
service.py        the worker's readers and routers
routing.py        routes to the owners of partitions
standby_reads.py  routes to owners and standbys
answers.py        the answers, and how this worker makes them of its own partitions
coding.py         what requests say and answers show: parameters, bodies, keys, values
openapi.py        the description

`actors.web.access` decides who may ask; `actors.web.workers` is the client that asks other workers.
"""
