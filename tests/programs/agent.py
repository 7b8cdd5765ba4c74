"""An agent: a model drafts a text, reviews and revises it, and a person approves it within a week."""

from datetime import timedelta

import msgspec

from actors import Actor, App, EffectCall, GivenUp, receive, timer


class Task(msgspec.Struct, tag="task"):
    subject: str


class Decision(msgspec.Struct, tag="decision"):
    is_approved: bool


app = App("agent", broker="kafka://127.0.0.1:9092")
results = app.topic("results", key_type=str, value_type=str)


@app.effect(attempts=4, on_give_up="failed")
async def ask_model(call: EffectCall, prompt: str) -> str:
    raise NotImplementedError("calls the model, with call.idempotency_key")


@app.actor(app.topic("tasks", key_type=str), effects=[ask_model])
class Agent(Actor[str, str]):
    @receive
    async def start(self, task: Task) -> None:
        self.ctx.effect(ask_model, f"draft {task.subject}", then=self.drafted)

    async def drafted(self, text: str) -> None:
        self.state = text
        self.ctx.effect(ask_model, f"review {text}", then=self.reviewed)

    async def reviewed(self, review: str) -> None:
        self.ctx.effect(ask_model, f"revise {self.state}: {review}", then=self.revised)

    async def revised(self, text: str) -> None:
        self.state = text
        self.ctx.schedule(self.end, "nobody approved it", after=timedelta(weeks=1), name="approval")

    @receive
    async def decide(self, decision: Decision) -> None:
        if self.ctx.cancel("approval"):
            await self.end(self.state if decision.is_approved else "rejected")

    async def failed(self, outcome: GivenUp) -> None:
        await self.end(f"failed: {outcome.error}")

    @timer
    async def end(self, result: str) -> None:
        self.ctx.send(results, key=self.key, value=result)
        self.forget()
