"""Messages to actors by HTTP: told or asked, once for each `Idempotency-Key`, and their answers.

`POST /actors/{actor}/{key}/{message}` is a question whose id is made of actor, key and `Idempotency-Key`. It goes
through the actor's input as any other question does, so that the answer comes after the commit, and a repeat gets the
first answer, whichever worker takes it. Nothing is kept here: see `actors.runtime.requests`.
"""
