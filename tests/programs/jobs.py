"""Jobs: each is tried four times, its status can be asked, and one that failed for good says why."""

import msgspec

from actors import Actor, App, EffectCall, GivenUp, PendingEffect, query, receive


class Submit(msgspec.Struct, tag="submit"):
    source: str


class Job(msgspec.Struct):
    status: str = "unknown"
    result: str = ""


app = App("jobs", broker="kafka://127.0.0.1:9092")


@app.effect(attempts=4, on_give_up="failed")
async def convert(call: EffectCall, source: str) -> str:
    raise NotImplementedError("converts it, with call.idempotency_key")


@app.actor(app.topic("jobs", key_type=str), effects=[convert])
class Jobs(Actor[Job, str]):
    @receive
    async def submit(self, message: Submit) -> None:
        self.state.status = "pending"
        self.ctx.effect(convert, message.source, then=self.done)

    async def done(self, result: str) -> None:
        self.state = Job("done", result)

    async def failed(self, failure: GivenUp) -> None:
        self.state = Job("failed", failure.error)

    @query
    def status(self) -> tuple[Job, list[PendingEffect]]:
        return self.state, self.ctx.effects()
