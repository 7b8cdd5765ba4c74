"""A saga: a trip's flight, hotel and car are booked one after the other, or what was booked is cancelled again."""

from datetime import timedelta

import msgspec

from actors import Actor, App, EffectCall, GivenUp, receive, timer

STEPS = ("flight", "hotel", "car")


class Progress(msgspec.Struct):
    reservations: list[str] = []
    outcome: str = ""


app = App("trips", broker="kafka://127.0.0.1:9092")
outcomes = app.topic("outcomes", key_type=str, value_type=str)


@app.effect(attempts=3, on_give_up="failed")
async def reserve(call: EffectCall, what: str, trip: str) -> str:
    raise NotImplementedError("reserves it, with call.idempotency_key, and returns the reservation's id")


@app.effect(attempts=0)
async def cancel(call: EffectCall, reservation: str) -> None:
    raise NotImplementedError("cancels it, as often as it takes")


@app.actor(app.topic("trips", key_type=str), effects=[reserve, cancel])
class Trip(Actor[Progress, str]):
    @receive
    async def book(self, customer: str) -> None:
        self.ctx.schedule(self.end, f"too late for {customer}", after=timedelta(hours=1), name="deadline")
        self.ctx.effect(reserve, STEPS[0], self.key, then=self.reserved)

    async def reserved(self, reservation: str) -> None:
        self.state.reservations.append(reservation)
        if self.state.outcome:
            self.end(self.state.outcome)
        elif len(self.state.reservations) < len(STEPS):
            self.ctx.effect(reserve, STEPS[len(self.state.reservations)], self.key, then=self.reserved)
        else:
            self.end("booked")

    async def failed(self, failure: GivenUp) -> None:
        self.end(failure.error)

    @timer
    def end(self, outcome: str) -> None:
        while outcome != "booked" and self.state.reservations:
            self.ctx.effect(cancel, self.state.reservations.pop())
        if not self.state.outcome:
            self.state.outcome = outcome
            self.ctx.cancel("deadline")
            self.ctx.send(outcomes, key=self.key, value=outcome)
