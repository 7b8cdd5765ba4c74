"""Interactive queries: the committed state of the app's actors over HTTP, on Faust's web server.

server.py      the routes: what is asked, and of which partitions
routing.py     who owns them, and how a question gets there
answers.py     what this worker says about its own partitions
coding.py      keys and values between JSON, URLs and the stores' bytes
parameters.py  what a request may say
problems.py    errors as RFC 9457 has them
openapi.py     the description

Who may ask is decided in `actors.web.access`.
"""
